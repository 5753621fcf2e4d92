package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// windowJobs is the most jobs for which the polls under way may ask together. Redis runs one script at a time: more polls
// bring no more jobs. They would only delay the admissions and settlements that come after them.
const windowJobs = 4096

// window bounds the polls that are under way at once, by the jobs for which they ask.
type window struct {
	jobs  *semaphore.Weighted
	polls atomic.Int64 // under way
}

func newWindow() *window { return &window{jobs: semaphore.NewWeighted(windowJobs)} }

// enter waits until there is room for a poll that asks for so many jobs. It fails if ctx ends before.
func (w *window) enter(ctx context.Context, jobs int) (*underWay, error) {
	if err := w.jobs.Acquire(ctx, int64(jobs)); err != nil {
		return nil, err
	}
	w.polls.Add(1)
	return &underWay{window: w, jobs: int64(jobs)}, nil
}

// underWay is a poll that holds room in the window, and capacity. It holds neither for longer than pollPatience: a node that
// does not answer would take all of both, because go-redis gives up after 20 s only.
type underWay struct {
	window *window
	jobs   int64
	timer  *time.Timer

	mu       sync.Mutex
	left     bool
	reserved int
}

// reserve has the poll hold reserved places. After pollPatience it leaves the window, and calls yield with the places.
func (u *underWay) reserve(reserved int, yield func(reserved int)) {
	u.reserved = reserved
	u.timer = time.AfterFunc(pollPatience, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if !u.left {
			u.leave()
			yield(u.reserved)
			u.reserved = 0
		}
	})
}

// end ends the poll, and returns how many places it still holds.
func (u *underWay) end() int {
	if u.timer != nil {
		u.timer.Stop()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.left {
		u.leave()
	}
	return u.reserved
}

func (u *underWay) leave() {
	u.left = true
	u.window.polls.Add(-1)
	u.window.jobs.Release(u.jobs)
}
