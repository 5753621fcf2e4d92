package queue

import (
	"context"
	"strings"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Wakes delivers wake-ups until ctx ends, then closes the channel. It reconnects, also from a Redis
// that hangs or is no longer the master. It sends a wake-up for each shard whose wake-ups may have
// been missed: when it has connected, and each second while it has not. Wake{Shard: AllShards} is
// one for every shard, also when a worker has left.
func (b *Broker) Wakes(ctx context.Context) <-chan Wake {
	ctx, stop := context.WithCancel(ctx)
	context.AfterFunc(b.running, stop)
	w := &wakes{
		b: b, out: make(chan Wake, 2*b.store.Len()), done: ctx.Done(),
		shards: map[string]int{store.WorkersWake: AllShards},
	}
	channels := []string{store.WorkersWake}
	for i, s := range b.store.Shards() {
		channel := s.Channel(scripts.WakeChannel)
		w.shards[channel] = i
		channels = append(channels, channel)
	}
	l := newListener(b.store, w, b.silence, b.log)
	l.add(channels...)
	b.restoring.Go(func() { // so that close waits for what the hearer begins
		<-ctx.Done()
		l.close()
		close(w.out)
		stop()
	})
	return w.out
}

// wakes is the hearer of wake-ups.
type wakes struct {
	b      *Broker
	out    chan Wake
	done   <-chan struct{}
	shards map[string]int // by channel
}

func (w *wakes) joined(channels []string) {
	for _, channel := range channels {
		if shard := w.shards[channel]; shard != AllShards {
			w.b.restoreSoon(shard)
		}
	}
	w.deaf(channels)
}

func (w *wakes) heard(channel, message string) {
	shard := w.shards[channel]
	if id, left := strings.CutPrefix(message, leftMessage); left {
		w.b.left(id)
		return
	}
	if id, reads := strings.CutPrefix(message, readsMessage); reads {
		w.b.called(id)
		return
	}
	if message == "restore" && shard != AllShards {
		w.b.restoreSoon(shard)
	}
	w.send(Wake{Shard: shard, Help: message == "help"})
}

func (w *wakes) deaf(channels []string) {
	for _, channel := range channels {
		if channel == store.WorkersWake { // has all polled, and a heartbeat sent
			w.send(Wake{Shard: AllShards})
			return
		}
	}
	for _, channel := range channels {
		w.send(Wake{Shard: w.shards[channel]})
	}
}

func (w *wakes) send(wake Wake) {
	select {
	case w.out <- wake:
	case <-w.done:
	}
}
