package codec

import (
	"encoding/base64"
	"time"
	"unicode/utf8"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Job converts a job to its JSON form. A job without a state ended long ago: only its key is
// stored.
func Job(j queue.Job) *wire.Job {
	out := &wire.Job{
		ID:             j.ID,
		Tenant:         j.Tenant,
		Route:          j.Route,
		Type:           j.Type,
		Cost:           j.Cost,
		ActualCost:     j.ActualCost,
		Done:           j.State.Done() || j.State == 0,
		Position:       j.Position,
		EstimatedStart: UTC(j.EstimatedStart),
		Attempts:       j.Attempts,
		MaxAttempts:    j.MaxAttempts,
		Created:        UTC(j.Created),
		Scheduled:      UTC(j.Scheduled),
		Started:        UTC(j.Started),
		Finished:       UTC(j.Finished),
	}
	if j.State != 0 {
		out.State = j.State.String()
	}
	if j.State != shaper.Queued {
		out.Position = 0
	}
	if e := j.LastError; e != nil {
		out.LastError = &wire.JobError{Message: e.Message, Status: e.Status, At: UTC(e.At)}
	}
	for i, a := range j.Log {
		out.AttemptLog = append(out.AttemptLog, wire.Attempt{
			Attempt: a.Number, Outcome: outcomeOf(j, i), At: UTC(a.At), Status: a.Status, Message: a.Message,
		})
	}
	if r := j.Response; r != nil {
		out.Response = responseOf(r)
	}
	if m, err := httpmsg.DecodeAnswer(j.Answer); err == nil {
		out.Response = answerOf(m)
	}
	return out
}

// OperatorJob converts a job to the JSON form for operators, with details that clients must not
// get.
func OperatorJob(j queue.Job) *wire.Job {
	out := Job(j)
	out.Type = ShortType(out.Type)
	if j.LastError != nil {
		out.LastError.Detail = j.LastError.Detail
	}
	return out
}

var outcomeNames = map[shaper.Event]string{
	shaper.Succeed: "succeeded", shaper.Retry: "retry", shaper.Die: "dead", shaper.Hold: "held",
}

// outcomeOf names the outcome of the i-th delivery in the log. The log has the outcome that the
// worker requested. A hold beyond the free ones may have made the job dead instead.
func outcomeOf(j queue.Job, i int) string {
	a := j.Log[i]
	// With more attempts it was a lease that ran out.
	if i == len(j.Log)-1 && j.State == shaper.Dead && j.Attempts == a.Number {
		return outcomeNames[shaper.Die]
	}
	return outcomeNames[a.Event]
}

// responseOf keeps text, and encodes as base64 what JSON cannot represent byte for byte.
func responseOf(r *queue.Response) *wire.Response {
	out := &wire.Response{Status: r.Status, Headers: r.Headers, BodyTruncated: r.Truncated}
	if out.Headers == nil {
		out.Headers = map[string]string{}
	}
	out.Body, out.BodyEncoding = textOf(r.Body)
	return out
}

// textOf returns a body as it is shown, with its encoding.
func textOf(body []byte) (text, encoding string) {
	if utf8.Valid(body) {
		return string(body), ""
	}
	return base64.StdEncoding.EncodeToString(body), "base64"
}

// UTC returns the time in UTC; the zero time stays zero. A stored time later than LastTime
// becomes LastTime.
func UTC(t time.Time) time.Time {
	switch {
	case t.IsZero():
		return time.Time{}
	case t.After(LastTime):
		return LastTime
	}
	return t.UTC()
}

// Key converts an API key, without its hash, to its JSON form.
func Key(k queue.Key) wire.Key {
	out := wire.Key{
		ID: k.ID, Name: k.Name, Created: UTC(k.Created), Expires: UTC(k.Expires), LastUsed: UTC(k.Used),
		Scopes: []string{},
	}
	for _, scope := range queue.Scopes() {
		if k.Rights.Has(scope) {
			out.Scopes = append(out.Scopes, string(scope))
		}
	}
	if k.Rights != nil {
		out.Routes, out.Types = k.Rights.Routes, k.Rights.Types
		for _, n := range k.Rights.Networks {
			out.Networks = append(out.Networks, n.String())
		}
	}
	return out
}
