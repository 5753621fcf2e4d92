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
	"github.com/7509e464/sluice/api/internal/request"
	"github.com/7509e464/sluice/api/internal/towire"
	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/internal/spans"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// admitter admits jobs. The store owns the clock; an admission is one atomic step. A refusal is an
// outcome of the decision, not an error.
type admitter interface {
	NewID(tenant, route string) (string, error)
	Submit(ctx context.Context, s queue.Submission) (queue.Decision, error)
	SubmitBatch(ctx context.Context, batch []queue.Submission, atomic bool) ([]queue.Decision, error)
	Replay(ctx context.Context, tenant, id string, maxAttempts int) (queue.Decision, error)
	PoolOf(route string) string
}

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
	if sub.ID, err = s.queue.NewID(sub.Tenant, sub.Route); err != nil {
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
	span := s.traces.Send(ctx, sub.TraceParent, sub.Tenant, sub.Route)
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
	f.decision, err = s.queue.Submit(ctx, *sub)
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
