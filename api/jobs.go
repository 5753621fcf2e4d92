package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/listen"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// jobs reads and cancels the jobs of a tenant. The job of another tenant is queue.ErrNotFound.
type jobs interface {
	Job(ctx context.Context, tenant, id string) (queue.Job, error)
	Find(ctx context.Context, id string) (queue.Job, error)
	Payload(ctx context.Context, tenant, id string, limit int) (queue.Payload, error)
	List(ctx context.Context, l queue.List) (queue.Page, error)
	Cancel(ctx context.Context, tenant, id string) (queue.Job, error)
}

// tenantAndID returns the tenant and the job id of a request. An id that cannot exist is refused
// without a lookup.
func tenantAndID(c *call) (tenant, id string, err error) {
	id = c.param("id")
	if !codec.IsID(id) {
		p := problem.Of(queue.ErrNotFound)
		p.Unpaid = true
		return "", "", p
	}
	return c.who.Tenant, id, nil
}

// getJob is GET /v1/jobs/{id}.
func (s *Server) getJob(c *call) (*answer, error) {
	tenant, id, err := tenantAndID(c)
	if err != nil {
		return nil, err
	}
	prefer, rows := codec.Prefer(c.r.Header), 1
	if prefer.Wait > 0 {
		rows = watchRows
	}
	if err := s.reading(c, rows); err != nil {
		return nil, err
	}
	var job queue.Job
	if prefer.Wait > 0 {
		job, err = s.follow(c.client, tenant, id, prefer.Wait)
	} else {
		job, err = s.queue.Job(c.r.Context(), tenant, id)
	}
	if err != nil {
		return nil, err
	}
	a := ok(codec.Job(job))
	if prefer.Given {
		a.set("Preference-Applied", prefer.Applied())
	}
	return a, nil
}

// deleteJob is DELETE /v1/jobs/{id}.
func (s *Server) deleteJob(c *call) (*answer, error) {
	tenant, id, err := tenantAndID(c)
	if err != nil {
		return nil, err
	}
	if err := s.working(c, cancelRows); err != nil {
		return nil, err
	}
	job, err := s.queue.Cancel(c.r.Context(), tenant, id)
	if errors.Is(err, queue.ErrConflict) {
		return nil, problem.Conflict(job, "only a scheduled, queued or retrying job can be cancelled")
	}
	if err != nil {
		return nil, err
	}
	return ok(codec.Job(job)), nil
}

const onlyDead = "only a dead job can be replayed"

// replayJob is POST /v1/jobs/{id}/replay.
func (s *Server) replayJob(c *call) (*answer, error) {
	tenant, id, err := tenantAndID(c)
	if err != nil {
		return nil, err
	}
	if err := codec.DecodeEmpty(c.body); err != nil {
		return nil, err
	}
	if err := s.working(c, replayRows); err != nil {
		return nil, err
	}
	job, err := s.queue.Job(c.r.Context(), tenant, id)
	if err != nil {
		return nil, err
	}
	if job.State != shaper.Dead {
		return nil, problem.Conflict(job, onlyDead)
	}
	if err := s.guardJob(c, queue.Submission{Route: job.Route, Type: job.Type}); err != nil {
		return nil, err
	}
	as := queue.Replaying{MaxAttempts: s.attempts(job), Read: &job}
	if !c.operator {
		as.Tier = &c.who.Tier
	}
	v, err := s.queue.Replay(c.r.Context(), tenant, id, as)
	if errors.Is(err, queue.ErrConflict) {
		rule := onlyDead
		if v.Job.State == shaper.Dead {
			rule = "a forwarded request cannot be replayed, its client sends it again"
		}
		return nil, problem.Conflict(v.Job, rule)
	}
	if err != nil {
		return nil, err
	}
	s.metrics.admission(string(v.Outcome))
	s.errors.decided(queue.Submission{Tenant: tenant, Route: job.Route}, false, v.Admission)
	if err := s.refusal(v.Admission, flowName(tenant, job.Route), job.Route, ""); err != nil {
		return nil, err
	}
	a := &answer{status: http.StatusAccepted, body: codec.Job(v.Job)}
	a.set("Location", "/v1/jobs/"+v.Job.ID)
	s.cfg.Headers.Queue(a.header, v.Admission, 0)
	return a, nil
}

// attempts is the number of deliveries that a replayed job may have: its route's, or its own if the
// route was removed.
func (s *Server) attempts(job queue.Job) int {
	if info, known := s.cfg.Routes[job.Route]; known {
		return info.MaxAttempts
	}
	return job.MaxAttempts
}

// postBatch is POST /v1/jobs/batch.
func (s *Server) postBatch(c *call) (*answer, error) {
	if err := codec.NotRaw(c.r); err != nil {
		return nil, err
	}
	if keys := c.r.Header[codec.KeyHeader]; len(keys) > 0 {
		return nil, problem.Invalid(codec.KeyHeader, "string",
			"must be absent: each job of a batch has an idempotency_key")
	}
	var body wire.Batch
	var wrong []*problem.Problem
	if err := s.decode(c, func() (err error) {
		body, wrong, err = codec.DecodeBatch(c.body, s.cfg.MaxBody)
		return err
	}); err != nil {
		return nil, err
	}
	batch, held := s.submissions(c.r.Context(), c.who, body.Jobs, wrong)
	invalid := 0
	for _, p := range held {
		if p != nil {
			invalid++
		}
	}
	listen.Owe(c.r, invalid, len(held))
	if body.Atomic {
		if err := codec.Together(held); err != nil {
			return nil, err
		}
	}
	if err := s.guardJobs(c, batch, held, body.Atomic); err != nil {
		return nil, err
	}
	decisions, err := s.submitPassed(c, batch, held, body.Atomic)
	if err != nil {
		return nil, err
	}
	out := wire.BatchResult{Items: make([]wire.JobResult, len(batch))}
	for i := range batch {
		if held[i] != nil {
			s.metrics.refusal(held[i])
			out.Items[i].Problem = held[i].Problem
			continue
		}
		v := decisions[0]
		decisions = decisions[1:]
		flow, of := "", &batch[i]
		if body.Atomic {
			of = &batch[max(i, v.Refused)]
			flow = flowName(of.Tenant, of.Route)
		}
		refused := s.refusal(v.Admission, flow, of.Route, of.Type)
		switch {
		case refused == nil:
			out.Items[i] = wire.JobResult{
				Problem: wire.Problem{Status: http.StatusAccepted}, Job: answered(c, v.Job),
				Replayed: v.Outcome == shaper.Replayed,
			}
		case body.Atomic: // none was admitted, and all decisions are equal
			return nil, refusedWhole(refused, v, len(batch))
		default:
			p := problem.Of(refused)
			s.metrics.refusal(p)
			out.Items[i].Problem = p.Problem
		}
	}
	return ok(out), nil
}

// refusedWhole is the refusal of an atomic batch of n jobs. It names the job that costs too much,
// or whose key is another job's.
func refusedWhole(refused error, v queue.Decision, n int) error {
	var p *problem.Problem
	if !errors.As(refused, &p) || v.Outcome != shaper.TooCostly && v.Outcome != shaper.KeyReused {
		return refused
	}
	if v.Outcome == shaper.KeyReused {
		p.Errors = []wire.FieldError{{Field: "idempotency_key", Kind: "string",
			Rule: "must be new, or be sent with the same job: " + p.Detail}}
	}
	held := make([]*problem.Problem, n)
	held[v.Refused] = p
	return codec.Together(held)
}

// submissions builds the jobs of a batch. held has a problem for each job that is not submitted: it
// is in wrong already, or breaks a rule.
func (s *Server) submissions(
	ctx context.Context, who auth.Principal, jobs []wire.BatchJob, wrong []*problem.Problem,
) (batch []queue.Submission, held []*problem.Problem) {
	held = make([]*problem.Problem, len(jobs))
	copy(held, wrong)
	batch = make([]queue.Submission, len(jobs))
	for i, job := range jobs {
		if held[i] == nil {
			batch[i], held[i] = s.submission(ctx, who, job.IdempotencyKey, job.Submission)
		}
	}
	return batch, held
}

// submitPassed submits the jobs of a batch that no guard has refused, and returns their decisions
// in order.
func (s *Server) submitPassed(
	c *call, batch []queue.Submission, held []*problem.Problem, atomic bool,
) ([]queue.Decision, error) {
	passed := batch
	if slices.ContainsFunc(held, func(p *problem.Problem) bool { return p != nil }) {
		passed = nil
		for i, job := range batch {
			if held[i] == nil {
				passed = append(passed, job)
			}
		}
	}
	if len(passed) == 0 {
		return nil, nil
	}
	for i := range passed {
		var err error
		if passed[i].ID, err = s.queue.NewID(c.who.Tenant, passed[i].Route); err != nil {
			return nil, err
		}
	}
	span := s.traces.SendBatch(c.r.Context(), codec.TraceParent(c.r.Header), passed)
	for i := range passed {
		passed[i].TraceParent = span.TraceParent
	}
	// While Redis does not answer, each batch that waits for it takes half a megabyte.
	ctx, cancel := context.WithCancel(c.r.Context())
	defer cancel()
	defer context.AfterFunc(c.client, func() { time.AfterFunc(leftPatience, cancel) })()
	decisions, err := s.queue.SubmitBatch(ctx, passed, atomic)
	span.EndBatch(decisions, err)
	if err != nil {
		s.metrics.unanswered(err)
	}
	for i, v := range decisions {
		s.decided(passed[i], v)
	}
	return decisions, err
}

// JobJSON returns the job in the JSON form of the API, as callbacks send it.
func JobJSON(j queue.Job) ([]byte, error) {
	var buf bytes.Buffer
	if err := codec.Encode(&buf, codec.Job(j)); err != nil {
		return nil, fmt.Errorf("api: job: %w", err)
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

const insteadOfPolling = "; wait with Prefer: wait=N, or have a callback, instead of polling"

// reading is nil, or the 429 for a client that reads too much. It does not call the store.
// Operators may read as much as they want.
func (s *Server) reading(c *call, rows int) error {
	if c.operator || c.charged {
		return nil
	}
	if s.reads != nil {
		if wait := s.reads.Take(c.who.Tenant, time.Now()); wait > 0 {
			return s.readsTooMuch("this process lets the tenant read jobs "+s.reads.Shown.String()+insteadOfPolling, problem.LimiterState{
				Name: "status", Rate: s.reads.Shown, Limit: int64(s.reads.Burst), Next: wait,
			})
		}
	}
	return s.working(c, rows)
}

// What cancelling, replaying and watching a job cost Redis, in reads of one job, and beginning to
// read an answer that still comes.
const cancelRows, replayRows, watchRows, comingRows = 3, 4, 3, 4

// working is reading without the bound by api.status_rate, for what costs Redis as much as so many
// reads. Cancellations and replays count, because those that change nothing can be repeated without
// end.
func (s *Server) working(c *call, rows int) error {
	if c.operator || c.charged {
		return nil
	}
	c.charged = true
	now := time.Now()
	if wait := s.rows.Take(c.owner, now); wait > 0 {
		return s.readsTooMuch("what the tenant, or its address, reads, cancels and replays takes more of Redis than the "+
			s.rows.Shown.String()+" that one tenant has"+insteadOfPolling,
			problem.LimiterState{Name: "reads", Rate: s.rows.Shown, Limit: int64(s.rows.Burst()), Next: wait})
	}
	s.rows.Charge(c.owner, rows-1, now)
	return nil
}

// readsTooMuch is the 429 of a read that exceeds the limit, which lacks RetryAfter.
func (s *Server) readsTooMuch(text string, limit problem.LimiterState) error {
	s.metrics.tooOften.Inc()
	p := problem.RateLimited.With(text)
	p.RetryAfterMS = max(1, problem.Millis(limit.Next))
	limit.RetryAfter = problem.RetryAfter(limit.Next)
	p.Retry(limit.RetryAfter)
	s.cfg.Headers.Limiter(p.Header, limit)
	return p
}

// listJobs is GET /v1/jobs.
func (s *Server) listJobs(c *call) (*answer, error) {
	asked, err := codec.ReadList(c.r.URL.Query())
	if err != nil {
		return nil, err
	}
	if asked.Route != "" {
		if err := s.permitRoute(c, asked.Route); err != nil {
			return nil, err
		}
	}
	if _, known := s.cfg.Routes[asked.Route]; asked.Route != "" && !known {
		return nil, problem.UnknownRouteAt("query.route", "", problem.NotConfigured)
	}
	if err := s.reading(c, 1); err != nil {
		return nil, err
	}
	asked.Tenant = c.who.Tenant
	return s.page(c, asked, codec.Job)
}

// listPatience is how long a list waits until those of the same tenant or address have ended.
const listPatience = 2 * time.Second

// page answers with the page of a list, whose jobs show makes.
func (s *Server) page(c *call, asked queue.List, show func(queue.Job) *wire.Job) (*answer, error) {
	owner := s.ownerOf(c)
	leave, err := s.gate.Enter(c.client, owner, listPatience)
	if err != nil {
		return nil, err
	}
	page, err := s.queue.List(c.r.Context(), asked)
	leave()
	if errors.Is(err, queue.ErrCursor) {
		return nil, codec.BadCursor()
	}
	if err != nil {
		return nil, err
	}
	if c.counted { // a client; operators have no bound
		s.rows.Charge(owner, max(0, page.Cost-1), time.Now())
	}
	out := wire.JobList{Items: make([]wire.Job, 0, len(page.Jobs)), NextCursor: page.Next}
	for _, job := range page.Jobs {
		if c.who.RequireJob(job.Route, job.Type) == nil { // a page may have fewer jobs than the limit
			out.Items = append(out.Items, *show(job))
		}
	}
	return ok(out), nil
}
