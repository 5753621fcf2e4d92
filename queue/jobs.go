package queue

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// result is what a settled delivery leaves in the record: JSON and, after a zero byte, the answer
// to a forwarded request.
type result struct {
	Error      *JobError `json:"e,omitempty"`
	Response   *Response `json:"r,omitempty"`
	Log        []Attempt `json:"l,omitempty"`
	ActualCost *int64    `json:"c,omitempty"`

	answer []byte // as package httpmsg encodes it, or its first bytes; nil for none
	size   int    // of the whole answer
	at     int    // offset of the answer in the stored result
	sealed bool   // the result is stored encrypted
}

func (r result) encode(box *sealed.Box, tenant, id string) ([]byte, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("queue: encode a result: %w", err)
	}
	if box.Sealing() {
		return r.seal(box, tenant, id, raw), nil
	}
	if r.answer != nil {
		raw = append(append(raw, 0), r.answer...)
	}
	return raw, nil
}

// decodeResult reads a result of size bytes, of which raw are the first. ok is false where it is
// empty or unreadable, or raw ends before the answer. err, with ok false, says that it cannot be
// decrypted.
func decodeResult(box *sealed.Box, tenant, id string, raw []byte, size int) (r result, ok bool, err error) {
	if place, text, answer, at, answered, whole := cutResult(raw, size); whole {
		text, err := box.Open(place, tenant, id, text)
		if err != nil {
			return result{}, false, err
		}
		if json.Unmarshal(text, &r) != nil {
			return result{}, false, nil
		}
		if r.at, r.sealed = at, true; answered {
			r.size = answerSize(size - at)
			r.answer, err = openSegments(box, tenant, id, answer, 0, r.size)
		}
		return r, err == nil, err
	}
	text, answer, answered := bytes.Cut(raw, []byte{0})
	if len(text) == 0 || !answered && len(raw) < size || json.Unmarshal(text, &r) != nil {
		return result{}, false, nil
	}
	if answered {
		r.answer, r.at = answer, len(text)+1
		r.size = size - r.at
	}
	return r, true, nil
}

// Job reads one job of the tenant. Errors: ErrNotFound, ErrUnavailable.
func (q *Queue) Job(ctx context.Context, tenant, id string) (Job, error) {
	if _, err := q.shardOf(tenant, id); err != nil {
		return Job{}, err
	}
	return q.readOne(ctx, store.EncodeName(tenant), id)
}

// readOne reads a job of the tenant, which is named as in keys.
func (q *Queue) readOne(ctx context.Context, tenant, id string) (Job, error) {
	jobs, err := q.read(ctx, tenant, []string{id})
	if err != nil {
		return Job{}, err
	}
	if len(jobs) == 0 {
		return Job{}, ErrNotFound
	}
	return jobs[0], nil
}

// shardOf returns the shard of a job. ErrNotFound for an id that no job of the tenant can have.
func (q *Queue) shardOf(tenant, id string) (store.ShardKeys, error) {
	shard, ok := q.store.ShardOfID(id)
	if !ok || !q.policies.Current().Holds(shard, tenant) {
		return shard, ErrNotFound
	}
	return shard, nil
}

// jobOf is the record as clients see it, without its position in the queue. Its texts were opened
// with the error failed. res is its result.
func jobOf(id string, r scripts.Record, res result, failed error) Job {
	j := Job{
		ID: id, Tenant: r.Tenant, Route: r.Route, Type: r.Type, Cost: r.Cost, State: r.State,
		Attempts: r.Attempts, MaxAttempts: r.MaxAttempts, Created: r.Created.Time(), Started: r.Stamp.Time(),
	}
	switch {
	case r.State.Done():
		j.Finished = r.At.Time()
	case r.State == shaper.Scheduled || r.State == shaper.Retrying:
		j.Scheduled = r.At.Time()
	}
	j.LastError, j.Response, j.Log, j.ActualCost = res.Error, res.Response, res.Log, res.ActualCost
	j.Answer = res.answer
	if failed != nil { // the state still holds
		j.LastError = unreadable(failed)
	}
	if e := res.Error; r.Outcome == 'f' && e != nil && e.At.IsZero() { // by reclaim
		e.At = r.At.Time()
	}
	if r.State == shaper.Dead && r.Outcome == 'x' {
		j.LastError = &JobError{Message: ranOut, At: r.At.Time()}
	}
	return j
}

// ranOut is the error of a job that died by lost leases. Its record still has the error of the last
// delivery that failed, if any.
const ranOut = "the lease ran out too often: its workers stopped or were not heard of in time"

// Cancel ends a waiting job; a repeated call is no error. Errors: ErrNotFound, ErrUnavailable;
// ErrConflict, with the job, if it is leased or done.
func (q *Queue) Cancel(ctx context.Context, tenant, id string) (Job, error) {
	shard, err := q.shardOf(tenant, id)
	if err != nil {
		return Job{}, err
	}
	code, err := q.cancel(ctx, cancelsOf{tenant, shard}, Job{ID: id})
	if err != nil {
		return Job{}, err
	}
	return q.after(ctx, tenant, id, code)
}

// after reads the job again, and returns it with the error of the code.
func (q *Queue) after(ctx context.Context, tenant, id string, code scripts.JobCode) (Job, error) {
	if code == scripts.JobAbsent {
		return Job{}, ErrNotFound
	}
	j, err := q.Job(ctx, tenant, id)
	if err == nil && code == scripts.JobConflict {
		err = fmt.Errorf("%w %s", ErrConflict, j.State)
	}
	return j, err
}

// Replaying says how a dead job is queued again.
type Replaying struct {
	MaxAttempts int // that it gets anew
	// Tier is the one that the client's credential claims now, as in Submission; nil keeps the one
	// that was claimed last, for an operator.
	Tier *string
	Read *Job // the job, if the caller has read it already
}

// Replay queues a dead job again. The outcome of the decision is Admitted, Full, FullOfBytes,
// Draining, Denied or TypeDenied. Errors: ErrNotFound, ErrUnavailable; ErrConflict, with the job in
// the decision, if it is not dead.
func (q *Queue) Replay(ctx context.Context, tenant, id string, as Replaying) (v Decision, err error) {
	if _, err := q.shardOf(tenant, id); err != nil {
		return v, err
	}
	if as.Read == nil { // for its route, which a pool may have taken over, and its type
		dead, err := q.Job(ctx, tenant, id)
		if err != nil {
			return v, err
		}
		as.Read = &dead
	}
	done, err := q.replay(ctx, tenant, []Job{*as.Read}, func(Job) Replaying { return as })
	if err != nil {
		return v, err
	}
	v.Admission = done[0].admission
	// Without a position the call was sent twice, and the job has left since.
	if failed := as.Read.LastError; v.Outcome == shaper.Admitted && v.Position > 0 && (failed == nil || failed.Message != ranOut) {
		v.Job = *as.Read
		v.Job.State, v.Job.Attempts, v.Job.MaxAttempts = shaper.Queued, 0, as.MaxAttempts
		v.Job.Position, v.Job.EstimatedStart, v.Job.Finished = v.Position, v.Start.Time(), time.Time{}
		return v, nil
	}
	v.Job, err = q.after(ctx, tenant, id, done[0].code)
	return v, err
}

// replayed is what the script did with one job.
type replayed struct {
	code      scripts.JobCode
	admission shaper.Admission
}

// replay replays jobs of the tenant in one exchange. With an error it returns those before it.
func (q *Queue) replay(
	ctx context.Context, tenant string, jobs []Job, as func(Job) Replaying,
) ([]replayed, error) {
	calls, placed := make([]scripts.ReplayCall, len(jobs)), q.policies.Current()
	for i, j := range jobs {
		shard, ok := q.store.ShardOfID(j.ID)
		if !ok || j.Route != "" && placed.Placement(tenant, j.Route) != shard {
			return nil, fmt.Errorf("%w dead: its route %q has moved to another pool since; submit it again", ErrConflict, j.Route)
		}
		how := as(j)
		calls[i] = scripts.ReplayCall{
			Clock: shard.Clock(), Due: shard.Due(), Expires: shard.Expires(), Outbox: shard.Outbox(),
			Job: shard.Job(j.ID), Tenant: store.EncodeName(tenant), Horizon: q.horizon,
			Tag: 1 + rand.Uint32N(1<<32-1), MaxAttempts: how.MaxAttempts, Type: j.Type,
			DeadCapacity: q.retention.DeadCapacity, DeadBytes: q.retention.DeadBytes,
		}
		if how.Tier != nil {
			tier := store.TierName(*how.Tier)
			calls[i].Tier = &tier
		}
	}
	return store.InvokeAll(ctx, q.store, q.store.Durable, calls,
		func(c scripts.ReplayCall, values []any) (r replayed, err error) {
			r.code, r.admission, err = c.Decode(values)
			return r, err
		})
}
