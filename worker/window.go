package worker

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"
)

// Redis runs one script at a time, so more polls under way bring no more jobs: they lease fewer each, and delay the admissions
// and settlements behind them. A Redis that is far away needs more of them, for each shard to be polled in time.
const (
	nearPolls = 16 // under way at once, if the way to Redis and back takes up to nearWay
	farPolls  = 64
	nearWay   = 10 * time.Millisecond
	wayKept   = time.Minute // how long the shortest way counts, at least
)

// window bounds the polls that are under way at once.
type window struct {
	room  *semaphore.Weighted // of farPolls
	polls atomic.Int64        // under way

	mu          sync.Mutex
	since       time.Time
	way, before time.Duration // the shortest since then, and in the time before; 0: none
}

func newWindow() *window { return &window{room: semaphore.NewWeighted(farPolls), since: time.Now()} }

// enter waits until there is room for a poll. It fails if ctx ends before.
func (w *window) enter(ctx context.Context) (*underWay, error) {
	room := int64(farPolls / nearPolls)
	if w.far() {
		room = 1
	}
	if err := w.room.Acquire(ctx, room); err != nil {
		return nil, err
	}
	w.polls.Add(1)
	return &underWay{window: w, room: room}, nil
}

// observe takes into account how long a poll was under way. Only the shortest count: others waited for Redis.
func (w *window) observe(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.since) > wayKept {
		w.since, w.way, w.before = time.Now(), 0, w.way
	}
	if w.way == 0 || took < w.way {
		w.way = took
	}
}

// far reports whether even the shortest way takes long.
func (w *window) far() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.way > nearWay && (w.before == 0 || w.before > nearWay)
}

// underWay is a poll that holds room in the window, and capacity. It holds neither for longer than pollPatience: a node that
// does not answer would take all of both, because go-redis gives up after 20 s only.
type underWay struct {
	window *window
	room   int64
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
	u.window.room.Release(u.room)
}
