package queue

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// result is what a settled delivery leaves in the record.
type result struct {
	Error    *JobError `json:"e,omitempty"`
	Response *Response `json:"r,omitempty"`
	Log      []Attempt `json:"l,omitempty"`
}

// Job reads one job of the tenant. ErrNotFound, ErrUnavailable.
func (q *Queue) Job(ctx context.Context, tenant, id string) (Job, error) {
	shard, err := q.shardOf(tenant, id)
	if err != nil {
		return Job{}, err
	}
	return q.status(ctx, shard, EncodeName(tenant), id)
}

// status reads one job of the tenant, which is named as in keys.
func (q *Queue) status(ctx context.Context, shard ShardKeys, tenant, id string) (Job, error) {
	call := lua.StatusCall{Clock: shard.Clock(), Job: shard.Job(id), Tenant: tenant, Baseline: q.encoded()}
	status, err := invoke(ctx, q.run, call)
	if err != nil {
		return Job{}, err
	}
	if !status.Found {
		return Job{}, ErrNotFound
	}
	j, err := jobOfStatus(id, status)
	return j, unavailable(err)
}

func jobOfStatus(id string, status lua.Status) (Job, error) {
	r, err := lua.DecodeRecord(status.Record)
	if err != nil {
		return Job{}, err
	}
	j := jobOf(id, r)
	j.Position, j.EstimatedStart = status.Position, status.Start.Time()
	return j, nil
}

// shardOf finds the shard of a job and hides jobs of other tenants already where their ids cannot be this one's.
func (q *Queue) shardOf(tenant, id string) (ShardKeys, error) {
	i, ok := shardOfID(id, q.keys.Len())
	if !ok || q.keys.ShardOf(tenant).Index != i {
		return ShardKeys{}, ErrNotFound
	}
	return q.keys.Shard(i), nil
}

// jobOf is the record as a client may see it, without its place in the queue.
func jobOf(id string, r lua.Record) Job {
	j := Job{
		ID: id, Tenant: r.Tenant, Route: r.Route, Type: r.Type, State: r.State, Attempts: r.Attempts, MaxAttempts: r.MaxAttempts,
		Created: r.Created.Time(), Started: r.Stamp.Time(),
	}
	switch {
	case r.State.Done():
		j.Finished = r.At.Time()
	case r.State == shaper.Scheduled || r.State == shaper.Retrying:
		j.Scheduled = r.At.Time()
	}
	var res result
	if len(r.Result) > 0 && json.Unmarshal(r.Result, &res) == nil { // one that cannot be read is left out: the state still holds
		j.LastError, j.Response, j.Log = res.Error, res.Response, res.Log
	}
	if r.State == shaper.Dead && r.Outcome == 'x' {
		j.LastError = &JobError{Message: "the lease ran out too often: its workers were not heard of in time", At: r.At.Time()}
	}
	return j
}

// Cancel ends a waiting job; cancelling it again is no error. ErrNotFound; ErrConflict with the job when it is leased or done.
func (q *Queue) Cancel(ctx context.Context, tenant, id string) (Job, error) {
	if _, err := q.shardOf(tenant, id); err != nil {
		return Job{}, err
	}
	codes, err := q.discard(ctx, tenant, []Job{{ID: id}}, false)
	if err != nil {
		return Job{}, err
	}
	return q.after(ctx, tenant, id, codes[0])
}

// after reads the job once more and joins it with what the script said of it.
func (q *Queue) after(ctx context.Context, tenant, id string, code lua.JobCode) (Job, error) {
	if code == lua.JobAbsent {
		return Job{}, ErrNotFound
	}
	j, err := q.Job(ctx, tenant, id)
	if err == nil && code == lua.JobConflict {
		err = fmt.Errorf("%w %s", ErrConflict, j.State)
	}
	return j, err
}

// Replay brings a dead job back through its bucket, with fresh attempts, at most maxAttempts of them. ErrNotFound; ErrConflict, with the
// job in the verdict, when it is not dead. The verdict's outcome is Admitted, Full
// or Draining.
func (q *Queue) Replay(ctx context.Context, tenant, id string, maxAttempts int) (Verdict, error) {
	shard, err := q.shardOf(tenant, id)
	if err != nil {
		return Verdict{}, err
	}
	call := q.replayCall(shard, tenant, id, maxAttempts)
	values, err := q.run(ctx, call.Call())
	if err != nil {
		return Verdict{}, err
	}
	code, admission, err := call.Decode(values)
	if err != nil {
		return Verdict{}, unavailable(err)
	}
	v := Verdict{Admission: admission}
	v.Job, err = q.after(ctx, tenant, id, code)
	return v, err
}
