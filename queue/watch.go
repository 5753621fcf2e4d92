package queue

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// watcher listens for the ends of all jobs that are waited for. A job's channel exists only while
// it is waited for: the end of any other job costs no traffic.
type watcher struct {
	listener *listener

	mu      sync.Mutex
	closed  bool
	waiting map[string]*watch // by channel
}

// End says that a job may have ended. With the end of a forwarded request comes a small answer.
type End struct {
	record string // of the job that has ended, empty if it was not sent
	part   bool
}

// Part reports whether only another part of the job's answer has come. There may be fifty a second.
func (e End) Part() bool { return e.part }

// watch is who waits for one channel, and whether its subscription is in force.
type watch struct {
	ended []chan End
	ready chan struct{} // closed once the subscription is in force
}

func newWatcher(s *store.Store, silence time.Duration, log *slog.Logger) *watcher {
	w := &watcher{waiting: map[string]*watch{}}
	w.listener = newListener(s, w, silence, log)
	return w
}

func (w *watcher) close() {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.listener.close()
}

// joined confirms subscriptions. An end may be missed with a lost connection, so another
// confirmation counts as a possible end.
func (w *watcher) joined(channels []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, channel := range channels {
		w.confirm(channel)
	}
}

func (w *watcher) heard(channel, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	end := End{record: message, part: message == scripts.PartMessage}
	if len(message) < scripts.HeadLength { // the state alone
		end.record = ""
	}
	w.signal(channel, end)
}

// deaf does nothing: the next confirmation makes up for it.
func (w *watcher) deaf([]string) {}

// confirm notes that a subscription is in force. The lock must be held.
func (w *watcher) confirm(channel string) {
	x := w.waiting[channel]
	if x == nil {
		return
	}
	select {
	case <-x.ready: // it was in force before
		w.signal(channel, End{})
	default:
		close(x.ready)
	}
}

// signal wakes who waits for a channel. The lock must be held.
func (w *watcher) signal(channel string, end End) {
	if x := w.waiting[channel]; x != nil {
		for _, c := range x.ended {
			select {
			case c <- end:
				continue
			default: // it already holds a signal
			}
			if end.part {
				continue
			}
			select { // which may be a part
			case <-c:
			default:
			}
			select {
			case c <- end:
			default:
			}
		}
	}
}

// Watch returns a channel that receives when the job may have ended: read it then, by Job, or by
// Answer with what was received. The caller must call stop. The subscription is in force when Watch
// returns, so no later end is missed. Errors: ErrUnavailable.
func (q *Queue) Watch(ctx context.Context, id string) (ended <-chan End, stop func(), err error) {
	ended, inForce, stop, err := q.WatchEarly(id)
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-inForce:
		return ended, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, errors.Join(ErrUnavailable, ctx.Err())
	}
}

// WatchEarly is Watch for a job that is submitted meanwhile: it does not wait for the subscription.
// An end before inForce is closed may be missed. Errors: ErrUnavailable.
func (q *Queue) WatchEarly(id string) (ended <-chan End, inForce <-chan struct{}, stop func(), err error) {
	shard, known := q.store.ShardOfID(id)
	if !known {
		shard = q.store.Shard(0) // no such job will end
	}
	w, channel, c := q.watcher, shard.Channel(scripts.EndedChannel+id), make(chan End, 1)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, nil, nil, errClosed
	}
	x := w.waiting[channel]
	if x == nil {
		x = &watch{ready: make(chan struct{})}
		w.waiting[channel] = x
		w.listener.add(channel)
	}
	x.ended = append(x.ended, c)
	w.mu.Unlock()
	stop = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		x.ended = slices.DeleteFunc(x.ended, func(other chan End) bool { return other == c })
		if len(x.ended) == 0 && w.waiting[channel] == x {
			delete(w.waiting, channel)
			w.listener.remove(channel)
		}
	}
	return c, x.ready, stop, nil
}
