package worker

import (
	"sync"
	"time"

	"github.com/7509e464/sluice/queue/crash"
)

// waiter is how the pacer sleeps. While one goroutine waits, another may call wake only.
type waiter interface {
	// wait returns after d, or when wake is called or was called since wait last returned; it may return
	// early for no reason. A negative d waits for wake alone.
	wait(d time.Duration)
	wake()
	close()
}

// pacer holds leased jobs until their stamps. One goroutine sleeps until the earliest one and, if that
// job leaves alone, delivers it itself, because to wake a second thread took longer than to wake the
// first. Another goroutine succeeds it, and has until the next stamp to get a thread (leader and
// followers: Schmidt et al., 2000).
//
// A job leaves at its stamp or up to a horizon later, and only if its lease has at least margin left;
// otherwise drop gets it. Jobs of the same stamp leave in the order in which they were added.
type pacer struct {
	watch   stopwatch
	waiter  waiter
	horizon time.Duration
	margin  time.Duration
	deliver func(*job) // on a goroutine that is the job's
	drop    func(*job) // must not block
	ended   chan struct{}
	due     []*job // of the goroutine whose turn it is

	mu     sync.Mutex
	heap   releases
	added  uint64
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
		p.heap.push(release{at: j.at, order: p.added, job: j})
		p.added++
		first = min(first, j.at)
	}
	if first < p.asleep {
		p.asleep = first // the next jobs need not wake it again
		p.waiter.wake()
	}
	return refused
}

// crowd is how many jobs the pacer may hold for quiet to search a gap between them: with more in about
// a horizon, no gap is worth it.
const crowd = 64

// quiet returns the moment midway between the two departures around the given one, at most slack away
// from it. Other work then disturbs neither.
func (p *pacer) quiet(near moment, slack time.Duration) moment {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.heap) > crowd {
		return near
	}
	before, after := near.add(-2*slack), near.add(2*slack)
	for _, r := range p.heap {
		if r.at <= near {
			before = max(before, r.at)
		} else {
			after = min(after, r.at)
		}
	}
	return before + (after-before)/2
}

// stop ends the pacer after in, and returns the jobs that would leave later. It is called once.
func (p *pacer) stop(in time.Duration) (later []*job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.end = p.watch.now().add(in)
	held := p.heap
	p.heap = nil
	for _, r := range held {
		if r.at > p.end {
			later = append(later, r.job)
		} else {
			p.heap.push(r)
		}
	}
	p.waiter.wake()
	return later
}

// run releases jobs until the end, and then closes ended. Before, it returns when another goroutine has
// taken over.
func (p *pacer) run() {
	for {
		p.mu.Lock()
		now := p.watch.now()
		clear(p.due)
		p.due = p.due[:0]
		for len(p.heap) > 0 && p.heap[0].at <= now {
			p.due = append(p.due, p.heap.pop().job)
		}
		p.asleep = longAgo
		sleep := time.Duration(-1)
		if len(p.due) == 0 {
			if p.end <= now { // all that was taken has left
				p.mu.Unlock()
				p.waiter.close()
				close(p.ended)
				return
			}
			p.asleep = p.end
			if len(p.heap) > 0 {
				p.asleep = p.heap[0].at
			}
			if p.asleep < never {
				sleep = p.asleep.since(now)
			}
		}
		p.mu.Unlock()

		switch len(p.due) {
		case 0:
			p.waiter.wait(sleep)
		case 1:
			if j := p.due[0]; p.mayLeave(j, now) {
				go p.run()
				p.deliver(j)
				return
			}
		default:
			p.release(now)
		}
	}
}

// release lets the due jobs leave side by side, outside the lock: shards that add jobs do not wait.
func (p *pacer) release(now moment) {
	for _, j := range p.due {
		if p.mayLeave(j, now) {
			go p.deliver(j)
		}
	}
	// The runtime runs the last started goroutine before the others; with this one they run in order.
	go func() {}()
}

// mayLeave drops a due job that must not leave. One that is too late would come close to the next one.
// One whose lease is nearly over may be leased by another worker before it has been delivered.
func (p *pacer) mayLeave(j *job, now moment) bool {
	if now.since(j.at) > p.horizon || moment(j.deadline.Load()).since(now) < p.margin {
		p.drop(j)
		return false
	}
	crash.At("at-departure")
	return true
}

// release is a job in the heap.
type release struct {
	at    moment
	order uint64 // of insertion
	job   *job
}

// before orders by instant, and first come, first served within one.
func (r release) before(other release) bool {
	return r.at < other.at || r.at == other.at && r.order < other.order
}

// releases is a binary min-heap. It is written out because container/heap allocates for every element.
type releases []release

func (h *releases) push(r release) {
	*h = append(*h, r)
	s := *h
	for i := len(s) - 1; i > 0; {
		parent := (i - 1) / 2
		if !s[i].before(s[parent]) {
			return
		}
		s[i], s[parent] = s[parent], s[i]
		i = parent
	}
}

// pop removes the first one; there must be one.
func (h *releases) pop() release {
	s := *h
	first, last := s[0], len(s)-1
	s[0], s[last] = s[last], release{}
	s = s[:last]
	*h = s
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if s[child].before(s[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		s[i], s[least] = s[least], s[i]
		i = least
	}
}

// timerWaiter waits with the runtime's timers, which are late by about a millisecond.
type timerWaiter struct {
	timer *time.Timer
	woken chan struct{}
}

func newTimerWaiter() waiter {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &timerWaiter{timer: t, woken: make(chan struct{}, 1)}
}

func (w *timerWaiter) wait(d time.Duration) {
	if d < 0 {
		<-w.woken
		return
	}
	w.timer.Reset(d)
	select {
	case <-w.timer.C:
	case <-w.woken:
		w.timer.Stop()
	}
}

func (w *timerWaiter) wake() { signal(w.woken) }

func (w *timerWaiter) close() { w.timer.Stop() }
