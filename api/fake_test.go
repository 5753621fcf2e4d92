package api

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

	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/internal/reports"
	session "github.com/7509e464/sluice/internal/sessions"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// fakeQueue is a queue in memory, see newFake. It decides admissions with the real arithmetic of
// package shaper, but no job leaves by itself: a test ends jobs with Finish. The embedded engine
// does not replace it, because tests need what no engine does at will: a signal without an end, a
// record that is gone, a purge of two jobs at a time.
type fakeQueue struct {
	SweptMost int64            // jobs that one Purge or ReplayAll changes; set it before use
	Shared    queue.Pool       // figures of every pool but the depth; set them before use
	Flows     []queue.PoolFlow // that wait in every pool; set them before use
	Early     time.Duration    // until an early watch is in force; set it before use
	// Baseline holds the policies below the API overrides; set it before use. Admissions use only
	// its defaults.
	Baseline shaper.Baseline

	mu        sync.Mutex
	silent    bool // no batch is answered
	failure   error
	agreement *queue.Agreement // nil: in force
	seq       int
	jobs      map[string]*fakeJob
	keys      map[string]string // tenant NUL key → id
	tenants   map[string]*fakeTenant
	pools     map[string]*fakeTenant // settings of pools that were changed
	watchers  map[string][]chan queue.End
	watching  int
	ring      []queue.Key // API keys
	found     int
	sessions  map[[sha256.Size]byte]session.Session
	asked     int
	accounts  []operators.Account
	callbacks map[string]queue.TenantCallbacks

	held    map[string]queue.Figures // by tenant
	workers reports.Workers
}

type fakeJob struct {
	queue.Job
	submission queue.Submission
}

type fakeTenant struct {
	overrides          shaper.Overrides
	flow               shaper.Flow
	admitted, rejected int64
	reason             string
	actor              string
	revision           int64
	history            []queue.HistoryEntry
}

func newFake() *fakeQueue {
	return &fakeQueue{
		SweptMost: 10_000, Baseline: shaper.Baseline{Defaults: shaper.DefaultPolicy()},
		jobs: map[string]*fakeJob{}, keys: map[string]string{}, tenants: map[string]*fakeTenant{},
		pools: map[string]*fakeTenant{}, sessions: map[[sha256.Size]byte]session.Session{},
		watchers: map[string][]chan queue.End{}, callbacks: map[string]queue.TenantCallbacks{},
	}
}

// ports are those of a server over the fake alone.
func (f *fakeQueue) ports() ports { return ports{f, f, f, f, f, f, f, f, f, f, f, f, f, &fakeTrail{}} }

// Fail makes every call fail with err from now on; nil ends that.
func (f *fakeQueue) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
}

// Watching is the number of watches that were begun and not stopped.
func (f *fakeQueue) Watching() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.watching
}

// Submission is the submission of the job.
func (f *fakeQueue) Submission(id string) queue.Submission {
	f.mu.Lock()
	defer f.mu.Unlock()
	if j := f.jobs[id]; j != nil {
		return j.submission
	}
	return queue.Submission{}
}

// Actor is the actor of the last change of the tenant.
func (f *fakeQueue) Actor(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tenant(name).actor
}

// IDs are the ids of all jobs, oldest first.
func (f *fakeQueue) IDs() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.jobs))
}

// endings are the events that end a delivery in these states.
var endings = map[shaper.State]shaper.Event{
	shaper.Succeeded: shaper.Succeed, shaper.Dead: shaper.Die, shaper.Retrying: shaper.Retry,
}

// Finish brings the job into the state and signals its watchers.
func (f *fakeQueue) Finish(id string, state shaper.State, r *queue.Response, e *queue.JobError) {
	f.Change(id, state, r, e)
	f.Signal(id)
}

// Change brings the job into the state without a signal.
func (f *fakeQueue) Change(id string, state shaper.State, r *queue.Response, e *queue.JobError) {
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
func (f *fakeQueue) Took(id string, d time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[id]
	j.Started = j.Finished.Add(-d)
}

// Signal wakes the watchers of the job, whatever its state.
func (f *fakeQueue) Signal(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, ch := range f.watchers[id] {
		select {
		case ch <- queue.End{}:
		default: // a signal is pending
		}
	}
}

// Forget deletes the job but keeps its idempotency key.
func (f *fakeQueue) Forget(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j := f.jobs[id]
	j.Job = queue.Job{ID: id, Tenant: j.Tenant, Route: j.Route, Type: j.Type}
}

func (f *fakeQueue) leave(j *fakeJob) {
	flow := &f.tenant(j.Tenant).flow
	flow.Depth--
	if j.State == shaper.Queued {
		flow.Queued--
		flow.Cost -= j.submission.Cost
	}
	j.Position, j.EstimatedStart = 0, time.Time{}
}

func (f *fakeQueue) tenant(name string) *fakeTenant {
	t := f.tenants[name]
	if t == nil {
		t = &fakeTenant{flow: shaper.Flow{Bucket: shaper.NewBucket(shaper.DefaultPolicy().Paces())}}
		f.tenants[name] = t
	}
	return t
}

func (t *fakeTenant) policy() shaper.Policy { return t.overrides.Over(shaper.DefaultPolicy()) }

func (f *fakeQueue) NewID(string, string) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seq++
	return fmt.Sprintf("%028s", strconv.FormatInt(int64(f.seq), 32)), nil
}

func (f *fakeQueue) Submit(_ context.Context, s queue.Submission) (queue.Decision, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return queue.Decision{}, f.failure
	}
	return f.admit(s, 1), nil
}

func (f *fakeQueue) admit(s queue.Submission, size int64) queue.Decision {
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
		Delay: s.Delay, MaxWait: s.MaxWait, Type: s.Type,
	}, nil)
	t.flow = flow
	if a.Outcome != shaper.Admitted {
		t.rejected++
		return queue.Decision{Admission: a}
	}
	t.admitted++
	j := &fakeJob{submission: s, Job: queue.Job{
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

func (f *fakeQueue) SubmitBatch(
	ctx context.Context, batch []queue.Submission, atomic bool,
) ([]queue.Decision, error) {
	if f.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
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
			shaper.Request{Size: size, Cost: 1, Type: batch[0].Type}, nil)
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

func (f *fakeQueue) find(name, id string) (*fakeJob, error) {
	if f.failure != nil {
		return nil, f.failure
	}
	j := f.jobs[id]
	if j == nil || j.Tenant != name {
		return nil, queue.ErrNotFound
	}
	return j, nil
}

func (f *fakeQueue) Job(_ context.Context, name, id string) (queue.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find(name, id)
	if err != nil {
		return queue.Job{}, err
	}
	return j.Job, nil
}

func (f *fakeQueue) Stream(context.Context, string, string) (*queue.Stream, error) { return nil, nil }

func (f *fakeQueue) Leave(context.Context, string) error { return nil }

// Answer has none: no test forwards through a fakeQueue.
func (f *fakeQueue) Answer(ctx context.Context, name, id string, _ queue.End) (queue.Job, *queue.Answer, error) {
	j, err := f.Job(ctx, name, id)
	return j, nil, err
}

func (f *fakeQueue) Find(_ context.Context, id string) (queue.Job, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if j := f.jobs[id]; j != nil && f.failure == nil {
		return j.Job, nil
	}
	return queue.Job{}, cmp.Or(f.failure, queue.ErrNotFound)
}

func (f *fakeQueue) Payload(_ context.Context, name, id string, most int) (p queue.Payload, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	j, err := f.find(name, id)
	if err != nil || j.State == 0 || j.State.Done() && j.State != shaper.Dead {
		return p, err
	}
	p = queue.Payload{Size: len(j.submission.Payload), Headers: j.submission.Headers}
	if p.Size <= most {
		p.Bytes = j.submission.Payload
	}
	return p, nil
}

// List returns the last id of a page as its cursor.
func (f *fakeQueue) List(_ context.Context, l queue.List) (queue.Page, error) {
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

func (f *fakeQueue) Watch(_ context.Context, id string) (<-chan queue.End, func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure != nil {
		return nil, nil, f.failure
	}
	ch := make(chan queue.End, 1)
	f.watchers[id] = append(f.watchers[id], ch)
	f.watching++
	return ch, sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watching--
		f.watchers[id] = slices.DeleteFunc(f.watchers[id], func(c chan queue.End) bool { return c == ch })
	}), nil
}

// WatchEarly misses what ends within Early.
func (f *fakeQueue) WatchEarly(id string) (<-chan queue.End, <-chan struct{}, func(), error) {
	inForce := make(chan struct{})
	if f.Early == 0 {
		close(inForce)
		ended, stop, err := f.Watch(context.Background(), id)
		return ended, inForce, stop, err
	}
	ended := make(chan queue.End, 1)
	timer := time.AfterFunc(f.Early, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watchers[id] = append(f.watchers[id], ended)
		close(inForce)
	})
	_, stop, err := f.Watch(context.Background(), id)
	return ended, inForce, func() { timer.Stop(); stop() }, err
}

// Hold sets the figures of a tenant's hold and dead letters.
func (f *fakeQueue) Hold(tenant string, figures queue.Figures) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = map[string]queue.Figures{}
	}
	f.tenant(tenant)
	f.held[tenant] = figures
}

// Work sets the result of Workers.
func (f *fakeQueue) Work(w reports.Workers) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.workers = w
}

// Workers returns what Work has set.
func (f *fakeQueue) Workers(context.Context) (reports.Workers, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.workers, f.failure
}

// Agreement returns the value of SetAgreement, by default in force.
func (f *fakeQueue) Agreement() queue.Agreement {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.agreement == nil {
		return queue.Agreement{InForce: true}
	}
	return *f.agreement
}

// SetAgreement sets the agreement that Agreement and StoreHealth report.
func (f *fakeQueue) SetAgreement(a queue.Agreement) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.agreement = &a
}

func (f *fakeQueue) StoreHealth(context.Context) (queue.StoreHealth, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := queue.StoreHealth{Engine: queue.EngineEmbedded}
	if f.agreement != nil {
		h.Differing, h.Abandoned = f.agreement.Differing, f.agreement.Abandoned
	}
	return h, f.failure
}

// Waits returns those of the jobs that Finish ended.
func (f *fakeQueue) Waits(_ context.Context, tenant string, most int) ([]time.Duration, error) {
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

func (f *fakeQueue) Ping(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

func (f *fakeQueue) Totals(context.Context) (queue.Totals, error) {
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

func (f *fakeQueue) Erase(context.Context, string, string) (queue.Erased, error) {
	return queue.Erased{}, nil
}
