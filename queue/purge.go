package queue

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/policies"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Bounds of Purge and ReplayAll.
const (
	filterIDs  = 1000            // ids in one filter
	sweptMost  = 10_000          // jobs that one call changes
	sweepTime  = 5 * time.Second // after which a call that has changed some ends
	sweepPage  = 100             // jobs of one read
	purgeMost  = 50              // jobs of one script call
	replayMost = 10              // jobs of one exchange, in which each is a script call
)

// sweepRest is how long a sweep rests between two steps at most, for each sweep of the process.
// Else a sweep that is alone rests for as long as the step took, and n together leave Redis half of
// the time, too. Without it, and with longer steps, submissions took 10 ms instead of 3 beside a
// purge, and 21 beside two replays; they take 5.
const sweepRest = 100 * time.Millisecond

// beginSweep counts a sweep until its end is called.
func (q *Queue) beginSweep() (end func()) {
	q.sweeps.Add(1)
	return func() { q.sweeps.Add(-1) }
}

// rest waits after a step of a sweep that began then, and returns when the next one begins. What
// the way to Redis takes of a step is left out.
func (q *Queue) rest(ctx context.Context, began time.Time) time.Time {
	n := time.Duration(q.sweeps.Load())
	select {
	case <-time.After(min((2*n-1)*(time.Since(began)-2*q.store.Way()), n*sweepRest)):
	case <-ctx.Done():
	}
	return time.Now()
}

// Filter selects jobs of one tenant. An empty or zero field does not restrict the selection.
type Filter struct {
	IDs []string `json:"ids,omitempty"` // at most 1,000
	// State of Purge: ListQueued, ListScheduled, ListRetrying or ListDead.
	State ListState `json:"state,omitempty"`
	Route string    `json:"route,omitempty"`
	// Error is text that the last error contains; see Job.Failed.
	Error string `json:"error,omitempty"`
	// CreatedBefore is zero for jobs that exist when the call begins.
	CreatedBefore time.Time `json:"created_before,omitzero"`
}

// Failed reports whether the last error of the job contains the text, in any case: the message, the
// detail, or what the upstream answered.
func (j Job) Failed(text string) bool {
	if j.LastError == nil {
		return false
	}
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), strings.ToLower(text)) }
	return has(j.LastError.Message) || has(j.LastError.Detail) || j.Response != nil && has(string(j.Response.Body))
}

func (f Filter) equal(g Filter) bool {
	return slices.Equal(f.IDs, g.IDs) && f.State == g.State && f.Route == g.Route && f.Error == g.Error &&
		f.CreatedBefore.Equal(g.CreatedBefore)
}

// Swept is the result of Purge or ReplayAll. One call changes a bounded number of jobs. With More,
// others may be left: call again with the same filter and this CreatedBefore.
type Swept struct {
	Count         int64             // changed jobs
	More          bool              // the call has reached its bound
	CreatedBefore time.Time         // jobs created later were left unchanged
	Refusal       *shaper.Admission // of ReplayAll: why a job was refused; none was tried after it
	RefusedRoute  string            // of that job
}

// Purge cancels the waiting jobs of the filter and deletes the dead ones. It skips leased jobs and
// jobs with a pending callback. On an error some of the jobs may be gone. Errors: ErrUnavailable.
func (q *Queue) Purge(ctx context.Context, tenant string, f Filter) (Swept, error) {
	states := []ListState{ListRetrying, ListScheduled, ListQueued, ListDead}
	purge := func(jobs []Job) (count int64, _ *shaper.Admission, err error) {
		codes, err := q.discard(ctx, tenant, jobs, true)
		for _, code := range codes {
			if code != scripts.JobConflict { // a job that is absent now was deleted by a retry of this call
				count++
			}
		}
		return count, nil, err
	}
	return q.sweep(ctx, tenant, f, states, purgeMost, purge)
}

// ReplayAll queues the dead jobs of the filter again, the oldest last, until one is refused. It
// passes over those that the tenant may not have, and the refusal is theirs if all others fit.
// attempts returns the maximum number of deliveries of a job. Errors: ErrUnavailable.
func (q *Queue) ReplayAll(
	ctx context.Context, tenant string, f Filter, attempts func(Job) int,
) (Swept, error) {
	var passed *shaper.Admission // the refusal of a job that was passed over
	refused, passedRoute := "", ""
	replay := func(jobs []Job) (count int64, refusal *shaper.Admission, err error) {
		done, err := q.replay(ctx, tenant, jobs, func(j Job) Replaying { return Replaying{MaxAttempts: attempts(j)} })
		for i, r := range done {
			switch {
			case r.admission.Outcome == shaper.Admitted:
				count++
			case r.admission.Outcome == shaper.Denied, r.admission.Outcome == shaper.TypeDenied:
				passed, passedRoute = &r.admission, jobs[i].Route
			case r.code == scripts.JobDone && refusal == nil:
				refusal, refused = &r.admission, jobs[i].Route
			}
		}
		return count, refusal, err
	}
	swept, err := q.sweep(ctx, tenant, f, []ListState{ListDead}, replayMost, replay)
	if swept.Refusal == nil && !swept.More {
		swept.Refusal, refused = passed, passedRoute
	}
	swept.RefusedRoute = refused
	return swept, err
}

// sweep passes the filter's jobs in the given states to do, at most size at a time, until do
// returns a refusal or an error.
func (q *Queue) sweep(
	ctx context.Context, tenant string, f Filter, states []ListState, size int,
	do func([]Job) (count int64, refusal *shaper.Admission, err error),
) (swept Swept, err error) {
	if len(f.IDs) > filterIDs {
		return Swept{}, fmt.Errorf("queue: a filter of %d ids, want at most %d", len(f.IDs), filterIDs)
	}
	if f.State != "" {
		states = slices.DeleteFunc(states, func(s ListState) bool { return s != f.State })
	}
	defer q.beginSweep()()
	start := time.Now()
	swept.CreatedBefore = f.CreatedBefore
	if swept.CreatedBefore.IsZero() {
		_, now, err := q.scanTenant(ctx, policies.Tenant(tenant))
		if err != nil {
			return swept, err
		}
		swept.CreatedBefore = now.Time().Add(time.Microsecond) // a job of this very instant exists
	}
	// Where it finds nothing to do, an earlier call may have done it.
	defer func() {
		if err == nil {
			err = q.confirm(ctx, tenant)
		}
	}()
	step := time.Now()
	for page, err := range q.candidates(ctx, tenant, f, states) {
		if err != nil {
			return swept, err
		}
		page = slices.DeleteFunc(page, func(j Job) bool {
			return !slices.Contains(states, ListState(j.State.String())) || f.Route != "" && j.Route != f.Route ||
				!j.Created.Before(swept.CreatedBefore) || f.Error != "" && !j.Failed(f.Error)
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
			step = q.rest(ctx, step)
		}
		if len(page) == 0 {
			step = q.rest(ctx, step)
		}
	}
	return swept, nil
}

// confirm waits until replicas have what is stored in the shards of a tenant.
func (q *Queue) confirm(ctx context.Context, tenant string) error {
	for _, shard := range q.policies.Current().Shards(tenant) {
		if err := q.store.Confirm(ctx, shard.Clock()); err != nil {
			return err
		}
	}
	return nil
}

// candidates reads pages of the tenant's jobs. A page may hold jobs that the filter refuses.
func (q *Queue) candidates(
	ctx context.Context, tenant string, f Filter, states []ListState,
) iter.Seq2[[]Job, error] {
	return func(yield func([]Job, error) bool) {
		if len(f.IDs) > 0 {
			ids := slices.DeleteFunc(slices.Clone(f.IDs), func(id string) bool {
				_, err := q.shardOf(tenant, id)
				return err != nil
			})
			yield(q.read(ctx, store.EncodeName(tenant), ids))
			return
		}
		for _, state := range states {
			for l := (List{Tenant: tenant, State: state, Route: f.Route, Limit: sweepPage}); ; {
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

// discard cancels waiting jobs of a tenant and, if dead, deletes dead ones.
func (q *Queue) discard(ctx context.Context, tenant string, jobs []Job, dead bool) ([]scripts.JobCode, error) {
	calls, at := map[store.ShardKeys]*scripts.CancelCall{}, map[store.ShardKeys][]int{} // at: which of the jobs
	for i, j := range jobs {
		shard, ok := q.store.ShardOfID(j.ID)
		if !ok {
			return nil, ErrNotFound
		}
		if calls[shard] == nil {
			calls[shard] = &scripts.CancelCall{
				Clock: shard.Clock(), Due: shard.Due(), Expires: shard.Expires(), Outbox: shard.Outbox(),
				Tenant: store.EncodeName(tenant), Horizon: q.horizon, Retention: q.retention, Dead: dead,
			}
		}
		calls[shard].Jobs, at[shard] = append(calls[shard].Jobs, shard.Job(j.ID)), append(at[shard], i)
	}
	codes := make([]scripts.JobCode, len(jobs))
	for shard, call := range calls {
		found, err := store.Invoke(ctx, q.store.RunDurable, *call)
		if err != nil {
			return nil, err
		}
		for n, code := range found {
			codes[at[shard][n]] = code
		}
	}
	return codes, nil
}
