package queue

import (
	"context"
	"slices"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Heartbeat records a heartbeat of the worker and returns the workers with one within ttl, itself
// included.
func (b *Broker) Heartbeat(ctx context.Context, worker string, ttl time.Duration) (Heartbeat, error) {
	return b.beat(ctx, scripts.HeartbeatCall{
		Clock: store.WorkersClock, Workers: store.WorkersKey, Worker: worker, TTL: ttl,
	})
}

// Leave removes the worker and wakes the others.
func (b *Broker) Leave(ctx context.Context, worker string) error {
	const ttl = time.Hour // long enough to remove nobody else
	_, err := b.beat(ctx, scripts.HeartbeatCall{
		Clock: store.WorkersClock, Workers: store.WorkersKey, Worker: worker, TTL: ttl, Leave: true,
	})
	return err
}

func (b *Broker) beat(ctx context.Context, call scripts.HeartbeatCall) (beat Heartbeat, err error) {
	var values []any
	if values, beat.Reading, err = b.timed(ctx, b.store.Patient, call.Call()); err != nil {
		return Heartbeat{}, err
	}
	beat.Now, beat.Live, err = call.Decode(values)
	slices.Sort(beat.Live)
	return beat, store.Unavailable(err)
}
