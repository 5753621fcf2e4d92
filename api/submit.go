package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/decode"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/api/internal/ratelimit"
	"github.com/7509e464/sluice/api/internal/request"
	"github.com/7509e464/sluice/api/internal/towire"
	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/internal/spans"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const defaultRoute = "default"

// postJob is POST /v1/jobs.
func (s *Server) postJob(c *call) (*answer, error) {
	key, err := request.IdempotencyKey(c.r.Header)
	if err != nil {
		return nil, err
	}
	body, contentType, err := submitted(c)
	if err != nil {
		return nil, err
	}
	submission, wrong := s.submission(c.who, key, body)
	if wrong != nil {
		return nil, wrong
	}
	submission.ContentType = contentType
	if rule := s.callbackRule(body.CallbackURL); rule != "" {
		return nil, problem.Invalid("callback_url", "string", rule)
	}
	if err := s.guardJob(c, submission); err != nil {
		return nil, err
	}
	submission.TraceParent = request.TraceParent(c.r.Header)
	return s.submit(c, submission, request.Prefer(c.r.Header))
}

// submitted reads a submission, in JSON or as a raw body with its content type.
func submitted(c *call) (body wire.Submission, contentType string, err error) {
	if c.raw {
		body, contentType, err = request.Raw(c.r)
		body.Payload = c.body
		return body, contentType, err
	}
	if c.r.URL.RawQuery != "" {
		if err := request.NotRaw(c.r.URL.Query()); err != nil {
			return body, "", err
		}
	}
	body, err = decode.Submission(c.body)
	return body, "", err
}

// submission builds the submission for the queue, unless the route takes no jobs or not its path.
func (s *Server) submission(
	who auth.Principal, key string, body wire.Submission,
) (queue.Submission, *problem.Problem) {
	route := cmp.Or(body.Route, defaultRoute)
	info, known := s.cfg.Routes[route]
	switch {
	case !known:
		return queue.Submission{}, problem.UnknownRouteAt("route")
	case info.Forward != nil:
		return queue.Submission{}, forwardOnly(route)
	case body.Path != "" && !info.Paths:
		return queue.Submission{}, problem.Invalid("path", "string",
			"must be absent: the route "+route+" has no paths: true")
	}
	if s.cfg.MaxDelay != nil && body.DelayMS > 0 {
		if most, setting := s.cfg.MaxDelay(who); body.DelayMS > most.Milliseconds() {
			return queue.Submission{}, problem.Invalid("delay_ms", "integer", "must be at most "+
				strconv.FormatInt(most.Milliseconds(), 10)+" ("+setting+"), but is "+strconv.FormatInt(body.DelayMS, 10))
		}
	}
	return queue.Submission{
		Tenant:         who.Tenant,
		Tier:           who.Tier,
		Guest:          who.Guest(),
		Network:        who.Network(),
		Vouched:        who.Vouched,
		Route:          route,
		Type:           body.Type,
		Payload:        body.Payload,
		Path:           body.Path,
		IdempotencyKey: key,
		Cost:           max(body.Cost, 1),
		Delay:          time.Duration(body.DelayMS) * time.Millisecond,
		MaxWait:        time.Duration(body.MaxWaitMS) * time.Millisecond,
		MaxAttempts:    info.MaxAttempts,
		CallbackURL:    body.CallbackURL,
	}, nil
}

// callbackRule is the rule that a callback URL breaks; empty if it is allowed or absent.
func (s *Server) callbackRule(url string) string {
	if url == "" {
		return ""
	}
	if s.cfg.CheckCallback == nil {
		return "must be absent: callbacks are not configured"
	}
	if err := s.cfg.CheckCallback(url); err != nil {
		return err.Error()
	}
	return ""
}

// submit requests admission and, if the client prefers, waits for the job's end.
func (s *Server) submit(c *call, sub queue.Submission, prefer request.Preference) (*answer, error) {
	job, admission, err := s.admit(c, sub, prefer.Wait)
	if err != nil {
		return nil, err
	}
	out := towire.Job(job)
	a := &answer{status: http.StatusAccepted, body: out}
	if prefer.Given {
		a.set("Preference-Applied", prefer.Applied())
		if out.Done {
			a.status = http.StatusOK
		}
	}
	a.set("Location", "/v1/jobs/"+job.ID)
	if admission.Outcome == shaper.Replayed {
		a.set(replayedHeader, "true")
	}
	if a.status == http.StatusAccepted {
		s.cfg.Headers.Queue(a.header, admission, 0)
	}
	crash.At("before-answer")
	return a, nil
}

// admit requests admission and waits for the job's end, at most for the given time. A refusal is an
// error. After a failed wait it returns the admitted job: an error would make the client submit it
// twice.
func (s *Server) admit(
	c *call, sub queue.Submission, wait time.Duration,
) (queue.Job, shaper.Admission, error) {
	f := newAwaited()
	f.wait = wait
	if err := s.begin(c, &sub, f); err != nil {
		return queue.Job{}, f.decision.Admission, err
	}
	if wait <= 0 || towire.Job(f.decision.Job).Done {
		f.stop()
		return f.decision.Job, f.decision.Admission, nil
	}
	end := s.await
	if f.known {
		end = s.seen
	}
	if later, err := end(c.client, sub.Tenant, f.decision.Job.ID, f.ended, f.stop, f.end); err == nil {
		f.decision.Job = later
	}
	return f.decision.Job, f.decision.Admission, nil
}

// begin requests admission and begins a watch of the job, if f has a wait. The watch begins before
// the submission, so that it cannot miss a fast end. A refusal is an error. sub loses its payload.
func (s *Server) begin(c *call, sub *queue.Submission, f *awaited) (err error) {
	ctx := c.r.Context()
	if sub.ID, err = s.backend.NewID(sub.Tenant, sub.Route); err != nil {
		return err
	}
	f.end = time.Now().Add(f.wait)
	if f.wait > 0 {
		if f.ended, f.stop, err = s.watch(ctx, sub.ID, f.end); err != nil {
			f.stop = func() {}
			if !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
			f.ended, f.end = nil, time.Now() // the wait is over before it has begun
		}
	}
	span := s.cfg.Traces.Send(ctx, sub.TraceParent, sub.Tenant, sub.Route)
	sub.TraceParent = span.TraceParent
	crash.At("before-admit")
	err = s.send(ctx, sub, f)
	crash.At("after-admit")
	if err = s.note(sub, f, span, err); err != nil {
		f.stop()
		return err
	}
	c.taken() // a wait must not hold the memory of a large body
	sub.Payload, sub.Same = nil, nil
	if f.known = f.decision.Job.ID != sub.ID; f.known && f.wait > 0 { // by its idempotency key: wait for the earlier job
		f.stop()
		if f.ended, f.stop, err = s.watch(ctx, f.decision.Job.ID, f.end); err != nil {
			f.ended, f.stop, f.end = nil, func() {}, time.Now() // the job is stored all the same
		}
	}
	return nil
}

// send requests admission. It has a frame of its own: see Server.forward.
//
//go:noinline
func (s *Server) send(ctx context.Context, sub *queue.Submission, f *awaited) (err error) {
	f.decision, err = s.backend.Submit(ctx, *sub)
	return err
}

// note records the end of send. A refusal is an error. It has a frame of its own, like send.
//
//go:noinline
func (s *Server) note(sub *queue.Submission, f *awaited, span spans.Sending, err error) error {
	v := &f.decision
	span.End(*v, err)
	if err != nil {
		s.metrics.admission(unavailableOutcome)
		return err
	}
	s.decided(*sub, *v)
	v.Job.Tenant = sub.Tenant
	return s.refusal(v.Admission, flowName(sub.Tenant, sub.Route), sub.Route)
}

// decided counts a submission that the queue has decided on, records it as an arrival, and logs
// refusals.
func (s *Server) decided(sub queue.Submission, v queue.Decision) {
	s.metrics.admission(string(v.Outcome))
	s.noteArrival(sub, v)
	s.troubles.decided(sub, v.Outcome)
}

// flowName is unique among the flows of all tenants.
func flowName(tenant, route string) string { return tenant + "\x00" + route }

// refusal returns the problem of a rejected admission, nil if the jobs were admitted. For a full
// queue, Retry-After is the next turn of the flow, or of the pool that is full. flow is empty where
// the answer has no headers.
func (s *Server) refusal(a shaper.Admission, flow, route string) error {
	pool, full := "", "the queue"
	if a.OfPool {
		pool = s.backend.PoolOf(route)
		full = "the pool " + pool
		if flow != "" {
			flow = flowName("", pool) // no tenant has the empty name
		}
	}
	if a.OfPart {
		full = "the part that the tenant may hold of the pool " + pool + " now"
	}
	switch a.Outcome {
	case shaper.Admitted, shaper.Replayed:
		return nil
	case shaper.Full:
		p := problem.QueueFull.With(full + " holds " + strconv.FormatInt(a.Depth, 10) + " of " +
			strconv.FormatInt(a.Capacity, 10) + " jobs")
		p.Depth, p.Capacity = new(a.Depth), new(a.Capacity)
		scoped(p, pool, a.OfPart)
		switch {
		case !a.Never:
			return s.full(p, a, s.turns.Take(flow, a, a.Asked))
		case a.Asked == 1: // a capacity of 0
			p.Detail += "; it accepts none until its capacity is raised"
			return s.full(p, a, never)
		}
		return s.full(neverFits(p, "a batch of "+strconv.FormatInt(a.Asked, 10)+" jobs can never fit into a "+
			"queue of "+strconv.FormatInt(a.Capacity, 10)+
			": send fewer at once, or raise the capacity"), a, never)
	case shaper.FullOfBytes:
		p := problem.QueueBytesFull.With("the payloads in " + full + " have " +
			strconv.FormatInt(a.Bytes, 10) + " of " + strconv.FormatInt(a.CapacityBytes, 10) + " bytes")
		p.Bytes, p.CapacityBytes = new(a.Bytes), new(a.CapacityBytes)
		scoped(p, pool, a.OfPart)
		if a.Never {
			return s.full(neverFits(p, "payloads of "+strconv.FormatInt(a.AskedBytes, 10)+" bytes at once can "+
				"never fit into a queue of "+strconv.FormatInt(a.CapacityBytes, 10)+
				", as they are stored: send less at once, or raise capacity_bytes"), a, never)
		}
		return s.full(p, a, s.turns.Take(flow, a, a.Asked))
	case shaper.OverShare:
		p := problem.QueueBytesFull.With("the route's stored jobs, dead letters and answers have " +
			strconv.FormatInt(a.Stored, 10) +
			" of the " + strconv.FormatInt(a.Share, 10) + " bytes that they may have now")
		scoped(p, "", false)
		p.StoredBytes, p.ShareBytes = new(a.Stored), new(a.Share)
		p.Header = http.Header{}
		seconds := ratelimit.RetryAfter(storeRetryAfter)
		p.Retry(seconds)
		s.cfg.Headers.Queue(p.Header, a, seconds)
		return p
	case shaper.StoreFull:
		if a.OfPart {
			p := problem.StoreFull.With(partText(a))
			p.Scope = "share"
			return p.RetryIn(cmp.Or(a.RetryAfter, storeRetryAfter))
		}
		return problem.StoreFull.With("memory becomes free when jobs have left, or tenants have been idle " +
			"for ten minutes").RetryIn(storeRetryAfter)
	case shaper.DeadlineUnreachable:
		p := problem.DeadlineFarAway.With("no estimate: it would leave too far in the future")
		if a.Start != 0 {
			p.EstimatedStart = a.Start.Time()
			p.EstimatedWaitMS = max(0, a.Start.Sub(a.Now).Milliseconds())
			p.Detail = "the job would leave in about " + strconv.FormatInt(p.EstimatedWaitMS, 10) + " ms"
		}
		return p
	case shaper.TooCostly:
		return tooCostly(a, pool)
	case shaper.Draining:
		return problem.TenantDraining.With("it accepts jobs again when it is resumed").RetryIn(pausedRetryAfter)
	case shaper.KeyReused:
		if s.cfg.Routes[route].Forward != nil {
			return problem.KeyReused.With("the first request with this Idempotency-Key had another method, path, query or " +
				"body, or another Authorization, Cookie or X-Api-Key for the upstream")
		}
		return problem.KeyReused.With("the first submission with this Idempotency-Key had another payload, " +
			"content type, path, type, route, delay or cost")
	default:
		p := problem.InternalFault.With("the server's log has the cause")
		p.Cause = errUnknownOutcome(a.Outcome)
		return p
	}
}

// tooCostly is the refusal of a job whose cost exceeds the bound of its pool, or of its flow if
// pool is empty.
func tooCostly(a shaper.Admission, pool string) *problem.Problem {
	setting, most := "max_cost", strconv.FormatInt(a.MaxCost, 10)
	if pool != "" {
		setting = "pools." + pool + ".max_cost"
	}
	p := problem.TooCostly.With("cost " + strconv.FormatInt(a.Cost, 10) + " exceeds " + setting + ", which is " + most)
	p.Errors = []wire.FieldError{{Field: "cost", Kind: "number", Rule: "must be at most " + most + ": " + setting}}
	p.Cost, p.MaxCost = a.Cost, a.MaxCost
	scoped(p, pool, false)
	return p
}

// partText names the part of the store that is full, its settings, and what to do.
func partText(a shaper.Admission) string {
	const leave = "there is room again when jobs of it have left, or its tenants have been idle for ten minutes"
	switch a.Part {
	case shaper.PartNetwork:
		return "an address, of IPv6 a /48, may bring " + strconv.FormatInt(a.PartGuests, 10) + " new guests in ten " +
			"minutes, a 50th of those that store.guest_tenants allows but at least 16: wait, or use an API key " +
			"or an address that has sent jobs"
	case shaper.PartTenants:
		return "the tenant's class has as many tenants as store.guest_tenants, or tenant_share of its tier, allows: " +
			leave
	case shaper.PartBytes:
		return "the tenant's class has as many bytes as store.guest_share, or store_share of its tier, allows: " + leave
	}
	return "only the reserve of the store is left (store.reserve), for tenants with an API key or settings of their " +
		"own: memory becomes free when jobs have left, or tenants have been idle for ten minutes"
}

type errUnknownOutcome shaper.Outcome

func (e errUnknownOutcome) Error() string { return "api: no answer for the outcome " + string(e) }

const (
	storeRetryAfter  = 5 * time.Second  // a guess: the store frees memory as jobs of any tenant leave
	pausedRetryAfter = 30 * time.Second // a guess: operators end pauses
)

// scoped names the scope of the figures of p: the pool, or the flow if pool is empty.
func scoped(p *problem.Problem, pool string, ofPart bool) {
	p.Scope, p.Pool = "flow", pool
	if ofPart {
		p.Scope = "share"
	} else if pool != "" {
		p.Scope = "pool"
	}
}

// neverFits makes the refusal by a full queue a permanent one.
func neverFits(p *problem.Problem, detail string) *problem.Problem {
	permanent := problem.NeverFits.With(detail)
	permanent.Depth, permanent.Capacity, permanent.Bytes, permanent.CapacityBytes = p.Depth, p.Capacity,
		p.Bytes, p.CapacityBytes
	permanent.Scope, permanent.Pool = p.Scope, p.Pool
	return permanent
}

// never is the turn of a request that never fits: it has no Retry-After.
const never time.Duration = -1

// full completes the 429 p. turn is how long the client should wait, 0 if unknown, as while paused.
// Retry-After is never earlier than the t of RateLimit.
func (s *Server) full(p *problem.Problem, a shaper.Admission, turn time.Duration) error {
	p.Header = http.Header{}
	var seconds int64
	switch {
	case turn == never:
	case turn > 0:
		seconds = ratelimit.Seconds(turn)
	default:
		seconds = ratelimit.RetryAfter(max(a.NextSlot, pausedRetryAfter))
	}
	if turn != never {
		p.RetryAfterMS, p.RetryAfterEstimated = ratelimit.Millis(a.RetryAfter), a.Estimated
		p.Retry(seconds)
	}
	s.cfg.Headers.Queue(p.Header, a, seconds)
	return p
}
