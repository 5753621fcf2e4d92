// Package apitest has a queue in memory for tests of the API and of its clients. It decides
// admissions with the real arithmetic of package shaper, but no job leaves by itself: a test ends
// jobs with Finish.
//
// The embedded engine does not replace it, because tests need what no engine does at will: a signal
// without an end, a record that is gone, a purge of two jobs at a time. The tests of api/client,
// which need least of this, take 0.18 s of a processor; on the engine they took 0.46 s and 38 more
// lines.
package apitest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Fake is a queue in memory. The zero value is not usable, see New.
type Fake struct {
	SweptMost int64            // jobs that one Purge or ReplayAll changes; set it before use
	Shared    queue.Pool       // figures of every pool but the depth; set them before use
	Flows     []queue.PoolFlow // that wait in every pool; set them before use
	// Baseline holds the policies below the API overrides; set it before use. Admissions use only
	// its defaults.
	Baseline shaper.Baseline

	mu        sync.Mutex
	failure   error
	agreement *queue.Agreement // nil: in force
	seq       int
	jobs      map[string]*stored
	keys      map[string]string // tenant NUL key → id
	tenants   map[string]*tenant
	pools     map[string]*tenant // settings of pools that were changed
	watchers  map[string][]chan struct{}
	watching  int
	ring      []queue.Key // API keys
	found     int
	sessions  map[[sha256.Size]byte]time.Time // ends of operators' sessions
	asked     int

	held    map[string]queue.Figures // by tenant
	workers reports.Workers
}

type stored struct {
	queue.Job
	submission queue.Submission
}

type tenant struct {
	overrides          shaper.Overrides
	flow               shaper.Flow
	admitted, rejected int64
	reason             string
	actor              string
	revision           int64
	history            []queue.HistoryEntry
}

// New returns an empty queue.
func New() *Fake {
	return &Fake{
		SweptMost: 10_000, Baseline: shaper.Baseline{Defaults: shaper.DefaultPolicy()},
		jobs: map[string]*stored{}, keys: map[string]string{}, tenants: map[string]*tenant{},
		pools: map[string]*tenant{}, sessions: map[[sha256.Size]byte]time.Time{},
		watchers: map[string][]chan struct{}{},
	}
}

// Fail makes every call fail with err from now on; nil ends that.
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// Watching is the number of watches that were begun and not stopped.
func (f *Fake) Watching() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watching
}

// Submission is the submission of the job.
func (f *Fake) Submission(id string) queue.Submission {
	f.mu.Lock()
	defer f.mu.Unlock()
	if j := f.jobs[id]; j != nil {
		return j.submission
	}
	return queue.Submission{}
}

// Actor is the actor of the last change of the tenant.
func (f *Fake) Actor(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tenant(name).actor
}

// IDs are the ids of all jobs, oldest first.
func (f *Fake) IDs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.jobs))
}

// endings are the events that end a delivery in these states.
var endings = map[shaper.State]shaper.Event{
	shaper.Succeeded: shaper.Succeed, shaper.Dead: shaper.Die, shaper.Retrying: shaper.Retry,
}

// Finish brings the job into the state and signals its watchers.
func (f *Fake) Finish(id string, state shaper.State, r *queue.Response, e *queue.JobError) {
	f.Change(id, state, r, e)
	f.Signal(id)
}

// Change brings the job into the state without a signal.
func (f *Fake) Change(id string, state shaper.State, r *queue.Response, e *queue.JobError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[id]
	if j.State.Waiting() {
		f.leave(j)
	}
	j.State, j.Response, j.LastError = state, r, e
	j.Attempts++
	now := time.Now()
	j.Started = now
	if event, ended := endings[state]; ended && (e != nil || len(j.Log) > 0) {
		a := queue.Attempt{Number: j.Attempts, Event: event, At: now}
		if e != nil {
			a.Status, a.Message = e.Status, e.Message
		} else if r != nil {
			a.Status = r.Status
		}
		j.Log = append(slices.Clip(j.Log), a) // a new one, because readers have the old one
	}
	if state.Done() {
		j.Finished = now
	}
}

// Took sets the duration of the last delivery of a job.
func (f *Fake) Took(id string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[id]
	j.Started = j.Finished.Add(-d)
}

// Signal wakes the watchers of the job, whatever its state.
func (f *Fake) Signal(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ch := range f.watchers[id] {
		select {
		case ch <- struct{}{}:
		default: // a signal is pending
		}
	}
}

// Forget deletes the job but keeps its idempotency key.
func (f *Fake) Forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[id]
	j.Job = queue.Job{ID: id, Tenant: j.Tenant, Route: j.Route, Type: j.Type}
}

func (f *Fake) leave(j *stored) {
	flow := &f.tenant(j.Tenant).flow
	flow.Depth--
	if j.State == shaper.Queued {
		flow.Queued--
		flow.Cost -= j.submission.Cost
	}
	j.Position, j.EstimatedStart = 0, time.Time{}
}

func (f *Fake) tenant(name string) *tenant {
	t := f.tenants[name]
	if t == nil {
		t = &tenant{flow: shaper.Flow{Bucket: shaper.NewBucket(shaper.DefaultPolicy().Paces())}}
		f.tenants[name] = t
	}
	return t
}

func (t *tenant) policy() shaper.Policy { return t.overrides.Over(shaper.DefaultPolicy()) }

// NewID implements api.Admitter.
func (f *Fake) NewID(string, string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	return fmt.Sprintf("%028s", strconv.FormatInt(int64(f.seq), 32)), nil
}

// Submit implements api.Admitter.
func (f *Fake) Submit(_ context.Context, s queue.Submission) (queue.Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return queue.Decision{}, f.failure
	}
	return f.admit(s, 1), nil
}

func (f *Fake) admit(s queue.Submission, size int64) queue.Decision {
	t := f.tenant(s.Tenant)
	key := s.Tenant + "\x00" + s.IdempotencyKey
	if id, known := f.keys[key]; known && s.IdempotencyKey != "" {
		j := f.jobs[id]
		a := shaper.Admission{
			Outcome: shaper.Replayed, Depth: t.flow.Depth, Capacity: t.policy().Capacity,
			Rate: t.policy().DrainRate(),
		}
		a.Remaining = a.Capacity - a.Depth
		if !bytes.Equal(j.submission.Payload, s.Payload) {
			return queue.Decision{Admission: shaper.Admission{Outcome: shaper.KeyReused}}
		}
		return queue.Decision{Admission: a, Job: j.Job}
	}
	now := shaper.InstantOf(time.Now())
	if a, full := f.poolFull(s.Route, size, now); full {
		t.rejected++
		return queue.Decision{Admission: a}
	}
	flow, a := shaper.Admit(t.flow, t.policy(), now, shaper.Request{
		Size: size, Bytes: int64(len(s.Payload)), Payload: int64(len(s.Payload)), Cost: s.Cost,
		Delay: s.Delay, MaxWait: s.MaxWait,
	}, nil)
	t.flow = flow
	if a.Outcome != shaper.Admitted {
		t.rejected++
		return queue.Decision{Admission: a}
	}
	t.admitted++
	j := &stored{submission: s, Job: queue.Job{
		ID: s.ID, Tenant: s.Tenant, Route: s.Route, Type: s.Type, Cost: s.Cost, State: shaper.Queued, Position: a.Position,
		EstimatedStart: a.Start.Time(), MaxAttempts: s.MaxAttempts, Created: now.Time(),
	}}
	if s.Delay > 0 {
		j.State, j.Scheduled = shaper.Scheduled, now.Add(s.Delay).Time()
	}
	f.jobs[s.ID] = j
	if s.IdempotencyKey != "" {
		f.keys[key] = s.ID
	}
	return queue.Decision{Admission: a, Job: j.Job}
}

// SubmitBatch implements api.Admitter.
func (f *Fake) SubmitBatch(
	_ context.Context, batch []queue.Submission, atomic bool,
) ([]queue.Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return nil, f.failure
	}
	out := make([]queue.Decision, len(batch))
	if atomic {
		for _, s := range batch {
			if f.Baseline.PoolOf(s.Route) != f.Baseline.PoolOf(batch[0].Route) {
				return nil, shaper.Problems{{Field: "atomic", Value: "true",
					Rule: "must be false for a batch whose routes are in different pools"}}
			}
		}
		t := f.tenant(batch[0].Tenant)
		size := int64(len(batch))
		_, a := shaper.Admit(t.flow, t.policy(), shaper.InstantOf(time.Now()),
			shaper.Request{Size: size, Cost: 1}, nil)
		if a.Outcome != shaper.Admitted {
			for i := range out {
				out[i].Admission = a
			}
			return out, nil
		}
	}
	for i, s := range batch {
		out[i] = f.admit(s, 1)
	}
	return out, nil
}

func (f *Fake) find(name, id string) (*stored, error) {
	if f.failure != nil {
		return nil, f.failure
	}
	j := f.jobs[id]
	if j == nil || j.Tenant != name {
		return nil, queue.ErrNotFound
	}
	return j, nil
}

// Job implements api.Jobs.
func (f *Fake) Job(_ context.Context, name, id string) (queue.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find(name, id)
	if err != nil {
		return queue.Job{}, err
	}
	return j.Job, nil
}

// Find implements api.Jobs.
// Answer has none: no test forwards through a Fake.
func (f *Fake) Answer(ctx context.Context, name, id string) (queue.Job, *queue.Answer, error) {
	j, err := f.Job(ctx, name, id)
	return j, nil, err
}

func (f *Fake) Find(_ context.Context, id string) (queue.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if j := f.jobs[id]; j != nil && f.failure == nil {
		return j.Job, nil
	}
	return queue.Job{}, cmp.Or(f.failure, queue.ErrNotFound)
}

// Payload implements api.Jobs.
func (f *Fake) Payload(_ context.Context, name, id string, most int) ([]byte, int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find(name, id)
	if err != nil {
		return nil, 0, err
	}
	payload := j.submission.Payload
	switch {
	case j.State == 0 || j.State.Done() && j.State != shaper.Dead:
		return nil, 0, nil
	case len(payload) > most:
		return nil, len(payload), nil
	}
	return payload, len(payload), nil
}

// List implements api.Jobs; a cursor is the last id of the page before.
func (f *Fake) List(_ context.Context, l queue.List) (queue.Page, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return queue.Page{}, f.failure
	}
	if l.Cursor != "" && f.jobs[l.Cursor] == nil {
		return queue.Page{}, queue.ErrCursor
	}
	var page queue.Page
	for _, j := range f.jobs {
		in := j.State != 0 && (l.State == queue.ListAll || j.State.String() == string(l.State)) &&
			(l.Type == "" || j.Type == l.Type) && (l.Error == "" || j.Failed(l.Error)) &&
			!j.Created.Before(l.CreatedAfter) && (l.CreatedBefore.IsZero() || j.Created.Before(l.CreatedBefore)) &&
			(l.IdempotencyKey == "" || j.submission.IdempotencyKey == l.IdempotencyKey)
		if in && j.Tenant == l.Tenant && (l.Route == "" || j.Route == l.Route) &&
			(l.Cursor == "" || j.ID < l.Cursor) {
			page.Jobs = append(page.Jobs, j.Job)
		}
	}
	slices.SortFunc(page.Jobs, func(a, b queue.Job) int { return strings.Compare(b.ID, a.ID) })
	page.Cost = 1 + len(page.Jobs)
	if len(page.Jobs) > l.Limit {
		page.Jobs = page.Jobs[:l.Limit]
		page.Next = page.Jobs[l.Limit-1].ID
	}
	return page, nil
}

// Watch implements api.Jobs.
func (f *Fake) Watch(_ context.Context, id string) (<-chan struct{}, func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return nil, nil, f.failure
	}
	ch := make(chan struct{}, 1)
	f.watchers[id] = append(f.watchers[id], ch)
	f.watching++
	return ch, sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watching--
		f.watchers[id] = slices.DeleteFunc(f.watchers[id], func(c chan struct{}) bool { return c == ch })
	}), nil
}

// Hold sets the figures of a tenant's hold and dead letters.
func (f *Fake) Hold(tenant string, figures queue.Figures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = map[string]queue.Figures{}
	}
	f.tenant(tenant)
	f.held[tenant] = figures
}

// Work sets the result of Workers.
func (f *Fake) Work(w reports.Workers) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers = w
}

// Workers implements api.Figures: the result that Work has set.
func (f *Fake) Workers(context.Context) (reports.Workers, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.workers, f.failure
}

// Agreement implements api.Health: the value of SetAgreement, by default in force.
func (f *Fake) Agreement() queue.Agreement {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.agreement == nil {
		return queue.Agreement{InForce: true}
	}
	return *f.agreement
}

// SetAgreement sets the agreement that Agreement and StoreHealth report.
func (f *Fake) SetAgreement(a queue.Agreement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.agreement = &a
}

// StoreHealth implements api.Figures.
func (f *Fake) StoreHealth(context.Context) (queue.StoreHealth, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := queue.StoreHealth{Engine: queue.EngineEmbedded}
	if f.agreement != nil {
		h.Differing, h.Abandoned = f.agreement.Differing, f.agreement.Abandoned
	}
	return h, f.failure
}

// Waits implements api.Figures: of the jobs that Finish ended.
func (f *Fake) Waits(_ context.Context, tenant string, most int) ([]time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var waits []time.Duration
	for _, j := range f.jobs {
		if j.Tenant == tenant && j.State == shaper.Succeeded && j.Attempts == 1 && len(waits) < most {
			waits = append(waits, j.Started.Sub(j.Created))
		}
	}
	slices.Sort(waits)
	return waits, f.failure
}

// Ping implements api.Health.
func (f *Fake) Ping(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

// Totals implements api.Health.
func (f *Fake) Totals(context.Context) (queue.Totals, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var total queue.Totals
	for _, t := range f.tenants {
		total.Depth += t.flow.Depth
		total.Admitted += t.admitted
		total.Rejected += t.rejected
	}
	return total, f.failure
}
