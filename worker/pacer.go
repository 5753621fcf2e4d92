package worker

import (
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/crash"
)

// waiter is how the pacer sleeps. While one goroutine waits, another may call wake only.
type waiter interface {
	// wait returns after d, or when wake is called or was called since wait last returned; it may
	// return early for no reason. A negative d waits for wake alone.
	wait(d time.Duration)
	wake()
	close()
}

// pacer holds leased jobs until their stamps. One goroutine sleeps until the earliest one and, if
// that job leaves alone, delivers it itself, because to wake a second thread took longer than to
// wake the first. Another goroutine succeeds it, and has until the next stamp to get a thread
// (leader and followers: Schmidt et al., 2000).
//
// A job leaves at its stamp or up to a horizon later, and only if its lease has at least margin
// left; otherwise drop gets it. Jobs of the same stamp leave in the order in which they were added.
type pacer struct {
	watch   stopwatch
	waiter  waiter
	horizon time.Duration
	margin  time.Duration
	deliver func(*job) // on a goroutine that is the job's
	drop    func(*job) // must not block
	ended   chan struct{}

	mu     sync.Mutex
	jobs   []*job // by instant, and first come, first served within one
	asleep moment // until when the goroutine sleeps; longAgo while it is awake
	end    moment // nothing leaves after it; never until stop
}

func newPacer(watch stopwatch, w waiter, horizon, margin time.Duration, deliver, drop func(*job)) *pacer {
	return &pacer{
		watch: watch, waiter: w, horizon: horizon, margin: margin, deliver: deliver, drop: drop,
		ended: make(chan struct{}), asleep: longAgo, end: never,
	}
}

// add takes jobs in and returns those that it does not take, because they leave after the end.
func (p *pacer) add(jobs []*job) (refused []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end := p.end
	if end <= p.watch.now() {
		end = longAgo // it has ended, or is about to
	}
	first := never
	for _, j := range jobs {
		if j.at > end {
			refused = append(refused, j)
			continue
		}
		p.jobs = slices.Insert(p.jobs, p.until(j.at), j)
		first = min(first, j.at)
	}
	if first < p.asleep {
		p.asleep = first // the next jobs need not wake it again
		p.waiter.wake()
	}
	return refused
}

// until returns how many jobs leave up to the moment.
func (p *pacer) until(m moment) int {
	n, _ := slices.BinarySearchFunc(p.jobs, m, func(j *job, m moment) int {
		if j.at <= m {
			return -1
		}
		return 1
	})
	return n
}

// crowd is how many jobs the pacer may hold for quiet to search a gap between them: with more in
// about a horizon, no gap is worth it.
const crowd = 64

// quiet returns the moment midway between the two departures around the given one, at most slack
// away from it. Other work then disturbs neither.
func (p *pacer) quiet(near moment, slack time.Duration) moment {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.jobs) > crowd {
		return near
	}
	before, after := near.add(-2*slack), near.add(2*slack)
	for _, j := range p.jobs {
		if j.at <= near {
			before = max(before, j.at)
		} else {
			after = min(after, j.at)
		}
	}
	return before + (after-before)/2
}

// stop ends the pacer after in, and returns the jobs that would leave later. It is called once.
func (p *pacer) stop(in time.Duration) (later []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = p.watch.now().add(in)
	n := p.until(p.end)
	later, p.jobs = p.jobs[n:], p.jobs[:n:n]
	p.waiter.wake()
	return later
}

// run releases jobs until the end, and then closes ended. Before, it returns when another goroutine
// has taken over.
func (p *pacer) run() {
	for {
		p.mu.Lock()
		now := p.watch.now()
		n := p.until(now)
		due := p.jobs[:n:n]
		p.jobs = p.jobs[n:]
		p.asleep = longAgo
		sleep := time.Duration(-1)
		if len(due) == 0 {
			if p.end <= now { // all that was taken has left
				p.mu.Unlock()
				p.waiter.close()
				close(p.ended)
				return
			}
			p.asleep = p.end
			if len(p.jobs) > 0 {
				p.asleep = p.jobs[0].at
			}
			if p.asleep < never {
				sleep = p.asleep.since(now)
			}
		}
		p.mu.Unlock()

		switch len(due) {
		case 0:
			p.waiter.wait(sleep)
		case 1:
			j := due[0]
			due[0] = nil // the array outlives the job
			if p.mayLeave(j, now) {
				go p.run()
				p.deliver(j)
				return
			}
		default:
			for _, j := range due {
				if p.mayLeave(j, now) {
					go p.deliver(j)
				}
			}
			clear(due) // the array outlives the jobs
			// The runtime runs the last started goroutine before the others; with this one they run
			// in order.
			go func() {}()
		}
	}
}

// mayLeave drops a due job that must not leave. One that is too late would come close to the next
// one. One whose lease is nearly over may be leased by another worker before it has been delivered.
func (p *pacer) mayLeave(j *job, now moment) bool {
	if now.since(j.at) > p.horizon || moment(j.deadline.Load()).since(now) < p.margin {
		p.drop(j)
		return false
	}
	crash.At("at-departure")
	return true
}

// timerWaiter waits with the runtime's timers, which are late by about a millisecond.
type timerWaiter chan struct{}

func newTimerWaiter() waiter { return make(timerWaiter, 1) }

func (w timerWaiter) wait(d time.Duration) {
	var over <-chan time.Time
	if d >= 0 {
		over = time.After(d)
	}
	select {
	case <-over:
	case <-w:
	}
}

func (w timerWaiter) wake() { signal(w) }

func (w timerWaiter) close() {}
