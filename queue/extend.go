package queue

import (
	"context"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
)

// Unanswered is the error of Extend when shards did not answer. The result of Extend holds for the
// leases that are not listed here.
type Unanswered struct {
	Leases []LeaseRef
	Err    error // wraps ErrUnavailable or ErrScript
}

func (e *Unanswered) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Unanswered) Unwrap() error { return e.Err }

// Extend makes leases last for another lease duration from now. lost lists the leases that are no
// longer current. The error is of type *Unanswered. If a shard does not answer, the call waits for
// it until ctx ends.
func (b *Broker) Extend(
	ctx context.Context, leases []LeaseRef, lease time.Duration,
) (lost []LeaseRef, err error) {
	for _, l := range leases {
		if _, ok := b.store.ShardOfID(l.ID); !ok {
			lost = append(lost, l)
		}
	}
	id := func(i int) (string, time.Duration, int) { return leases[i].ID, 0, 0 }
	failed := b.perShard(ctx, len(leases), id, func(g group) (scripts.Call, func([]any) error) {
		call := scripts.ExtendCall{Clock: g.shard.Clock(), Leases: g.shard.Leases(), Lease: lease}
		for _, i := range g.items {
			call.Jobs = append(call.Jobs, g.shard.Job(leases[i].ID))
			call.Epochs = append(call.Epochs, leases[i].Epoch)
		}
		return call.Call(), func(values []any) error {
			codes, err := call.Decode(values)
			for k, code := range codes {
				if err == nil && code == 0 {
					lost = append(lost, leases[g.items[k]])
				}
			}
			return err
		}
	})
	if len(failed) == 0 {
		return lost, nil
	}
	unanswered := &Unanswered{Err: errorOf(failed)}
	for _, f := range failed {
		for _, i := range f.items {
			unanswered.Leases = append(unanswered.Leases, leases[i])
		}
	}
	return lost, unanswered
}
