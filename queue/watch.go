package queue

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// watcher holds one subscription for all jobs that somebody waits for. A job's channel exists only while it is waited for, so the end
// of any other job costs no traffic. One goroutine changes the subscription, another receives: a Redis that is away holds up neither
// the callers nor each other.
type watcher struct {
	pubsub *redis.PubSub
	done   sync.WaitGroup

	mu      sync.Mutex
	changed sync.Cond
	closed  bool
	waiting map[string]*watch // by channel
	wishes  []string          // channels whose subscription is to be made or ended, in the order of the wishes
}

// watch is what is known of one channel: who waits for it, and whether the subscription is in force.
type watch struct {
	ended []chan struct{}
	ready chan struct{} // closed once the subscription is in force
	live  bool
}

func newWatcher(c redis.UniversalClient) *watcher {
	w := &watcher{pubsub: c.Subscribe(context.Background()), waiting: map[string]*watch{}}
	w.changed.L = &w.mu
	w.done.Go(w.subscribe)
	w.done.Go(w.receive)
	return w
}

func (w *watcher) close() error {
	w.mu.Lock()
	w.closed = true
	w.changed.Signal()
	w.mu.Unlock()
	err := w.pubsub.Close()
	w.done.Wait()
	return err
}

// subscribe brings the subscription up to what is waited for. An error is not the end of it: go-redis keeps the list of channels and
// subscribes to all of them on its next connection.
func (w *watcher) subscribe() {
	for {
		w.mu.Lock()
		for len(w.wishes) == 0 && !w.closed {
			w.changed.Wait()
		}
		if w.closed {
			w.mu.Unlock()
			return
		}
		channel := w.wishes[0]
		w.wishes = w.wishes[1:]
		wanted := w.waiting[channel] != nil
		w.mu.Unlock()
		if wanted {
			_ = w.pubsub.Subscribe(context.Background(), channel)
		} else {
			_ = w.pubsub.Unsubscribe(context.Background(), channel)
		}
	}
}

// receive hands out ends. After a lost connection an end may have been missed, so every confirmation of a subscription that was in force
// already is taken for a possible end.
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

// confirm is called with the lock held when a subscription is known to be in force.
func (w *watcher) confirm(channel string) {
	x := w.waiting[channel]
	switch {
	case x == nil:
	case x.live:
		w.signal(channel)
	default:
		x.live = true
		close(x.ready)
	}
}

// signal is called with the lock held.
func (w *watcher) signal(channel string) {
	if x := w.waiting[channel]; x != nil {
		for _, c := range x.ended {
			select {
			case c <- struct{}{}:
			default: // it has one signal to look at already
			}
		}
	}
}

// Watch returns a channel that receives whenever the job has (perhaps) ended, and a function that ends the watch, which must be called. It
// returns once the subscription is in force, so a state read afterwards cannot miss the end. The signal may be spurious: read the job
// again.
func (q *Queue) Watch(ctx context.Context, id string) (ended <-chan struct{}, stop func(), err error) {
	return q.watcher.watch(ctx, doneChannel+id)
}

func (w *watcher) watch(ctx context.Context, channel string) (<-chan struct{}, func(), error) {
	c := make(chan struct{}, 1)
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return nil, nil, errClosed
	}
	x := w.waiting[channel]
	if x == nil {
		x = &watch{ready: make(chan struct{})}
		w.waiting[channel] = x
		w.wishes = append(w.wishes, channel)
		w.changed.Signal()
	}
	x.ended = append(x.ended, c)
	w.mu.Unlock()
	stop := func() { w.forget(channel, x, c) }
	select {
	case <-x.ready:
		return c, stop, nil
	case <-ctx.Done():
		stop()
		return nil, nil, errors.Join(ErrUnavailable, ctx.Err())
	}
}

func (w *watcher) forget(channel string, x *watch, c chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	x.ended = slices.DeleteFunc(x.ended, func(other chan struct{}) bool { return other == c })
	if len(x.ended) == 0 && w.waiting[channel] == x {
		delete(w.waiting, channel)
		w.wishes = append(w.wishes, channel)
		w.changed.Signal()
	}
}

// Bounds of the subscription to wake-ups: after so long a silence it is tested by a PING, and made anew when that is not answered either.
const (
	wakeSilence      = 500 * time.Millisecond
	wakeSilenceLocal = time.Minute // of an engine that cannot hang alone, nor fail over
	wakePause        = 100 * time.Millisecond
)

// Wakes delivers wake-ups until ctx ends, then closes the channel. It reconnects by itself, also from a Redis that hangs and to the one that
// took over. The first value, and one after each reconnection, is Wake{Shard: AllShards}; so is one when a worker has left.
func (q *Queue) Wakes(ctx context.Context) <-chan Wake {
	out := make(chan Wake, 2*q.keys.Len())
	go func() {
		defer close(out)
		for ctx.Err() == nil {
			q.listen(ctx, out)
			select {
			case <-ctx.Done():
			case <-time.After(wakePause):
			}
		}
	}()
	return out
}

// listen passes wake-ups on for as long as one subscription lives.
func (q *Queue) listen(ctx context.Context, out chan<- Wake) {
	silence := wakeSilenceLocal
	if q.engine.kind == EngineRedis {
		silence = wakeSilence
	}
	pubsub := q.engine.patient.Subscribe(ctx, wakeChannel)
	hangUp := context.AfterFunc(ctx, func() { _ = pubsub.Close() }) // ends the wait for a message
	defer func() {
		if hangUp() {
			_ = pubsub.Close() // nothing is left to do with it
		}
	}()
	for tested := false; ; {
		m, err := pubsub.ReceiveTimeout(ctx, silence)
		var timed net.Error
		switch {
		case err == nil:
			tested = false
		case errors.As(err, &timed) && timed.Timeout() && !tested && pubsub.Ping(ctx) == nil:
			tested = true
			continue
		default:
			return
		}
		wake, ok := q.wakeOf(m)
		if !ok {
			continue
		}
		select {
		case out <- wake:
		case <-ctx.Done():
			return
		}
	}
}

func (q *Queue) wakeOf(m any) (Wake, bool) {
	switch m := m.(type) {
	case *redis.Subscription:
		return Wake{Shard: AllShards}, m.Kind == "subscribe"
	case *redis.Message:
		if m.Payload == "left" {
			return Wake{Shard: AllShards}, true
		}
		clock, help := strings.CutPrefix(m.Payload, "help ")
		shard, known := q.keys.byClock[clock]
		return Wake{Shard: shard, Help: help}, known
	}
	return Wake{}, false
}
