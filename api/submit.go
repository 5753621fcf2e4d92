package api

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/crash"
	"github.com/7509e464/sluice/internal/httpmsg"
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
	Replay(ctx context.Context, tenant, id string, as queue.Replaying) (queue.Decision, error)
	PoolOf(route string) string
}

const defaultRoute = "default"

// postJob is POST /v1/jobs.
func (s *Server) postJob(c *call) (*answer, error) {
	sub, err := s.parse(c)
	if err != nil {
		return nil, err
	}
	if err := s.guardJob(c, sub); err != nil {
		return nil, err
	}
	prefer := codec.Prefer(c.r.Header)
	if prefer.Wait > 0 {
		if err := c.who.Require(queue.ScopeRead); err != nil {
			return nil, s.forbidden(err)
		}
	}
	f := newAwaited(s)
	f.wait = prefer.Wait
	if err := s.admit(c, &sub, f); err != nil {
		return nil, err
	}
	f.awaitEnd(c.client)
	return s.accepted(c, f, prefer), nil
}

// parse reads a submission.
func (s *Server) parse(c *call) (sub queue.Submission, err error) {
	key, err := codec.ReadKey(c.r.Header)
	if err != nil {
		return sub, err
	}
	body, contentType, err := s.submitted(c)
	if err != nil {
		return sub, err
	}
	sub, wrong := s.submission(c.r.Context(), c.who, key, body)
	if wrong != nil {
		return sub, wrong
	}
	sub.ContentType, sub.TraceParent = contentType, codec.TraceParent(c.r.Header)
	return sub, nil
}

// submitted reads a submission, in JSON or as a raw body with its content type.
func (s *Server) submitted(c *call) (body wire.Submission, contentType string, err error) {
	if c.raw {
		body, contentType, err = codec.ReadRaw(c.r)
		body.Payload = c.body
		return body, contentType, err
	}
	if err := codec.NotRaw(c.r); err != nil {
		return body, "", err
	}
	err = s.decode(c, func() (err error) {
		body, err = codec.DecodeSubmission(c.body)
		return err
	})
	return body, "", err
}

// decode calls decode when it is the turn of the body.
func (s *Server) decode(c *call, decode func() error) error {
	return s.decoders.Decode(c.client, s.ownerOf(c), len(c.body), decode)
}

// submission builds the submission for the queue, unless the configuration does not allow it.
func (s *Server) submission(
	ctx context.Context, who auth.Principal, key string, body wire.Submission,
) (queue.Submission, *problem.Problem) {
	route := cmp.Or(body.Route, defaultRoute)
	info, known := s.cfg.Routes[route]
	switch {
	case !known:
		if body.Route == "" {
			return queue.Submission{}, problem.UnknownRouteAt("route", "", "must be given, for no route is named "+defaultRoute)
		}
		return queue.Submission{}, problem.UnknownRouteAt("route", "", problem.NotConfigured)
	case info.Forward != nil:
		return queue.Submission{}, forwardOnly(route)
	case body.Path != "" && !info.Paths:
		return queue.Submission{}, problem.Invalid("path", "string",
			"must be absent: the route "+route+" has no paths: true")
	}
	if s.cfg.MaxDelay != nil && body.DelayMS > 0 {
		if most, setting := s.cfg.MaxDelay(who); body.DelayMS > most.Milliseconds() {
			return queue.Submission{}, problem.InvalidValue("delay_ms", "number", strconv.FormatInt(body.DelayMS, 10),
				"must be at most "+strconv.FormatInt(most.Milliseconds(), 10)+" ("+setting+")")
		}
	}
	headers, wrong := listedHeaders(route, info.JobHeaders, body.Headers)
	if wrong != nil {
		return queue.Submission{}, wrong
	}
	if wrong := s.checkCallback(ctx, who.Tenant, body.CallbackURL); wrong != nil {
		return queue.Submission{}, wrong
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
		Headers:        headers,
		IdempotencyKey: key,
		Cost:           max(body.Cost, 1),
		Estimated:      info.Estimated,
		Delay:          time.Duration(body.DelayMS) * time.Millisecond,
		MaxWait:        time.Duration(body.MaxWaitMS) * time.Millisecond,
		MaxAttempts:    info.MaxAttempts,
		CallbackURL:    body.CallbackURL,
	}, nil
}

// listedHeaders returns the headers of a job with the names as the route lists them, or the 422 for
// those that it does not list.
func listedHeaders(
	route string, listed []string, headers map[string]string,
) (map[string]string, *problem.Problem) {
	if len(headers) == 0 {
		return nil, nil
	}
	out, wrong := make(map[string]string, len(headers)), problem.Fields(nil)
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		i := slices.IndexFunc(listed, func(other string) bool { return httpmsg.Is(name, other) })
		switch {
		case i >= 0:
			out[listed[i]] = headers[name]
		case len(listed) == 0:
			wrong.Add(codec.Join("headers", name), "string", "", "must be absent: the route "+route+" has no job_headers")
		default:
			wrong.Add(codec.Join("headers", name), "string", "", "must be one of the job_headers of the route "+route+": "+
				strings.Join(listed, ", "))
		}
	}
	if len(wrong) > 0 {
		return nil, problem.InvalidFields(wrong)
	}
	return out, nil
}

// admit requests admission. If f has a wait, it begins a watch of the job before that, so that it
// cannot miss a fast end. A refusal is an error. sub loses its payload.
func (s *Server) admit(c *call, sub *queue.Submission, f *awaited) (err error) {
	ctx := c.r.Context()
	if sub.ID, err = s.queue.NewID(sub.Tenant, sub.Route); err != nil {
		return err
	}
	f.end = time.Now().Add(f.wait)
	var inForce <-chan struct{}
	if f.wait > 0 {
		if inForce, err = f.watchEarly(sub.ID); err != nil {
			return err
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
	if f.known = f.decision.Job.ID != sub.ID; f.known && f.wait > 0 { // by its idempotency key
		f.stop()
		if f.watch(ctx, f.decision.Job.ID) != nil {
			f.end = time.Now() // the job is stored all the same
		}
	} else if f.wait > 0 {
		f.admitted(inForce)
	}
	return nil
}

// send requests admission. It and note have frames of their own. Within admit they would give it
// 2.7 KiB instead of 0.1, beneath all that Submit calls. With 1.6 KiB more there, clients that wait
// keep stacks of 16 KiB and not of 8 (TestForwardWaitsOnSmallStacks).
//
//go:noinline
func (s *Server) send(ctx context.Context, sub *queue.Submission, f *awaited) (err error) {
	f.decision, err = s.queue.Submit(ctx, *sub)
	return err
}

// note records the end of send. A refusal is an error.
//
//go:noinline
func (s *Server) note(sub *queue.Submission, f *awaited, span spans.Sending, err error) error {
	span.End(f.decision, err)
	if err != nil {
		s.metrics.unanswered(err)
		return err
	}
	s.decided(*sub, f.decision)
	f.decision.Job.Tenant = sub.Tenant
	return s.refusal(f.decision.Admission, flowName(sub.Tenant, sub.Route), sub.Route, sub.Type)
}

// answered is a job in the answer to its submission. It may have ended long ago, so a credential
// that may not read jobs gets nothing of its deliveries.
func answered(c *call, j queue.Job) *wire.Job {
	job := codec.Job(j)
	if !c.operator && c.who.Require(queue.ScopeRead) != nil {
		job.Response, job.LastError, job.AttemptLog = nil, nil, nil
	}
	return job
}

// accepted is the answer to a submission whose job was admitted or known.
func (s *Server) accepted(c *call, f *awaited, prefer codec.Preference) *answer {
	job := answered(c, f.decision.Job)
	a := &answer{status: http.StatusAccepted, body: job}
	if prefer.Given {
		a.set("Preference-Applied", prefer.Applied())
		if job.Done {
			a.status = http.StatusOK
		}
	}
	a.set("Location", "/v1/jobs/"+job.ID)
	if f.decision.Outcome == shaper.Replayed {
		a.set(replayedHeader, "true")
	}
	if a.status == http.StatusAccepted {
		s.cfg.Headers.Queue(a.header, f.decision.Admission, 0)
	}
	crash.At("before-answer")
	return a
}

// decided counts a submission that the queue has decided on, records it as an arrival, and logs
// refusals.
func (s *Server) decided(sub queue.Submission, v queue.Decision) {
	s.metrics.admission(string(v.Outcome))
	s.noteArrival(sub, v)
	s.errors.decided(sub, s.cfg.Routes[sub.Route].Forward != nil, v.Admission)
}

// flowName is unique among the flows of all tenants.
func flowName(tenant, route string) string { return tenant + "\x00" + route }
