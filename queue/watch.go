package queue

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue/internal/store"
)

// watcher holds one subscription for all jobs that are waited for. A job's channel exists only
// while it is waited for: the end of any other job costs no traffic. Subscribing has goroutines of
// its own, because it blocks while Redis is away.
type watcher struct {
	pubsub      *redis.PubSub
	done        sync.WaitGroup
	subscribing sync.Mutex // held while the subscription is changed

	mu      sync.Mutex
	closed  bool
	waiting map[string]*watch // by channel
}

// watch is who waits for one channel, and whether its subscription is in force.
type watch struct {
	ended []chan struct{}
	ready chan struct{} // closed once the subscription is in force
}

func newWatcher(c redis.UniversalClient) *watcher {
	w := &watcher{pubsub: c.Subscribe(context.Background()), waiting: map[string]*watch{}}
	w.done.Go(w.receive)
	return w
}

func (w *watcher) close() error {
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	err := w.pubsub.Close()
	w.done.Wait()
	return err
}

// update subscribes to a channel that is waited for, and unsubscribes from any other. The lock must
// be held. After an error, the next connection of go-redis subscribes to all its channels.
func (w *watcher) update(channel string) {
	if w.closed {
		return
	}
	w.done.Go(func() {
		w.subscribing.Lock()
		defer w.subscribing.Unlock()
		w.mu.Lock()
		change := w.pubsub.Unsubscribe
		if w.waiting[channel] != nil {
			change = w.pubsub.Subscribe
		}
		w.mu.Unlock()
		_ = change(context.Background(), channel)
	})
}

// receive passes ends on. An end may be missed with a lost connection, so another confirmation of a
// subscription counts as a possible end.
func (w *watcher) receive() {
	for m := range w.pubsub.ChannelWithSubscriptions() {
		w.mu.Lock()
		switch m := m.(type) {
		case *redis.Message:
			w.signal(m.Channel)
		case *redis.Subscription:
			if m.Kind == "subscribe" {
				w.confirm(m.Channel)
			}
		}
		w.mu.Unlock()
	}
}

// confirm notes that a subscription is in force. The lock must be held.
func (w *watcher) confirm(channel string) {
	x := w.waiting[channel]
	if x == nil {
		return
	}
	select {
	case <-x.ready: // it was in force before
		w.signal(channel)
	default:
		close(x.ready)
	}
}

// signal wakes who waits for a channel. The lock must be held.
func (w *watcher) signal(channel string) {
	if x := w.waiting[channel]; x != nil {
		for _, c := range x.ended {
			select {
			case c <- struct{}{}:
			default: // it already holds a signal
			}
		}
	}
}

// Watch returns a channel that receives when the job may have ended: read the job then. The caller
// must call stop. The subscription is in force when Watch returns, so no later end is missed.
// Errors: ErrUnavailable.
func (q *Queue) Watch(ctx context.Context, id string) (ended <-chan struct{}, stop func(), err error) {
	w, channel, c := q.watcher, store.DoneChannel+id, make(chan struct{}, 1)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, nil, errClosed
	}
	x := w.waiting[channel]
	if x == nil {
		x = &watch{ready: make(chan struct{})}
		w.waiting[channel] = x
		w.update(channel)
	}
	x.ended = append(x.ended, c)
	w.mu.Unlock()
	stop = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		x.ended = slices.DeleteFunc(x.ended, func(other chan struct{}) bool { return other == c })
		if len(x.ended) == 0 && w.waiting[channel] == x {
			delete(w.waiting, channel)
			w.update(channel)
		}
	}
	select {
	case <-x.ready:
		return c, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, errors.Join(ErrUnavailable, ctx.Err())
	}
}
