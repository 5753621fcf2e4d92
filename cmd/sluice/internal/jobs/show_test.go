package jobs

import (
	"bufio"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/queuetest"
)

// limited is a flow in a pool of this rate, with a quarter of it.
func limited(by string, rate float64) wire.Flow {
	return wire.Flow{Pool: "erp", PoolPart: 0.25, PoolRate: rate, Figures: wire.Figures{LimitedBy: by}}
}

// A job is shown as a timeline with its response. Control characters of others are replaced.
func TestShowJob(t *testing.T) {
	at := func(s int) time.Time { return time.Date(2026, 1, 2, 3, 4, s, 0, time.UTC) }
	for _, c := range []struct {
		name string
		job  wire.Job
		of   wire.Flow
		want []string // in this order
	}{
		{"queued", wire.Job{State: "queued", Position: 3, Created: at(0), EstimatedStart: at(9), MaxAttempts: 5}, limited("concurrency", 0),
			[]string{"queued, position 3, attempts 0 of 5\nlimited by concurrency\n", "03:04:00.000Z", "created", "+9.000s", "estimated start"}},
		{"queued in a pool", wire.Job{State: "queued", Position: 3, Cost: 7, MaxAttempts: 5}, limited("pool", 20),
			[]string{"queued, position 3, attempts 0 of 5, cost 7\nlimited by pool erp, whose part for this flow is 5/s\n"}},
		{"queued in a paused pool", wire.Job{State: "queued"}, limited("pool", 0), []string{"limited by pool erp, which is paused\n"}},
		{"scheduled", wire.Job{State: "scheduled", Created: at(0), Scheduled: at(5), EstimatedStart: at(6)}, wire.Flow{},
			[]string{"created", "+5.000s", "will be queued", "+6.000s", "estimated start"}},
		{"retrying", wire.Job{State: "retrying", Created: at(0), Started: at(1), Scheduled: at(4),
			Attempts: 1, MaxAttempts: 5,
			LastError: &wire.JobError{Message: "upstream failed", Status: 500, At: at(2)}}, wire.Flow{},
			[]string{
				"created", "started, attempt 1 of 5", "failed: upstream failed (status 500)",
				"will be queued again, attempt 2 of 5",
			}},
		{"succeeded", wire.Job{State: "succeeded", Created: at(0), Started: at(4), Finished: at(5),
			Attempts: 2, MaxAttempts: 5,
			LastError: &wire.JobError{Message: "timeout", At: at(2)},
			Response: &wire.Response{
				Status: 200, Headers: map[string]string{"B": "2\u009b31m", "A": "1"},
				Body: "one\ntwo\x1b[2J\n", BodyTruncated: true,
			}}, wire.Flow{},
			[]string{
				"created", "failed: timeout\n", "started, attempt 2 of 5", "finished: succeeded",
				"response 200", "A: 1", "B: 2\ufffd31m\n", "  one\n  two\ufffd[2J\n", "(cut off)",
			}},
		{"failed more than once", wire.Job{State: "dead", Created: at(0), Started: at(4), Finished: at(5),
			Attempts: 2, MaxAttempts: 2,
			LastError: &wire.JobError{Message: "no\nanswer\x1b[2J", At: at(5)},
			AttemptLog: []wire.Attempt{
				{Attempt: 1, Outcome: "retry", At: at(2), Status: 502, Message: "Bad Gateway"},
				{Attempt: 2, Outcome: "dead", At: at(5), Message: "no\nanswer\x1b[2J"},
			}}, wire.Flow{},
			[]string{"failed: no answer\ufffd[2J\n", "finished: dead",
				"\n\nATTEMPT  OUTCOME  AT                        STATUS  MESSAGE\n",
				"1        retry    2026-01-02T03:04:02.000Z  502     Bad Gateway\n",
				"2        dead     2026-01-02T03:04:05.000Z  -       no answer\ufffd[2J\n"}},
		{"binary", wire.Job{
			State: "dead", Finished: at(5),
			Response: &wire.Response{Status: 400, Body: "/wA=", BodyEncoding: "base64"},
		}, wire.Flow{},
			[]string{"finished: dead", "response 400", "(base64)", "/wA="}},
		{"with headers", wire.Job{State: "queued", Created: at(0), Headers: map[string]string{
			"X-Request-Id": "17\x1b[2J", "Accept-Language": "de"}}, wire.Flow{},
			[]string{"created", "\nheaders\n  Accept-Language: de\n  X-Request-Id: 17\ufffd[2J\n"}},
		{"past retention", wire.Job{Done: true}, wire.Flow{}, []string{"past retention"}},
	} {
		var out strings.Builder
		if err := showJob(&out, c.job, c.of); err != nil {
			t.Fatal(err)
		}
		rest := out.String()
		for _, want := range c.want {
			_, after, found := strings.Cut(rest, want)
			if !found {
				t.Errorf("%s: no %q in its place in\n%s", c.name, want, out.String())
				break
			}
			rest = after
		}
	}
}

// A forwarded request is printed readably, and what is no text by its size and type.
func TestShowRequest(t *testing.T) {
	for _, c := range []struct {
		name string
		r    wire.Request
		want string
	}{
		{"text", wire.Request{Method: "PUT", Target: "/a?b=1", Headers: map[string]string{"B": "2", "A": "1\x1b"},
			Body: "one\ntwo\n"}, "\nrequest PUT /a?b=1\n  A: 1\ufffd\n  B: 2\n\n  one\n  two\n"},
		{"nothing", wire.Request{Method: "GET"}, "\nrequest GET /\n"},
		{"binary", wire.Request{Method: "POST", Target: "/x", Body: "/wA=", BodyEncoding: "base64", BodyBytes: 9000,
			BodyTruncated: true, Headers: map[string]string{"Content-Type": "image/png", "Content-Encoding": "gzip"}},
			"\nrequest POST /x\n  Content-Encoding: gzip\n  Content-Type: image/png\n\n  (9000 bytes of image/png, gzip)\n"},
	} {
		var out strings.Builder
		w := bufio.NewWriter(&out)
		showRequest(w, c.r)
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		queuetest.Compare(t, c.name, out.String(), c.want)
	}
	cut := messageOfResponse(wire.Response{
		Headers: map[string]string{"content-type": "image/png"}, Body: "/wA=", BodyEncoding: "base64", BodyTruncated: true,
	})
	queuetest.Compare(t, "an answer of unknown size", cut.summary(), "more than 2 bytes of image/png")
	queuetest.Compare(t, "a refused request in a list", wrongWith(wire.Job{
		Type: "GET /x", State: "succeeded", Response: &wire.Response{Status: 404},
	}), " (answered 404)")
	queuetest.Compare(t, "a dead letter in a list", wrongWith(wire.Job{
		Type: "order", State: "dead", LastError: &wire.JobError{Message: "no\nanswer\x1b[2J", Status: 500},
	}), ": no answer\ufffd[2J")
}
