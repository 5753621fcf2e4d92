package queue

import (
	"cmp"
	"context"
	"time"

	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Completions claims at most most ended jobs of the shard that have a callback URL. Those that
// HandedOver does not acknowledge within the lease are claimed again later. more reports that
// others wait. After an error (ErrUnavailable), a call with the same name returns the same
// completions; every other call needs a new name.
func (b *Broker) Completions(
	ctx context.Context, shard int, name string, most int, lease time.Duration,
) (list []Completion, more bool, err error) {
	s := b.store.Shard(shard)
	call := scripts.ClaimCall{
		Clock: s.Clock(), Outbox: s.Outbox(), Claim: s.Claim(), Name: name, Max: most, Lease: lease,
	}
	claim, err := store.Invoke(ctx, b.store.RunPatient, call)
	if err != nil {
		return nil, false, err
	}
	for _, c := range claim.Jobs {
		r, err := scripts.DecodeRecord(c.Record)
		if err != nil {
			// It stays in the outbox and is claimed again after the lease.
			b.log.Error("a stored job cannot be read", "id", c.ID, "error", err)
			continue
		}
		failed := openRecord(b.box, c.ID, &r)
		res, _, err := decodeResult(b.box, tenantOf(r.Flow), c.ID, r.Result, len(r.Result))
		if failed = cmp.Or(failed, err); failed != nil {
			b.log.Error("the callback of a job waits: what its client wrote cannot be decrypted", "id", c.ID, "error", failed)
			continue
		}
		list = append(list, Completion{
			Job: jobOf(c.ID, r, res, nil), Epoch: r.Epoch, CallbackURL: r.CallbackURL, Shard: shard, Shards: b.Shards(),
		})
	}
	return list, claim.More, nil
}

// HandedOver acknowledges completions of a shard that were enqueued. A repeat changes nothing.
func (b *Broker) HandedOver(ctx context.Context, shard int, list []Completion) error {
	s := b.store.Shard(shard)
	call := scripts.HandedCall{Clock: s.Clock(), Outbox: s.Outbox(), Retention: b.retention}
	for _, c := range list {
		call.Jobs = append(call.Jobs, scripts.HandedJob{Key: s.Job(c.Job.ID), Epoch: c.Epoch, State: c.Job.State})
	}
	_, err := b.store.RunPatient(ctx, call.Call())
	crash.At("after-handed-over")
	return store.Unavailable(err)
}
