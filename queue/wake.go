package queue

import (
	"context"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue/internal/store"
)

// Bounds of the subscription to wake-ups. A silent one is tested by a PING, and renewed if that is
// not answered within the same time.
const (
	wakeSilence      = 500 * time.Millisecond
	wakeSilenceLocal = time.Minute // of an engine that neither hangs alone nor fails over
	wakePause        = 100 * time.Millisecond
)

// Wakes delivers wake-ups until ctx ends, then closes the channel. It reconnects, also from a Redis
// that hangs. It sends Wake{Shard: AllShards} at each connection and when a worker has left.
func (b *Broker) Wakes(ctx context.Context) <-chan Wake {
	out := make(chan Wake, 2*b.store.Len())
	go func() {
		defer close(out)
		for ctx.Err() == nil {
			b.listen(ctx, out)
			select {
			case <-ctx.Done():
			case <-time.After(wakePause):
			}
		}
	}()
	return out
}

// listen passes wake-ups on until its subscription breaks.
func (b *Broker) listen(ctx context.Context, out chan<- Wake) {
	silence := wakeSilenceLocal
	if b.remote {
		silence = wakeSilence
	}
	pubsub := b.store.Patient.Subscribe(ctx, store.WakeChannel)
	hangUp := context.AfterFunc(ctx, func() { _ = pubsub.Close() }) // ends the wait for a message
	defer func() {
		if hangUp() {
			_ = pubsub.Close() // no longer needed
		}
	}()
	for tested := false; ; {
		m, err := pubsub.ReceiveTimeout(ctx, silence)
		var timed net.Error
		switch {
		case err == nil:
			tested = false
			b.restoreAll(b.histories.Count()) // should this connection be to another master
		case errors.As(err, &timed) && timed.Timeout() && !tested && pubsub.Ping(ctx) == nil:
			tested = true
			continue
		default:
			return
		}
		wake, ok := b.wakeOf(m)
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

func (b *Broker) wakeOf(m any) (Wake, bool) {
	switch m := m.(type) {
	case *redis.Subscription:
		return Wake{Shard: AllShards}, m.Kind == "subscribe"
	case *redis.Message:
		if m.Payload == "left" {
			return Wake{Shard: AllShards}, true
		}
		clock, help := strings.CutPrefix(m.Payload, "help ")
		shard, known := b.store.ShardOfClock(clock)
		return Wake{Shard: shard.Index, Help: help}, known
	}
	return Wake{}, false
}
