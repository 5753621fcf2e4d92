package queue

import (
	"context"
	"time"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/crash"
)

// Completions hands the caller up to most of the shard's jobs that have ended and ask for a callback. They are its own for the lease;
// those that it has not reported with HandedOver by then are given out again. more says that others wait. Errors: ErrUnavailable, after
// which the same name brings the same completions.
//
// name is of this call: the same when it is made again after an error, another for another call.
func (q *Queue) Completions(ctx context.Context, shard int, name string, most int, lease time.Duration) (list []Completion, more bool, err error) {
	s := q.keys.Shard(shard)
	call := lua.ClaimCall{Clock: s.Clock(), Outbox: s.Outbox(), Claim: s.Claim(), Name: name, Max: most, Lease: lease}
	claim, err := invoke(ctx, q.sendPatient, call)
	if err != nil {
		return nil, false, err
	}
	for _, c := range claim.Jobs {
		r, err := lua.DecodeRecord(c.Record)
		if err != nil {
			// It stays in the outbox, and is looked at again after the lease: one job that cannot be read must not stop the others.
			q.log.Error("a stored job cannot be read", "id", c.ID, "error", err)
			continue
		}
		list = append(list, Completion{Job: jobOf(c.ID, r), Epoch: r.Epoch, CallbackURL: r.CallbackURL})
	}
	return list, claim.More, nil
}

// HandedOver ends the claim on completions of one shard that somebody else sees to from now on. Made again it changes nothing.
func (q *Queue) HandedOver(ctx context.Context, shard int, list []Completion) error {
	s := q.keys.Shard(shard)
	call := lua.HandedCall{Clock: s.Clock(), Outbox: s.Outbox(), Retention: q.retention}
	for _, c := range list {
		call.Jobs = append(call.Jobs, lua.HandedJob{Key: s.Job(c.Job.ID), Epoch: c.Epoch, State: c.Job.State})
	}
	_, err := q.sendPatient(ctx, call.Call())
	crash.At("after-handed-over")
	return unavailable(err)
}
