package api

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// tenantAndID are what every request about one job is of. An id that was never made is not worth a
// question to the store.
func tenantAndID(c *call) (tenant, id string, err error) {
	id = c.param("id")
	if !plausibleID(id) {
		return "", "", queue.ErrNotFound
	}
	return c.who.Tenant, id, nil
}

func plausibleID(id string) bool {
	for _, b := range []byte(id) {
		if (b < '0' || b > '9') && (b < 'a' || b > 'z') {
			return false
		}
	}
	return id != "" && len(id) <= 64
}

// getJob is GET /v1/jobs/{id}.
func (s *Server) getJob(c *call) (*answer, error) {
	tenant, id, err := tenantAndID(c)
	if err != nil {
		return nil, err
	}
	if err := s.reading(tenant); err != nil {
		return nil, err
	}
	prefer := preferOf(c.r.Header)
	var job queue.Job
	if prefer.wait > 0 {
		job, err = s.follow(c.r.Context(), tenant, id, time.Now().Add(prefer.wait))
	} else {
		job, err = s.backend.Job(c.r.Context(), tenant, id)
	}
	if err != nil {
		return nil, err
	}
	a := ok(jobOf(job))
	if prefer.given {
		a.set("Preference-Applied", prefer.applied())
	}
	return a, nil
}

// deleteJob is DELETE /v1/jobs/{id}.
func (s *Server) deleteJob(c *call) (*answer, error) {
	tenant, id, err := tenantAndID(c)
	if err != nil {
		return nil, err
	}
	job, err := s.backend.Cancel(c.r.Context(), tenant, id)
	if errors.Is(err, queue.ErrConflict) {
		return nil, conflict(job, "only a scheduled, queued or retrying job can be cancelled")
	}
	if err != nil {
		return nil, err
	}
	return ok(jobOf(job)), nil
}

// replayJob is POST /v1/jobs/{id}/replay.
func (s *Server) replayJob(c *call) (*answer, error) {
	tenant, id, err := tenantAndID(c)
	if err != nil {
		return nil, err
	}
	if err := decodeEmpty(c.body); err != nil {
		return nil, err
	}
	job, err := s.backend.Job(c.r.Context(), tenant, id)
	if err != nil {
		return nil, err
	}
	if job.State == shaper.Dead { // else there is nothing to bring
		if err := s.guardJob(c, queue.Submission{Route: job.Route, Type: job.Type}); err != nil {
			return nil, err
		}
	}
	v, err := s.backend.Replay(c.r.Context(), tenant, id, s.attempts(job))
	if errors.Is(err, queue.ErrConflict) {
		return nil, conflict(v.Job, "only a dead job can be replayed")
	}
	if err != nil {
		return nil, err
	}
	s.metrics.admission(string(v.Outcome))
	if err := s.refusal(v.Admission, flowName(tenant, job.Route), 1, 0); err != nil {
		return nil, err
	}
	a := &answer{status: http.StatusAccepted, body: jobOf(v.Job)}
	a.set("Location", "/v1/jobs/"+v.Job.ID)
	s.cfg.Headers.limitHeaders(a.header, v.Admission, 0)
	return a, nil
}

// attempts is how many deliveries a job may have when it is replayed: its route's, or its own if
// the route is gone.
func (s *Server) attempts(job queue.Job) int {
	if info, known := s.cfg.Routes[job.Route]; known {
		return info.MaxAttempts
	}
	return job.MaxAttempts
}

// postBatch is POST /v1/jobs/batch.
func (s *Server) postBatch(c *call) (*answer, error) {
	body, wrong, err := decodeBatch(c.body, s.cfg.MaxBody)
	if err != nil {
		return nil, err
	}
	batch, held := s.submissions(c.who, body.Jobs, wrong)
	if body.Atomic {
		if err := together(held); err != nil {
			return nil, err
		}
	}
	if err := s.guardJobs(c, batch, held, body.Atomic); err != nil {
		return nil, err
	}
	verdicts, err := s.submitPassed(c, batch, held, body.Atomic)
	if err != nil {
		return nil, err
	}
	places, bytes := int64(1), int64(0) // asked for at once
	if body.Atomic {
		places = int64(len(batch))
		for _, s := range batch {
			bytes += int64(len(s.Payload))
		}
	}
	out := wire.BatchResult{Items: make([]wire.BatchVerdict, len(batch))}
	for i := range batch {
		if held[i] != nil {
			s.metrics.refusal(held[i])
			out.Items[i].Problem = held[i].Problem
			continue
		}
		v := verdicts[0]
		verdicts = verdicts[1:]
		flow := flowName(batch[i].Tenant, batch[i].Route)
		if !body.Atomic {
			flow, bytes = "", int64(len(batch[i].Payload))
		}
		refused := s.refusal(v.Admission, flow, places, bytes)
		switch {
		case refused == nil:
			out.Items[i] = wire.BatchVerdict{Problem: wire.Problem{Status: http.StatusAccepted}, Job: jobOf(v.Job), Replayed: v.Outcome == shaper.Replayed}
		case body.Atomic:
			return nil, refused // none was admitted, and every verdict says the same
		default:
			p := problemOf(refused)
			s.metrics.refusal(p)
			out.Items[i].Problem = p.Problem
		}
	}
	return ok(out), nil
}

// submissions builds the jobs of a batch. held says why a job is not submitted: it is in wrong
// already, or breaks a rule.
func (s *Server) submissions(
	who auth.Principal, jobs []wire.BatchJob, wrong []*problem,
) (batch []queue.Submission, held []*problem) {
	held = make([]*problem, len(jobs))
	copy(held, wrong)
	batch = make([]queue.Submission, len(jobs))
	for i, job := range jobs {
		if held[i] != nil {
			continue
		}
		var known bool
		if batch[i], known = s.submission(who, job.IdempotencyKey, job.Submission); !known {
			held[i] = unknownRouteAt("route")
		} else if rule := s.callbackRule(job.CallbackURL); rule != "" {
			held[i] = invalidFields([]wire.FieldError{{Field: "callback_url", Kind: "string", Rule: rule}})
		}
	}
	return batch, held
}

// submitPassed asks for admission of the jobs of a batch that are not held; the verdicts are theirs
// alone, in order.
func (s *Server) submitPassed(c *call, batch []queue.Submission, held []*problem, atomic bool) ([]queue.Verdict, error) {
	passed := make([]queue.Submission, 0, len(batch))
	for i, job := range batch {
		if held[i] == nil {
			passed = append(passed, job)
		}
	}
	if len(passed) == 0 {
		return nil, nil
	}
	for i := range passed {
		var err error
		if passed[i].ID, err = s.backend.NewID(c.who.Tenant); err != nil {
			return nil, err
		}
	}
	span := s.cfg.Traces.SendBatch(c.r.Context(), traceParentOf(c.r.Header), passed)
	for i := range passed {
		passed[i].TraceParent = span.TraceParent
	}
	verdicts, err := s.backend.SubmitBatch(c.r.Context(), passed, atomic)
	span.EndBatch(verdicts, err)
	if err != nil {
		s.metrics.admission(unavailableOutcome)
	}
	for i, v := range verdicts {
		s.judged(passed[i], v)
	}
	return verdicts, err
}

// JobJSON is the job as the API shows it, for what is told of it elsewhere.
func JobJSON(j queue.Job) ([]byte, error) {
	var buf bytes.Buffer
	if err := encodeJSON(&buf, jobOf(j)); err != nil {
		return nil, fmt.Errorf("api: job: %w", err)
	}
	return bytes.TrimSpace(buf.Bytes()), nil
}

// jobOf is the job in its JSON form. A job of which only the key is known has no state; it has
// ended long ago.
func jobOf(j queue.Job) *wire.Job {
	out := &wire.Job{
		ID:             j.ID,
		Tenant:         j.Tenant,
		Route:          j.Route,
		Type:           j.Type,
		Done:           j.State.Done() || j.State == 0,
		Position:       j.Position,
		EstimatedStart: utc(j.EstimatedStart),
		Attempts:       j.Attempts,
		MaxAttempts:    j.MaxAttempts,
		Created:        utc(j.Created),
		Scheduled:      utc(j.Scheduled),
		Started:        utc(j.Started),
		Finished:       utc(j.Finished),
	}
	if j.State != 0 {
		out.State = j.State.String()
	}
	if j.State != shaper.Queued {
		out.Position = 0
	}
	if e := j.LastError; e != nil {
		out.LastError = &wire.JobError{Message: e.Message, Status: e.Status, At: utc(e.At)}
	}
	for i, a := range j.Log {
		out.AttemptLog = append(out.AttemptLog, wire.Attempt{
			Attempt: a.Number, Outcome: outcomeOf(j, i), At: utc(a.At), Status: a.Status, Message: a.Message,
		})
	}
	if r := j.Response; r != nil {
		out.Response = responseOf(r)
	}
	return out
}

// operatorJob is the job as operators see it: with what its upstream's clients must not learn.
func operatorJob(j queue.Job) *wire.Job {
	out := jobOf(j)
	if j.LastError != nil {
		out.LastError.Detail = j.LastError.Detail
	}
	return out
}

var outcomeNames = map[shaper.Event]string{shaper.Succeed: "succeeded", shaper.Retry: "retry", shaper.Die: "dead", shaper.Hold: "held"}

// outcomeOf names how the i-th delivery of the log ended. The log has what the worker asked for; a
// hold that found no free one left may have made the job dead instead.
func outcomeOf(j queue.Job, i int) string {
	a := j.Log[i]
	if i == len(j.Log)-1 && j.State == shaper.Dead && j.Attempts == a.Number { // with more attempts it was a lease that ran out
		return outcomeNames[shaper.Die]
	}
	return outcomeNames[a.Event]
}

// responseOf keeps text as it is; whatever JSON could not repeat byte for byte goes as base64.
func responseOf(r *queue.Response) *wire.Response {
	out := &wire.Response{Status: r.Status, Headers: r.Headers, Body: string(r.Body), BodyTruncated: r.Truncated}
	if out.Headers == nil {
		out.Headers = map[string]string{}
	}
	if !utf8.Valid(r.Body) {
		out.Body, out.BodyEncoding = base64.StdEncoding.EncodeToString(r.Body), "base64"
	}
	return out
}

// lastTime is the last that RFC 3339 can write.
var lastTime = time.Date(10000, 1, 1, 0, 0, 0, -1, time.UTC)

// utc is the time in UTC; the zero time stays zero. What is stored may be later than lastTime, and
// is shown as that.
func utc(t time.Time) time.Time {
	switch {
	case t.IsZero():
		return time.Time{}
	case t.After(lastTime):
		return lastTime
	}
	return t.UTC()
}
