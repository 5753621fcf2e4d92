package queue

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// Bounds of Purge and ReplayAll.
const (
	filterIDs  = 1000            // ids in one filter
	sweptMost  = 10_000          // jobs that one call changes
	sweepTime  = 5 * time.Second // after which a call that has changed some ends
	purgeMost  = 200             // jobs of one script call
	replayMost = 100             // jobs of one exchange
)

// Filter chooses jobs of one tenant. What is empty does not restrict the choice.
type Filter struct {
	IDs           []string  // at most 1,000
	State         ListState // of Purge: ListQueued, ListScheduled, ListRetrying or ListDead
	Route         string
	Error         string    // the message of the last error contains it, or its detail
	CreatedBefore time.Time // zero: jobs that exist when the call begins
}

// Swept is what Purge or ReplayAll did. One call changes a bounded number of jobs: More says that others may be left, for which the same
// filter with this CreatedBefore is to be given again.
type Swept struct {
	Count         int64
	More          bool
	CreatedBefore time.Time
	Refusal       *shaper.Admission // of ReplayAll: why a job found no place, after which none was tried
}

// Purge cancels the waiting jobs of the filter and deletes the dead ones. Leased jobs are let be, and so are those that nobody was called
// back for yet. On an error some of them may be gone. Errors: ErrUnavailable.
func (q *Queue) Purge(ctx context.Context, tenant string, f Filter) (Swept, error) {
	states := []ListState{ListRetrying, ListScheduled, ListQueued, ListDead}
	return q.sweep(ctx, tenant, f, states, purgeMost, func(jobs []Job) (int64, *shaper.Admission, error) {
		codes, err := q.discard(ctx, tenant, jobs, true)
		var count int64
		for _, code := range codes {
			if code != lua.JobConflict { // one that is absent now was there a moment ago: an earlier sending of this call has deleted it
				count++
			}
		}
		return count, nil, err
	})
}

// ReplayAll brings the dead jobs of the filter back through their bucket, the oldest last, until one finds no place. attempts says how many
// deliveries a job may have. Errors: ErrUnavailable.
func (q *Queue) ReplayAll(ctx context.Context, tenant string, f Filter, attempts func(Job) int) (Swept, error) {
	return q.sweep(ctx, tenant, f, []ListState{ListDead}, replayMost, func(jobs []Job) (count int64, refusal *shaper.Admission, err error) {
		shard := q.keys.ShardOf(tenant)
		calls, sent := make([]lua.ReplayCall, len(jobs)), make([]lua.Call, len(jobs))
		for i, j := range jobs {
			calls[i] = q.replayCall(shard, tenant, j.ID, attempts(j))
			sent[i] = calls[i].Call()
		}
		for i, r := range lua.RunAll(ctx, q.engine.fast, q.observe, sent) {
			if r.Err != nil {
				return count, nil, unavailable(r.Err)
			}
			code, admission, err := calls[i].Decode(r.Values)
			if err != nil {
				return count, nil, unavailable(err)
			}
			switch {
			case code == lua.JobDone:
				count++
			case refusal == nil && (code == lua.JobFull || code == lua.JobFullOfBytes || code == lua.JobDraining):
				refusal = &admission
			}
		}
		return count, refusal, nil
	})
}

// sweep hands the filter's jobs in the given states to do, at most size at a time, until it is told to stop.
func (q *Queue) sweep(ctx context.Context, tenant string, f Filter, states []ListState, size int, do func([]Job) (int64, *shaper.Admission, error)) (Swept, error) {
	if len(f.IDs) > filterIDs {
		return Swept{}, fmt.Errorf("queue: a filter of %d ids, want at most %d", len(f.IDs), filterIDs)
	}
	start, swept := time.Now(), Swept{CreatedBefore: f.CreatedBefore}
	if swept.CreatedBefore.IsZero() {
		_, now, err := q.scanTenant(ctx, tenant)
		if err != nil {
			return swept, err
		}
		swept.CreatedBefore = now.Time().Add(time.Microsecond) // a job of this very instant exists
	}
	for page, err := range q.candidates(ctx, tenant, f, states) {
		if err != nil {
			return swept, err
		}
		page = slices.DeleteFunc(page, func(j Job) bool {
			return !slices.Contains(states, ListState(j.State.String())) || f.State != "" && j.State.String() != string(f.State) ||
				f.Route != "" && j.Route != f.Route || !j.Created.Before(swept.CreatedBefore) ||
				f.Error != "" && (j.LastError == nil || !strings.Contains(j.LastError.Message, f.Error) && !strings.Contains(j.LastError.Detail, f.Error))
		})
		for some := range slices.Chunk(page, size) {
			count, refusal, err := do(some)
			swept.Count += count
			if err != nil || refusal != nil {
				swept.Refusal = refusal
				return swept, err
			}
			if swept.Count >= sweptMost || swept.Count > 0 && time.Since(start) > sweepTime {
				swept.More = true
				return swept, nil
			}
		}
	}
	return swept, nil
}

// candidates reads pages of jobs, which the filter may still refuse.
func (q *Queue) candidates(ctx context.Context, tenant string, f Filter, states []ListState) func(yield func([]Job, error) bool) {
	const page = 500
	return func(yield func([]Job, error) bool) {
		if len(f.IDs) > 0 {
			jobs, err := q.readIDs(ctx, tenant, f.IDs)
			yield(jobs, err)
			return
		}
		for _, state := range states {
			if f.State != "" && state != f.State {
				continue
			}
			for l := (List{Tenant: tenant, State: state, Route: f.Route, Limit: page}); ; {
				p, err := q.List(ctx, l)
				if !yield(p.Jobs, err) || err != nil {
					return
				}
				if l.Cursor = p.Next; l.Cursor == "" {
					break
				}
			}
		}
	}
}

// readIDs reads those of the ids that are jobs of the tenant.
func (q *Queue) readIDs(ctx context.Context, tenant string, ids []string) ([]Job, error) {
	shard := q.keys.ShardOf(tenant)
	entries := make([]entry, 0, len(ids))
	for _, id := range ids {
		if _, err := q.shardOf(tenant, id); err == nil {
			entries = append(entries, entry{id: id})
		}
	}
	return q.read(ctx, shard, tenant, entries)
}

// discard cancels waiting jobs of a tenant and, if dead, deletes dead ones.
func (q *Queue) discard(ctx context.Context, tenant string, jobs []Job, dead bool) ([]lua.JobCode, error) {
	shard := q.keys.ShardOf(tenant)
	call := lua.CancelCall{
		Clock: shard.Clock(), Due: shard.Due(), Expires: shard.Expires(), Outbox: shard.Outbox(), Tenant: EncodeName(tenant), Baseline: q.encoded(),
		Horizon: q.horizon, Retention: q.retention, Dead: dead,
	}
	for _, j := range jobs {
		call.Jobs = append(call.Jobs, shard.Job(j.ID))
	}
	return invoke(ctx, q.run, call)
}

func (q *Queue) replayCall(shard ShardKeys, tenant, id string, attempts int) lua.ReplayCall {
	return lua.ReplayCall{
		Clock: shard.Clock(), Due: shard.Due(), Expires: shard.Expires(), Job: shard.Job(id), Tenant: EncodeName(tenant), Baseline: q.encoded(),
		Outbox: shard.Outbox(), Horizon: q.horizon, Tag: 1 + rand.Uint32N(1<<32-1), MaxAttempts: attempts, DeadCapacity: q.retention.DeadCapacity, DeadBytes: q.retention.DeadBytes,
	}
}
