package queue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

const (
	batchMost  = 1000
	maxPayload = 16 << 20

	maxCallbackURL = 1024
)

// errClosed is the answer to calls on a closed queue.
var errClosed = fmt.Errorf("%w: the queue is closed", ErrUnavailable)

// errPoolsChanged is the answer to a job that was placed by policies which are no longer in force.
var errPoolsChanged = fmt.Errorf("%w: the pools have just changed; submit the job again", ErrUnavailable)

// NewID makes the id of a job of the tenant with the route: 28 characters of [0-9a-v].
func (q *Queue) NewID(tenant, route string) (string, error) {
	return store.NewID(q.policies.Current().Placement(tenant, route))
}

// Submit requests admission of one job. Concurrent calls are gathered into few script calls,
// without a wait when there is nothing to gather. The error wraps ErrUnavailable or is the
// context's. A refusal is no error: it is the decision's outcome.
func (q *Queue) Submit(ctx context.Context, s Submission) (Decision, error) {
	decisions, err := q.submit(ctx, []Submission{s}, false)
	if err != nil {
		return Decision{}, err
	}
	return decisions[0], nil
}

// SubmitBatch requests admission of 1 to 1,000 jobs of one tenant, decided in order in one atomic
// step for the jobs of each pool, and one for those of no pool. If atomic, either all are admitted
// or none, and then every decision carries the outcome of the first refusal; the routes must be in
// one pool or all in none, or the error is of type shaper.Problems.
func (q *Queue) SubmitBatch(ctx context.Context, batch []Submission, atomic bool) ([]Decision, error) {
	if len(batch) == 0 || len(batch) > batchMost {
		return nil, fmt.Errorf("queue: a batch of %d jobs, want 1 to %d", len(batch), batchMost)
	}
	ids := map[string]bool{}
	for _, s := range batch {
		if s.Tenant != batch[0].Tenant {
			return nil, errors.New("queue: a batch has one tenant")
		}
		if s.ID != "" && ids[s.ID] {
			return nil, fmt.Errorf("queue: duplicate job id %q in batch", s.ID)
		}
		ids[s.ID] = true
	}
	return q.submitParts(ctx, slices.Clone(batch), atomic)
}

// submitParts submits the jobs of each shard by themselves. With an error some may be admitted.
func (q *Queue) submitParts(ctx context.Context, batch []Submission, atomic bool) ([]Decision, error) {
	placed := q.policies.Current()
	at, order := map[int][]int{}, []int(nil)
	for i := range batch {
		shard := placed.Placement(batch[i].Tenant, batch[i].Route).Index
		if at[shard] == nil {
			order = append(order, shard)
		}
		at[shard] = append(at[shard], i)
	}
	if len(order) == 1 {
		return q.submit(ctx, batch, atomic)
	}
	if atomic {
		return nil, shaper.Problems{{Field: "atomic", Value: "true", Rule: "must be false for a batch whose routes are in different pools"}}
	}
	decisions := make([]Decision, len(batch))
	for _, shard := range order {
		part := make([]Submission, 0, len(at[shard]))
		for _, i := range at[shard] {
			part = append(part, batch[i])
		}
		some, err := q.submit(ctx, part, false)
		if err != nil {
			return nil, err
		}
		for n, d := range some {
			decisions[at[shard][n]] = d
		}
	}
	return decisions, nil
}

// submit submits jobs of one tenant. It keeps and changes the batch. It replaces what a replayed
// idempotency key holds by the job itself. Where the job cannot be read, or is past retention, the
// key must do: an error now would make the client send the job again.
func (q *Queue) submit(ctx context.Context, batch []Submission, atomic bool) ([]Decision, error) {
	p := &pending{ctx: ctx, batch: batch, atomic: atomic, answer: make(chan error, 1)}
	var err error
	if p.older, err = q.older(ctx, q.policies.Current().Placement(batch[0].Tenant, batch[0].Route), batch); err != nil {
		return nil, err
	}
	flusher := q.flushers.of(ctx, q.policies.Current().Placement(batch[0].Tenant, batch[0].Route),
		kindOf(batch))
	if flusher == nil {
		return nil, errClosed
	}
	if err := flusher.await(p); scripts.Misplaced(err) {
		if err := q.policies.Follow(ctx); err != nil {
			return nil, err
		}
		return nil, errPoolsChanged
	} else if err != nil {
		return nil, err
	}
	for i := range p.decisions {
		if p.decisions[i].Outcome == shaper.Replayed {
			q.refresh(ctx, &p.decisions[i].Job, batch[i].Tenant)
		}
	}
	return p.decisions, nil
}

// refresh reads the job again, if that is possible. It has a frame of its own: goroutines that
// submit often wait for long, and their stacks are as large as this path makes them.
//
//go:noinline
func (q *Queue) refresh(ctx context.Context, j *Job, tenant string) {
	if now, err := q.Job(ctx, tenant, j.ID); err == nil {
		*j = now
	}
}

// texts is how many bytes of texts the job has.
func (s *Submission) texts() int {
	bytes := len(s.Payload) + len(s.Path) + len(s.ContentType) + len(s.CallbackURL)
	for name, value := range s.Headers {
		bytes += len(name) + len(value)
	}
	return bytes
}

// admission is one call of the admitting script in the making.
type admission struct {
	q       *Queue
	shard   store.ShardKeys
	call    scripts.AdmitCall
	flows   map[string]int // index in call.Flows
	places  []place        // of each of call.Flows
	pending []*pending
}

func (q *Queue) newAdmission(shard store.ShardKeys, atomic bool) *admission {
	a := &admission{q: q, shard: shard, flows: map[string]int{}, call: scripts.AdmitCall{
		Clock: shard.Clock(), Due: shard.Due(), Expires: shard.Expires(), Tenants: shard.Tenants(),
		Horizon: q.horizon, Atomic: atomic, Retention: q.retention,
		Pools: q.policies.Current().HasPools(shard), Types: &q.types,
	}}
	q.headroom.limit(context.Background(), &a.call)
	return a
}

// add appends the jobs of p, or answers p with why they cannot be stored.
func (a *admission) add(p *pending) {
	before := len(a.call.Jobs)
	for i := range p.batch {
		job, err := a.job(p, &p.batch[i])
		if err != nil {
			a.call.Jobs = a.call.Jobs[:before]
			p.answer <- err
			return
		}
		a.call.Jobs = append(a.call.Jobs, job)
	}
	for _, job := range a.call.Jobs[before:] {
		a.q.headroom.reserve(a.call.Flows[job.Flow].Class, job.StoredBytes())
	}
	a.pending = append(a.pending, p)
}

// flow returns the index of the submission's flow in the call.
func (a *admission) flow(name string, s *Submission) int {
	if i, ok := a.flows[name]; ok {
		a.call.Flows[i].Tier = store.TierName(s.Tier)
		return i
	}
	tenant := store.EncodeName(s.Tenant)
	class, at := a.q.headroom.enter(s)
	a.places = append(a.places, at)
	a.call.Flows = append(a.call.Flows, scripts.AdmitFlow{
		Flow: a.shard.Flow(name), Queue: a.shard.Queue(name), Later: a.shard.Later(name),
		Lines: a.shard.LinesOf(tenant), Names: a.shard.Names(tenant),
		Tier: store.TierName(s.Tier), Entry: store.TenantEntry(s.Tenant), Class: class,
		Estimated: s.Estimated,
	})
	a.flows[name] = len(a.call.Flows) - 1
	return a.flows[name]
}

// job encodes the submission for the script. A submission without an id gets one.
func (a *admission) job(p *pending, s *Submission) (job scripts.AdmitJob, err error) {
	if s.ID == "" {
		if s.ID, err = store.NewID(a.shard); err != nil {
			return job, err
		}
	}
	if err := s.validate(); err != nil {
		return job, err
	}
	switch shard, ok := a.q.store.ShardOfID(s.ID); {
	case ok && shard != a.shard:
		return job, errPoolsChanged // since NewID made the id
	case !ok:
		return job, fmt.Errorf("queue: job id %q is not one that NewID makes", s.ID)
	}
	cost, flow := max(s.Cost, 1), store.FlowName(s.Tenant, s.Route)
	job = scripts.AdmitJob{
		Flow: a.flow(flow, s), Key: a.shard.Job(s.ID), Delay: max(0, s.Delay),
		MaxWaitMS: s.MaxWait.Milliseconds(), Type: s.Type,
	}
	tenant := store.EncodeName(s.Tenant)
	if s.IdempotencyKey != "" {
		job.IdemHash = a.q.idemHash(tenant, s.IdempotencyKey)
		box := a.q.box
		if p.older[s.IdempotencyKey] {
			job.IdemHash, box = store.ShortHash(s.IdempotencyKey), nil
		}
		job.IdemKey = a.shard.Idem(tenant, job.IdemHash)
		job.Fingerprint = s.fingerprint(box)
	}
	r := scripts.Record{
		Cost: cost, MaxAttempts: s.attempts(), Flow: flow, Idem: job.IdemHash, Type: s.Type,
		Tenant: s.Tenant, Route: s.Route,
		CallbackURL: s.CallbackURL, TraceParent: s.TraceParent, Payload: a.q.stored(s, tenant),
	}
	sealTexts(a.q.box, s.ID, &r)
	job.Rest, err = r.Rest()
	if err != nil {
		return job, fmt.Errorf("queue: %w", err)
	}
	return job, nil
}

// fingerprint is a hash of what submissions with the same idempotency key must have in common. The
// order of headers and the spelling of their names make no difference.
func (s *Submission) fingerprint(box *sealed.Box) string {
	same, cost := s.Payload, max(s.Cost, 1)
	if s.Same != nil {
		same, cost = s.Same, 1 // their cost is no part of the request
	}
	parts := []string{
		string(same), s.Type, s.Route, strconv.FormatInt(int64(s.Delay), 10), strconv.FormatInt(cost, 10),
	}
	if s.enveloped() {
		parts = append(parts, s.ContentType, s.Path)
	}
	for name, value := range s.Headers {
		parts = append(parts, httpmsg.Comparable(name)+":"+value)
	}
	slices.Sort(parts[len(parts)-len(s.Headers):])
	return box.Sum("fingerprint", parts...)
}

// idemHash names an idempotency key of a tenant, which is named as in keys.
func (q *Queue) idemHash(tenant, key string) string {
	if q.box == nil {
		return store.ShortHash(key)
	}
	return q.box.Sum("idempotency key", tenant, key)
}

// validate rejects what a record cannot hold. The API has stricter rules for clients.
func (s Submission) validate() error {
	var ps shaper.Problems
	within := func(field string, n, low, high int64) {
		if n < low || n > high {
			ps = append(ps, shaper.Problem{
				Field: field, Value: strconv.FormatInt(n, 10),
				Rule: fmt.Sprintf("must be from %d to %d", low, high),
			})
		}
	}
	within("cost", s.Cost, 0, shaper.MaxCost)
	within("max_attempts", int64(s.MaxAttempts), 0, maxAttempts)
	within("delay_ms", s.Delay.Milliseconds(), 0, shaper.MaxPeriod.Milliseconds())
	within("max_wait_ms", s.MaxWait.Milliseconds(), 0, shaper.MaxPeriod.Milliseconds())
	within("payload", int64(len(s.Payload)), 0, maxPayload)
	within("type", int64(len(s.Type)), 0, maxField)
	within("callback_url", int64(len(s.CallbackURL)), 0, maxCallbackURL)
	within("content_type", int64(len(s.ContentType)), 0, maxContentType)
	within("path", int64(len(s.Path)), 0, maxPath)
	if strings.Contains(s.Path, "\n") {
		ps = append(ps, shaper.Problem{Field: "path", Value: strconv.Quote(s.Path), Rule: "must not contain a line feed"})
	}
	wrong := func(name, rule string) {
		ps = append(ps, shaper.Problem{Field: "headers", Value: strconv.Quote(name), Rule: rule})
	}
	if rule := httpmsg.CheckJobHeaders(s.Headers, wrong); rule != "" {
		ps = append(ps, shaper.Problem{Field: "headers", Value: strconv.Itoa(len(s.Headers)), Rule: rule})
	}
	return ps.Err()
}

// answer sends each caller its decisions.
func (a *admission) answer(r scripts.Reply) {
	decisions, err := a.call.Decode(r.Values)
	if r.Err != nil {
		err = r.Err
	}
	if err != nil && len(a.call.Flows) == 1 {
		err = fmt.Errorf("%s: %w", a.call.Flows[0].Flow, err)
	}
	for i := range decisions {
		if err == nil && decisions[i].NewTenant {
			a.places[a.call.Jobs[i].Flow].network = "" // its place stays taken
		}
	}
	for i, f := range a.call.Flows {
		a.q.headroom.left(f.Class, a.places[i].network)
	}
	at := 0
	for _, p := range a.pending {
		if err != nil {
			for range p.batch {
				a.q.headroom.reserve(a.call.Flows[a.call.Jobs[at].Flow].Class, -a.call.Jobs[at].StoredBytes())
				at++
			}
			p.answer <- store.Unavailable(err)
			continue
		}
		p.decisions = make([]Decision, len(p.batch)) // not before: a thousand take 300 KB of each batch that waits
		for i := range p.batch {
			p.decisions[i] = decisionOf(&decisions[at+i], &p.batch[i])
			job := &a.call.Jobs[at+i]
			a.q.headroom.explain(&p.decisions[i].Admission, a.places[job.Flow])
			if decisions[at+i].NewTenant {
				a.q.headroom.tenants.Add(1)
			}
			a.q.headroom.joined(a.call.Flows[job.Flow].Class, a.shard.Index, decisions[at+i].Members)
			if decisions[at+i].Outcome == shaper.Admitted {
				a.q.headroom.admitted(job.StoredBytes())
			} else {
				a.q.headroom.reserve(a.call.Flows[job.Flow].Class, -job.StoredBytes())
			}
		}
		at += len(p.batch)
		p.answer <- nil
	}
}

// DefaultMaxAttempts is how many attempts a job has whose submission names none.
const DefaultMaxAttempts = 10

// attempts is how many attempts the job has at most.
func (s *Submission) attempts() int { return cmp.Or(s.MaxAttempts, DefaultMaxAttempts) }

// decisionOf returns the decision on a submission.
func decisionOf(v *scripts.Decision, s *Submission) Decision {
	out, j := Decision{Admission: v.Admission, Refused: v.Refused}, Job{ID: s.ID, MaxAttempts: s.attempts()}
	switch v.Outcome {
	case shaper.Admitted:
		j.State, j.Position, j.Created = v.State, v.Position, v.Created.Time()
		if j.State.Waiting() {
			j.EstimatedStart = v.Start.Time()
		}
		if j.State == shaper.Scheduled {
			j.Scheduled = v.Created.Add(max(0, s.Delay)).Time()
		}
	case shaper.Replayed:
		j = knownJob(v.Known)
		j.MaxAttempts = max(j.MaxAttempts, s.attempts())
	default:
		return out
	}
	j.Tenant, j.Route, j.Type, j.Cost = s.Tenant, s.Route, s.Type, max(s.Cost, 1)
	out.Job = j
	return out
}

// knownJob returns what an idempotency key holds of its job.
func knownJob(k scripts.KnownJob) Job {
	return Job{
		ID: k.ID, State: k.State, Attempts: k.Attempts, MaxAttempts: k.MaxAttempts,
		Created: k.Created.Time(), Finished: k.Finished.Time(),
	}
}
