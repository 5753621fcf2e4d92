package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/turn"
	"github.com/7509e464/sluice/shaper"
)

// Bounds of the flusher: how many of them send at once where Redis is slow, and how many jobs one
// exchange may carry.
const (
	flushers   = 4
	flushMost  = 128
	flushLeast = 16 // jobs that are worth an exchange beside another; by itself it costs Redis as much as ten
	batchMost  = 1000
	maxPayload = 16 << 20
)

// errClosed is the answer to calls on a closed queue.
var errClosed = fmt.Errorf("%w: the queue is closed", ErrUnavailable)

// NewID makes the id of a job of the tenant: 28 characters of [0-9a-v].
func (q *Queue) NewID(tenant string) (string, error) {
	return newID(q.keys.ShardOf(tenant).Index)
}

// Submit asks for admission of one job. Concurrent calls are gathered into few script calls,
// without a wait when there is nothing to gather. The error wraps ErrUnavailable or is the
// context's; a refusal is no error, it is the verdict's outcome.
func (q *Queue) Submit(ctx context.Context, s Submission) (Verdict, error) {
	v, err := q.flusher.submitOne(ctx, s)
	if err != nil {
		return Verdict{}, err
	}
	return q.complete(ctx, s, v), nil
}

// SubmitBatch asks for admission of 1 to 1,000 jobs of one tenant, judged in order in one atomic
// step. If atomic, either all are admitted or none, and then every verdict carries the outcome of
// the first refusal.
func (q *Queue) SubmitBatch(ctx context.Context, batch []Submission, atomic bool) ([]Verdict, error) {
	if len(batch) == 0 || len(batch) > batchMost {
		return nil, fmt.Errorf("queue: a batch of %d jobs, want 1 to %d", len(batch), batchMost)
	}
	ids := map[string]bool{}
	for _, s := range batch {
		if s.Tenant != batch[0].Tenant {
			return nil, errors.New("queue: a batch has one tenant")
		}
		if s.ID != "" && ids[s.ID] {
			return nil, errors.New("queue: an id stands twice in a batch")
		}
		ids[s.ID] = true
	}
	verdicts, err := q.flusher.submit(ctx, batch, atomic)
	if err != nil {
		return nil, err
	}
	for i := range verdicts {
		verdicts[i] = q.complete(ctx, batch[i], verdicts[i])
	}
	return verdicts, nil
}

// complete reads the job that a replayed idempotency key stands for. Where that fails, or the job
// is past retention, what the key knows must do: the submission itself has been answered, and an
// error now would make the client send it again.
func (q *Queue) complete(ctx context.Context, s Submission, v Verdict) Verdict {
	if v.Outcome == shaper.Replayed {
		if j, err := q.Job(ctx, s.Tenant, v.Job.ID); err == nil {
			v.Job = j
		}
	}
	return v
}

// pending is a call of Submit or SubmitBatch on its way.
type pending struct {
	ctx      context.Context
	batch    []Submission
	atomic   bool
	verdicts []Verdict // of the batch, once it is answered without an error
	answer   chan error
}

// single is a pending call of one job, in one piece, for another call to use it after this one.
type single struct {
	pending
	job     [1]Submission
	verdict [1]Verdict
}

// flusher gathers admissions: each of its goroutines takes everything that waits as soon as it is
// its turn, so that requests are gathered while the exchange before them is under way and nobody
// waits for company.
type flusher struct {
	q       *Queue
	turns   *turn.Turns
	queue   chan *pending
	closed  chan struct{}
	done    sync.WaitGroup
	singles sync.Pool // of *single
}

func newFlusher(q *Queue) *flusher {
	f := &flusher{q: q, turns: turn.New(), queue: make(chan *pending, flushers*flushMost), closed: make(chan struct{})}
	f.singles.New = func() any { return &single{pending: pending{answer: make(chan error, 1)}} }
	for range flushers {
		f.done.Add(1)
		go f.run()
	}
	return f
}

func (f *flusher) close() {
	close(f.closed)
	f.done.Wait()
}

func (f *flusher) submitOne(ctx context.Context, s Submission) (Verdict, error) {
	one := f.singles.Get().(*single)
	one.ctx, one.job[0] = ctx, s
	one.batch, one.verdicts = one.job[:], one.verdict[:]
	answered, err := f.await(&one.pending)
	if !answered {
		return Verdict{}, err // a flusher may still write to it
	}
	v := one.verdict[0]
	one.ctx, one.job[0], one.verdict[0] = nil, Submission{}, Verdict{}
	f.singles.Put(one)
	return v, err
}

func (f *flusher) submit(ctx context.Context, batch []Submission, atomic bool) ([]Verdict, error) {
	p := &pending{ctx: ctx, batch: slices.Clone(batch), atomic: atomic, verdicts: make([]Verdict, len(batch)), answer: make(chan error, 1)}
	if _, err := f.await(p); err != nil {
		return nil, err
	}
	return p.verdicts, nil
}

// await returns when the call is answered, or when nobody waits for the answer any more.
func (f *flusher) await(p *pending) (answered bool, err error) {
	select {
	case f.queue <- p:
	default: // a select of several takes time, and there is nearly always room
		select {
		case f.queue <- p:
		case <-p.ctx.Done():
			return false, p.ctx.Err()
		case <-f.closed:
			return false, errClosed
		}
	}
	if len(f.queue) >= flushLeast {
		f.turns.Share()
	}
	select {
	case err := <-p.answer:
		return true, err
	case <-p.ctx.Done():
		return false, p.ctx.Err()
	case <-f.closed:
		return false, errClosed
	}
}

func (f *flusher) run() {
	defer f.done.Done()
	var gathered []*pending
	for {
		select {
		case p := <-f.queue:
			gathered = append(gathered, p)
		case <-f.closed:
			return
		}
		end, ok := f.turns.Take(f.closed)
		if !ok {
			return
		}
		runtime.Gosched() // who is about to submit does so first; costs nothing where nobody is
		jobs := len(gathered[0].batch)
	gather:
		for jobs < flushMost {
			select {
			case p := <-f.queue:
				gathered = append(gathered, p)
				jobs += len(p.batch)
			default:
				break gather
			}
		}
		f.flush(gathered)
		end()
		clear(gathered)
		gathered = gathered[:0]
	}
}

// flush sends what was gathered in one exchange: one call per shard, and one of its own per batch.
func (f *flusher) flush(gathered []*pending) {
	room := f.q.store.room(context.Background())
	var calls []*admission
	byShard := map[int]*admission{}
	for _, p := range gathered {
		if p.ctx.Err() != nil {
			continue // nobody waits for the answer any more
		}
		shard := f.q.keys.ShardOf(p.batch[0].Tenant)
		a := byShard[shard.Index]
		if a == nil || p.atomic || len(p.batch) > 1 {
			size := len(p.batch)
			if !p.atomic && size == 1 {
				size = len(gathered) / (len(byShard) + 1) // for all of it, where it is of one shard
			}
			a = f.q.newAdmission(shard, p.atomic, size)
			a.call.NoBytes, a.call.NoTenants, a.call.Share = room.noBytes, room.noTenants, room.share
			calls = append(calls, a)
			if !p.atomic && len(p.batch) == 1 {
				byShard[shard.Index] = a
			}
		}
		if err := a.add(p); err != nil {
			p.answer <- err
		}
	}
	// A call whose only submissions could not be encoded has nothing to say.
	calls = slices.DeleteFunc(calls, func(a *admission) bool { return len(a.who) == 0 })
	f.exchange(calls)
}

// exchange sends the calls and answers them. The submissions of a call that fails at damaged data
// are sent once more, each by itself: one whose flow or key is damaged does not fail the others.
func (f *flusher) exchange(calls []*admission) {
	for len(calls) > 0 {
		sent := make([]lua.Call, len(calls))
		for i, a := range calls {
			sent[i] = a.call.Call()
		}
		// The requests' own contexts end single waits; the exchange they share is bounded by the
		// client's timeouts.
		replies := f.q.exec(context.Background(), f.q.engine.fast, sent)
		var apart []*admission
		for i, a := range calls {
			if len(a.who) > 1 && FaultOf(replies[i].Err) == FaultScript {
				apart = append(apart, a.apart()...)
				continue
			}
			a.answer(replies[i])
		}
		calls = apart
	}
}

// admission is one call of the admitting script in the making.
type admission struct {
	q     *Queue
	shard ShardKeys
	call  lua.AdmitCall
	flows map[string]int
	who   []*pending
}

// newAdmission has room for so many jobs, and grows beyond.
func (q *Queue) newAdmission(shard ShardKeys, atomic bool, room int) *admission {
	return &admission{q: q, shard: shard, flows: map[string]int{}, who: make([]*pending, 0, room), call: lua.AdmitCall{
		Clock: shard.Clock(), Due: shard.Due(), Expires: shard.Expires(), Tenants: shard.Tenants(), Horizon: q.horizon, Atomic: atomic,
		Retention: q.retention,
		Jobs:      make([]lua.AdmitJob, 0, room),
	}}
}

// add appends the jobs of p, all or none.
func (a *admission) add(p *pending) error {
	before := len(a.call.Jobs)
	for i := range p.batch {
		job, err := a.job(&p.batch[i])
		if err != nil {
			a.call.Jobs = a.call.Jobs[:before]
			return err
		}
		a.call.Jobs = append(a.call.Jobs, job)
	}
	a.who = append(a.who, p)
	return nil
}

// apart is a call for each of the submissions.
func (a *admission) apart() []*admission {
	calls := make([]*admission, 0, len(a.who))
	for _, p := range a.who {
		one := a.q.newAdmission(a.shard, false, len(p.batch))
		one.call.NoBytes, one.call.NoTenants = a.call.NoBytes, a.call.NoTenants
		if err := one.add(p); err != nil { // which it did not when it was added before
			p.answer <- err
			continue
		}
		calls = append(calls, one)
	}
	return calls
}

func (a *admission) flow(name string, s *Submission) int {
	if i, ok := a.flows[name]; ok {
		a.call.Flows[i].Tier = tierName(s.Tier)
		return i
	}
	tenant := EncodeName(s.Tenant)
	a.call.Flows = append(a.call.Flows, lua.AdmitFlow{
		Flow: a.shard.Flow(name), Queue: a.shard.Queue(name), Later: a.shard.Later(name), Lines: a.shard.LinesOf(tenant), Names: a.shard.Names(tenant),
		Tier: tierName(s.Tier), Entry: tenantEntry(s.Tenant),
	})
	a.flows[name] = len(a.call.Flows) - 1
	return a.flows[name]
}

// job is the submission as the script takes it. A submission without an id gets one.
func (a *admission) job(s *Submission) (lua.AdmitJob, error) {
	if s.ID == "" {
		var err error
		if s.ID, err = newID(a.shard.Index); err != nil {
			return lua.AdmitJob{}, err
		}
	}
	if err := s.validate(); err != nil {
		return lua.AdmitJob{}, err
	}
	if shard, ok := shardOfID(s.ID, a.q.keys.Len()); !ok || shard != a.shard.Index {
		return lua.AdmitJob{}, errors.New("queue: the id is not one that NewID makes for the tenant")
	}
	cost, flow := max(s.Cost, 1), flowName(s.Tenant, s.Route)
	job := lua.AdmitJob{Flow: a.flow(flow, s), Key: a.shard.Job(s.ID), Delay: max(0, s.Delay), MaxWaitMS: s.MaxWait.Milliseconds()}
	if s.IdempotencyKey != "" {
		job.IdemHash = shortHash(s.IdempotencyKey)
		job.IdemKey = a.shard.Idem(EncodeName(s.Tenant), job.IdemHash)
		job.Fingerprint = shortHash(string(s.Payload), s.Type, s.Route, strconv.FormatInt(int64(s.Delay), 10), strconv.FormatInt(cost, 10))
	}
	rest, err := lua.Record{
		Cost: cost, MaxAttempts: s.MaxAttempts, Flow: flow, Idem: job.IdemHash, Type: s.Type, Tenant: s.Tenant, Route: s.Route,
		CallbackURL: s.CallbackURL, TraceParent: s.TraceParent, Payload: a.q.compress(s.Payload),
	}.Rest()
	if err != nil {
		return lua.AdmitJob{}, fmt.Errorf("queue: %w", err)
	}
	job.Rest = rest
	return job, nil
}

// validate finds what the stored record cannot hold. The API has its own, stricter rules for
// clients.
func (s Submission) validate() error {
	var ps shaper.Problems
	within := func(field string, n, low, high int64) {
		if n < low || n > high {
			ps = append(ps, shaper.Problem{Field: field, Value: strconv.FormatInt(n, 10), Rule: fmt.Sprintf("must be from %d to %d", low, high)})
		}
	}
	within("cost", s.Cost, 0, shaper.MaxCost)
	within("max_attempts", int64(s.MaxAttempts), 1, maxAttempts)
	within("delay_ms", s.Delay.Milliseconds(), 0, shaper.MaxPeriod.Milliseconds())
	within("max_wait_ms", s.MaxWait.Milliseconds(), 0, shaper.MaxPeriod.Milliseconds())
	within("payload", int64(len(s.Payload)), 0, maxPayload)
	return ps.Err()
}

// answer hands every caller its verdicts.
func (a *admission) answer(r lua.Reply) {
	verdicts, err := a.call.Decode(r.Values)
	if r.Err != nil {
		err = r.Err
	}
	if err != nil && len(a.call.Flows) == 1 {
		err = fmt.Errorf("%s: %w", a.call.Flows[0].Flow, err)
	}
	at := 0
	for _, p := range a.who {
		if err != nil {
			p.answer <- unavailable(err)
			continue
		}
		for i := range p.batch {
			p.verdicts[i] = verdictOf(&verdicts[at+i], &p.batch[i])
			if verdicts[at+i].Outcome == shaper.Admitted {
				a.q.store.admitted(a.call.Jobs[at+i].StoredBytes())
			}
		}
		at += len(p.batch)
		p.answer <- nil
	}
}

// verdictOf is the script's answer to a submission.
func verdictOf(v *lua.Verdict, s *Submission) Verdict {
	out := Verdict{Admission: v.Admission}
	j := Job{ID: s.ID, Tenant: s.Tenant, Route: s.Route, Type: s.Type, MaxAttempts: s.MaxAttempts}
	switch v.Outcome {
	case shaper.Admitted:
		j.State, j.Position, j.Created = v.State, v.Position, v.Created.Time()
		if j.State.Waiting() {
			j.EstimatedStart = v.Start.Time()
		}
		if j.State == shaper.Scheduled {
			j.Scheduled = v.Created.Add(max(0, s.Delay)).Time()
		}
		out.Job = j
	case shaper.Replayed:
		j.ID, j.State, j.Created, j.Finished = v.Known.ID, v.Known.State, v.Known.Created.Time(), v.Known.Finished.Time()
		j.Attempts, j.MaxAttempts = v.Known.Attempts, max(j.MaxAttempts, v.Known.MaxAttempts)
		out.Job = j
	}
	return out
}
