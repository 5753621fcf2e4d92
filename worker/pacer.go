package worker

import (
	"sync"
	"time"

	"github.com/7509e464/sluice/queue/crash"
)

// waiter is how the pacer sleeps. Only wake may be called from another goroutine than the pacer's, and never after close.
type waiter interface {
	// attach is called first, on the goroutine that will wait.
	attach()
	// wait returns after d, or when wake is called or was called since wait last returned; it may return early for no
	// reason. A negative d waits for wake alone.
	wait(d time.Duration)
	wake()
	close()
}

// pacer holds leased jobs until their stamps. It is one goroutine that sleeps until the earliest one.
//
// A job leaves at its stamp or up to a horizon later, and only if its lease has at least margin left; any other is handed
// to drop instead. Jobs of the same stamp leave in the order in which they were added.
type pacer struct {
	watch   stopwatch
	waiter  waiter
	horizon time.Duration
	margin  time.Duration
	depart  func(*job) // neither may block
	drop    func(*job)

	mu     sync.Mutex
	heap   releases
	added  uint64
	asleep moment // until when the goroutine sleeps; longAgo while it is awake
	closed bool
}

func newPacer(watch stopwatch, w waiter, horizon, margin time.Duration, depart, drop func(*job)) *pacer {
	return &pacer{watch: watch, waiter: w, horizon: horizon, margin: margin, depart: depart, drop: drop, asleep: longAgo}
}

// add takes jobs in. It takes none and returns false when the pacer was stopped.
func (p *pacer) add(jobs []*job) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	first := never
	for _, j := range jobs {
		p.heap.push(release{at: j.at, order: p.added, job: j})
		p.added++
		first = min(first, j.at)
	}
	if first < p.asleep {
		p.asleep = first // the next jobs need not wake it again
		p.waiter.wake()
	}
	return true
}

// stop ends the pacer and returns the jobs that it still held.
func (p *pacer) stop() []*job {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	p.closed = true
	jobs := make([]*job, len(p.heap))
	for i, r := range p.heap {
		jobs[i] = r.job
	}
	p.heap = nil
	p.waiter.wake()
	return jobs
}

// run releases jobs until stop.
func (p *pacer) run() {
	p.waiter.attach()
	defer p.waiter.close()
	var due []*job
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return
		}
		now := p.watch.now()
		due = due[:0]
		for len(p.heap) > 0 && p.heap[0].at <= now {
			due = append(due, p.heap.pop().job)
		}
		p.asleep = longAgo
		sleep := time.Duration(-1)
		if len(due) == 0 {
			p.asleep = never
			if len(p.heap) > 0 {
				p.asleep = p.heap[0].at
				sleep = p.asleep.since(now)
			}
		}
		p.mu.Unlock()

		if len(due) == 0 {
			p.waiter.wait(sleep)
			continue
		}
		// Outside the lock, so that a shard which brings new jobs does not wait for the departures.
		for _, j := range due {
			p.release(j, now)
		}
		if len(due) > 1 {
			// The runtime runs the goroutine that was started last before the others; with this one they run in order.
			go func() {}()
		}
		clear(due)
	}
}

// release lets a due job leave, or not. One that is too late has lost its slot: were it to leave now, it would come close to the
// one behind it. One whose lease is nearly over may be leased by another worker before it has been delivered.
func (p *pacer) release(j *job, now moment) {
	tooLate := now.since(j.at) > p.horizon
	lapsing := moment(j.deadline.Load()).since(now) < p.margin
	if tooLate || lapsing {
		p.drop(j)
		return
	}
	crash.At("at-departure")
	p.depart(j)
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

func (w *timerWaiter) attach() {}

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
