package api

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const plainJob = `{"type":"order.create","payload":{"n":1}}`

func TestSubmitAnswersWithTheJob(t *testing.T) {
	b := newBench(t)
	r := b.submit(plainJob, headers{"Sluice-Tenant": "acme"})
	j := r.job
	if r.Code != http.StatusAccepted || r.Header().Get("Location") != "/v1/jobs/"+j.ID {
		t.Errorf("%d Location %q", r.Code, r.Header().Get("Location"))
	}
	queuetest.Compare(t, "the job", j, wire.Job{
		ID: j.ID, Tenant: "acme", Route: "default", Type: "order.create", State: "queued", Position: 1,
		MaxAttempts: 5, Created: j.Created, EstimatedStart: j.EstimatedStart,
	})
	if j.Created.IsZero() || j.EstimatedStart.IsZero() {
		t.Errorf("created at %v, estimated to start at %v, want both", j.Created, j.EstimatedStart)
	}
	for name, want := range map[string]string{
		"RateLimit-Policy":        `"queue";q=1000, "drain";q=10;w=1`,
		"RateLimit":               `"queue";r=999;t=1`,
		"X-RateLimit-Limit":       "1000",
		"X-RateLimit-Remaining":   "999",
		"X-RateLimit-Retry-After": "0",
	} {
		if got := r.Header().Get(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	s := b.queue.Submission(j.ID)
	queuetest.Compare(t, "the submission", queuetest.Only(s, "Tenant", "Cost", "MaxAttempts"),
		queue.Submission{Tenant: "acme", Cost: 1, MaxAttempts: 5})
	if r := b.submit(plainJob, nil); r.job.Tenant != "default" {
		t.Errorf("without a header the tenant is %q", r.job.Tenant)
	}
}

func TestSubmitHandsEveryFieldOn(t *testing.T) {
	b := newBench(t)
	r := b.submit(`{"type":"t","payload":1,"route":"other","delay_ms":1500,"max_wait_ms":60000,"cost":3}`,
		headers{"Idempotency-Key": "k"})
	s := b.queue.Submission(r.job.ID)
	s.Payload = nil
	want := queue.Submission{
		ID: r.job.ID, Tenant: "default", Route: "other", Type: "t", IdempotencyKey: "k", Cost: 3,
		Delay:   1500 * time.Millisecond,
		MaxWait: time.Minute, MaxAttempts: 1,
	}
	queuetest.Compare(t, "the submission", s, want)
	queuetest.Compare(t, "the state", r.job.State, "scheduled")
	queuetest.Compare(t, "the position", r.job.Position, 0)
	queuetest.Compare(t, "the job has no time at which it is due", r.job.Scheduled.IsZero(), false)
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

func TestPayloadIsKeptByteForByte(t *testing.T) {
	b := newBench(t)
	for _, p := range []string{
		`{"sku":"abc","qty":1}`, `"plain"`, `[1,2,3]`, `null`, `12345678901234567890`, `0.10`, `1e400`,
		`{"a":1,"a":2}`, `"\ud800"`,
		`{"a":{"b":[{"c":"é 漢字 \u0000 \"q\""}]}}`, `{ "spaced" :  true }`, `"<&>"`,
		strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
	} {
		id := b.submit(`{"type":"t", "payload" : `+p+` }`, nil).job.ID
		if got := string(b.queue.Submission(id).Payload); got != p {
			t.Errorf("payload %.60s became %.60s", p, got)
		}
	}
}

func TestOddTenantsAreKeptApart(t *testing.T) {
	b := newBench(t)
	seen := map[string]string{}
	for _, name := range []string{
		"}x", "a}b", "{", "a:b", "a b", strings.Repeat("n", 255), "é", "..", "%2e", ".", "*", "[a]", "a/b",
		"a%2Fb",
	} {
		r := b.submit(plainJob, headers{"Sluice-Tenant": name})
		if r.job.Tenant != name {
			t.Errorf("tenant %q became %q", name, r.job.Tenant)
		}
		seen[r.job.ID] = name
		got := b.intake.do(t, "GET", "/v1/jobs/"+r.job.ID, headers{"Sluice-Tenant": "other"}, "")
		if got.Code != http.StatusNotFound {
			t.Errorf("another tenant reads %q's job: %d", name, got.Code)
		}
	}
}

func TestRepeatedTenantHeaderIsRefused(t *testing.T) {
	_, err := codec.ReadTenant(http.Header{"Sluice-Tenant": {"a", "b"}})
	if problem.Of(err).Status != http.StatusUnprocessableEntity {
		t.Errorf("%v", err)
	}
}

func TestIdempotencyKey(t *testing.T) {
	b := newBench(t)
	first := b.submit(`{"type":"t","payload":{"n":1}}`, headers{"Idempotency-Key": `"k-1"`})
	again := b.submit(`{"type":"t","payload":{"n":1}}`, headers{"Idempotency-Key": `k-1`})
	queuetest.Compare(t, "the status of the second submission", again.Code, 202)
	queuetest.Compare(t, "its job", again.job.ID, first.job.ID)
	queuetest.Compare(t, "Idempotent-Replayed", again.Header().Get("Idempotent-Replayed"), "true")
	if first.Header().Get("Idempotent-Replayed") != "" {
		t.Error("the first submission is called a replay")
	}
	r := b.intake.do(t, "POST", "/v1/jobs", headers{"Idempotency-Key": "k-1"}, `{"type":"t","payload":{"n":2}}`)
	r.want(t, http.StatusUnprocessableEntity, "idempotency-key-reused")
	other := b.submit(plainJob, headers{"Idempotency-Key": "k-1", "Sluice-Tenant": "other"})
	if other.job.ID == first.job.ID {
		t.Error("tenants share keys")
	}
	b.queue.Finish(first.job.ID, shaper.Succeeded, nil, nil)
	done := b.submit(`{"type":"t","payload":{"n":1}}`, headers{"Idempotency-Key": "k-1"})
	if done.Code != 202 || !done.job.Done {
		t.Errorf("a finished job's key: %d %s", done.Code, done.Body)
	}
	b.queue.Forget(first.job.ID)
	gone := b.submit(`{"type":"t","payload":{"n":1}}`, headers{"Idempotency-Key": "k-1", "Prefer": "wait=5"})
	queuetest.Compare(t, "the status for a forgotten job's key", gone.Code, 200)
	queuetest.Compare(t, "the job is done", gone.job.Done, true)
	queuetest.Compare(t, "its state", gone.job.State, "")
}

func TestFullQueue(t *testing.T) {
	b := newBench(t)
	b.admin.do(t, "PATCH", "/v1/tenants/b", nil, `{"capacity":3,"rate":{"limit":2,"period_ms":1000}}`)
	h := headers{"Sluice-Tenant": "b"}
	for range 3 {
		b.submit(plainJob, h)
	}
	r := b.intake.do(t, "POST", "/v1/jobs", h, plainJob)
	r.want(t, http.StatusTooManyRequests, "queue-full")
	queuetest.Compare(t, "the depth", *r.problem.Depth, 3)
	queuetest.Compare(t, "the capacity", *r.problem.Capacity, 3)
	if ms := r.problem.RetryAfterMS; ms < 1 || ms > 500 {
		t.Errorf("retry_after_ms is %d, want 1 to 500", ms)
	}
	after, err := strconv.Atoi(r.Header().Get("Retry-After"))
	if err != nil || after < 1 || after > 3 {
		t.Errorf("Retry-After %q", r.Header().Get("Retry-After"))
	}
	if r.Header().Get("RateLimit-Policy") != `"queue";q=3, "drain";q=2;w=1` ||
		!strings.HasPrefix(r.Header().Get("RateLimit"), `"queue";r=0`) {
		t.Errorf("%v", r.Header())
	}
	if r.Header().Get("X-RateLimit-Retry-After") != strconv.Itoa(after) ||
		r.Header().Get("Cache-Control") != "no-store" {
		t.Errorf("%v", r.Header())
	}

	b.admin.do(t, "POST", "/v1/tenants/b/pause", nil, "")
	r = b.intake.do(t, "POST", "/v1/jobs", h, plainJob)
	r.want(t, http.StatusTooManyRequests, "queue-full")
	if after, _ = strconv.Atoi(r.Header().Get("Retry-After")); after < 30 || after > 36 {
		t.Errorf("while paused: Retry-After %d, want 30 to 36", after)
	}
	if strings.Contains(r.Body.String(), "retry_after_ms") {
		t.Errorf("while paused: %s, want no retry_after_ms", r.Body)
	}
	if limit := r.Header().Get("RateLimit"); strings.Contains(limit, "t=") {
		t.Errorf("while paused: RateLimit %s, want no t", limit)
	}

	b.admin.do(t, "PUT", "/v1/tenants/b", nil, `{"capacity":0}`)
	r = b.intake.do(t, "POST", "/v1/jobs", h, plainJob)
	r.want(t, http.StatusTooManyRequests, "queue-full")
	queuetest.Compare(t, "Retry-After with capacity 0", r.Header().Get("Retry-After"), "")
	body := r.Body.String()
	if strings.Contains(body, "retry_after_ms") || !strings.Contains(body, `"capacity":0`) {
		t.Errorf("capacity 0: %s, want the capacity and no retry_after_ms", body)
	}
}

// Whatever is known of a refusal, Retry-After is not earlier than the t beside it.
func TestRetryAfterIsNotEarlierThanT(t *testing.T) {
	b := newBench(t)
	for _, tt := range []struct {
		retry, next time.Duration
		size        int64
		least       int64 // of Retry-After; 0: there is none
	}{
		{time.Second, time.Second, 1, 1}, {0, 366 * 24 * time.Hour, 1, 31622400},
		{1500 * time.Millisecond, 2500 * time.Millisecond, 2, 3},
		{0, 0, 1, 30}, {0, time.Second, 11, 0},
	} {
		a := shaper.Admission{
			Outcome: shaper.Full, Depth: 10, Capacity: 10, RetryAfter: tt.retry, NextSlot: tt.next,
			Asked: tt.size, Never: tt.size > 10,
		}
		h := problem.Of(b.s.refusal(a, "flow", "default", "")).Header
		got, _ := strconv.ParseInt(h.Get("Retry-After"), 10, 64)
		if got < tt.least || (tt.least == 0 && got != 0) {
			t.Errorf("%+v: %v", tt, h)
		}
	}
}

func TestDeadlineUnreachable(t *testing.T) {
	b := newBench(t)
	b.admin.do(t, "PATCH", "/v1/tenants/d", nil, `{"rate":{"limit":1,"period_ms":1000}}`)
	h := headers{"Sluice-Tenant": "d"}
	for range 10 {
		b.submit(plainJob, h)
	}
	r := b.intake.do(t, "POST", "/v1/jobs", h, `{"type":"t","payload":1,"max_wait_ms":2000}`)
	r.want(t, http.StatusUnprocessableEntity, "deadline-unreachable")
	if wait := r.problem.EstimatedWaitMS; wait < 8000 || wait > 10000 {
		t.Errorf("estimated_wait_ms is %d, want 8000 to 10000", wait)
	}
	queuetest.Compare(t, "estimated_start_at is absent", r.problem.EstimatedStart.IsZero(), false)
	if r := b.submit(`{"type":"t","payload":1,"max_wait_ms":60000}`, h); r.Code != 202 {
		t.Errorf("%d", r.Code)
	}
}

func TestCancel(t *testing.T) {
	b := newBench(t)
	id := b.submit(plainJob, nil).job.ID
	for range 2 {
		r := b.intake.do(t, "DELETE", "/v1/jobs/"+id, nil, "")
		queuetest.Compare(t, "the status", r.Code, 200)
		queuetest.Compare(t, "the job", queuetest.Only(r.job, "State", "Done"),
			wire.Job{State: "cancelled", Done: true})
	}
	id = b.submit(plainJob, nil).job.ID
	b.queue.Finish(id, shaper.Leased, nil, nil)
	r := b.intake.do(t, "DELETE", "/v1/jobs/"+id, nil, "")
	r.want(t, http.StatusConflict, "job-state-conflict")
	if r.problem.State != "leased" {
		t.Errorf("%s", r.Body)
	}
}

func TestReplay(t *testing.T) {
	b := newBench(t)
	id := b.submit(plainJob, nil).job.ID
	r := b.intake.do(t, "POST", "/v1/jobs/"+id+"/replay", nil, "{}")
	r.want(t, http.StatusConflict, "job-state-conflict")
	b.queue.Finish(id, shaper.Dead, &queue.Response{Status: 400}, &queue.JobError{
		Message: "refused", Status: 400, At: time.Now(),
	})
	got := b.intake.do(t, "GET", "/v1/jobs/"+id, nil, "").job
	queuetest.Compare(t, "the job is done", got.Done, true)
	if got.LastError == nil || got.LastError.Status != 400 {
		t.Errorf("the last error is %+v, want the status 400", got.LastError)
	}
	b.admin.do(t, "PATCH", "/v1/tenants/default", nil, `{"capacity":0}`)
	b.intake.do(t, "POST", "/v1/jobs/"+id+"/replay", nil, "").want(t, http.StatusTooManyRequests, "queue-full")
	b.admin.do(t, "DELETE", "/v1/tenants/default", nil, "")
	r = b.intake.do(t, "POST", "/v1/jobs/"+id+"/replay", nil, "")
	queuetest.Compare(t, "the status", r.Code, 202)
	queuetest.Compare(t, "the state", r.job.State, "queued")
	for _, name := range []string{"RateLimit", "Location"} {
		if r.Header().Get(name) == "" {
			t.Errorf("the answer has no header %s", name)
		}
	}
}

func TestAttemptLog(t *testing.T) {
	log := func(pairs ...any) (out []queue.Attempt) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, queue.Attempt{Number: pairs[i].(int), Event: pairs[i+1].(shaper.Event)})
		}
		return out
	}
	for _, c := range []struct {
		name string
		job  queue.Job
		want string
	}{
		{"never failed", queue.Job{State: shaper.Succeeded, Attempts: 1}, ""},
		{"to be tried again", queue.Job{
			State: shaper.Retrying, Attempts: 2, Log: log(1, shaper.Retry, 2, shaper.Retry),
		}, "1 retry, 2 retry"},
		{"held at no cost", queue.Job{
			State: shaper.Leased, Attempts: 1, Log: log(1, shaper.Retry, 2, shaper.Hold, 2, shaper.Hold),
		}, "1 retry, 2 held, 2 held"},
		{"in the end", queue.Job{
			State: shaper.Succeeded, Attempts: 2, Log: log(1, shaper.Retry, 2, shaper.Succeed),
		}, "1 retry, 2 succeeded"},
		{"refused for good", queue.Job{State: shaper.Dead, Attempts: 1, Log: log(1, shaper.Die)}, "1 dead"},
		{"out of attempts", queue.Job{
			State: shaper.Dead, Attempts: 2, Log: log(1, shaper.Retry, 2, shaper.Die),
		}, "1 retry, 2 dead"},
		{"held too often", queue.Job{
			State: shaper.Dead, Attempts: 2, Log: log(2, shaper.Hold, 2, shaper.Hold),
		}, "2 held, 2 dead"},
		{"its lease ran out too often", queue.Job{State: shaper.Dead, Attempts: 2, Log: log(1, shaper.Retry)},
			"1 retry"},
		{"replayed, waiting", queue.Job{State: shaper.Queued, Log: log(1, shaper.Retry, 2, shaper.Die)},
			"1 retry, 2 dead"},
		{"replayed, failed", queue.Job{
			State: shaper.Retrying, Attempts: 1, Log: log(2, shaper.Die, 1, shaper.Retry),
		}, "2 dead, 1 retry"},
		{"cancelled meanwhile", queue.Job{State: shaper.Cancelled, Attempts: 1, Log: log(1, shaper.Retry)},
			"1 retry"},
	} {
		var got []string
		for _, a := range codec.Job(c.job).AttemptLog {
			got = append(got, strconv.Itoa(a.Attempt)+" "+a.Outcome)
		}
		if got := strings.Join(got, ", "); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// The log is part of every answer with the job.
func TestAttemptLogIsShown(t *testing.T) {
	b := newBench(t)
	id := b.submit(plainJob, nil).job.ID
	if r := b.intake.do(t, "GET", "/v1/jobs/"+id, nil, ""); strings.Contains(r.Body.String(), "attempt_log") {
		t.Errorf("nothing has failed: %s", r.Body)
	}
	b.queue.Finish(id, shaper.Retrying, nil, &queue.JobError{
		Message: "the upstream answered 502 Bad Gateway", Status: 502,
	})
	b.queue.Finish(id, shaper.Succeeded, &queue.Response{Status: 201}, nil)
	r := b.intake.do(t, "GET", "/v1/jobs/"+id, headers{"Prefer": "wait=1"}, "")
	log := r.job.AttemptLog
	if len(log) != 2 || log[0].At.IsZero() || log[1].At.IsZero() {
		t.Fatalf("%s", r.Body)
	}
	want := []wire.Attempt{
		{Attempt: 1, Outcome: "retry", At: log[0].At, Status: 502,
			Message: "the upstream answered 502 Bad Gateway"},
		{Attempt: 2, Outcome: "succeeded", At: log[1].At, Status: 201},
	}
	if !slices.Equal(log, want) {
		t.Errorf("%s", r.Body)
	}
}

func TestResponseBody(t *testing.T) {
	b := newBench(t)
	for body, want := range map[string]wire.Response{
		`{"ok":true}`: {Status: 200, Body: `{"ok":true}`, BodyTruncated: true},
		"\xff\x00":    {Status: 200, Body: "/wA=", BodyEncoding: "base64", BodyTruncated: true},
		"":            {Status: 200, BodyTruncated: true},
	} {
		id := b.submit(plainJob, nil).job.ID
		b.queue.Finish(id, shaper.Succeeded, &queue.Response{Status: 200, Body: []byte(body), Truncated: true}, nil)
		got := b.intake.do(t, "GET", "/v1/jobs/"+id, nil, "").job.Response
		if got == nil {
			t.Fatalf("%q: the job has no response", body)
		}
		want.Headers = got.Headers
		queuetest.Compare(t, fmt.Sprintf("the response with %q", body), *got, want)
	}
}

func TestBatch(t *testing.T) {
	b := newBench(t)
	b.admin.do(t, "PATCH", "/v1/tenants/b", nil, `{"capacity":5,"rate":{"limit":1,"period_ms":60000}}`)
	h := headers{"Sluice-Tenant": "b"}
	send := func(n int, atomic bool) reply {
		jobs := slices.Repeat([]string{`{"type":"t","payload":1}`}, n)
		return b.intake.do(t, "POST", "/v1/jobs/batch", h,
			`{"jobs":[`+strings.Join(jobs, ",")+`],"atomic":`+strconv.FormatBool(atomic)+`}`)
	}
	r := send(8, true)
	r.want(t, http.StatusTooManyRequests, "never-fits")
	if r.Header().Get("Retry-After") != "" || r.Header().Get("RateLimit") != `"queue";r=5` {
		t.Errorf("8 into 5 can never fit: %v", r.Header())
	}
	r = send(8, false)
	var got wire.BatchResult
	if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil || r.Code != 200 || len(got.Items) != 8 {
		t.Fatalf("%d %v %s", r.Code, err, r.Body)
	}
	for i, item := range got.Items {
		switch {
		case i < 5 && (item.Status != 202 || item.Job == nil || item.Type != ""):
			t.Errorf("item %d: %+v", i, item)
		case i >= 5 &&
			(item.Status != 429 || item.Job != nil || item.Type != "urn:sluice:problem:queue-full" ||
				*item.Depth != 5):
			t.Errorf("item %d: %+v", i, item)
		}
	}
	if r := send(3, true); r.Code != 429 || r.Header().Get("Retry-After") == "" {
		t.Errorf("%d %v", r.Code, r.Header())
	}
}

// A job that cannot be submitted has a decision of its own, and the others are admitted. An atomic
// batch is refused for it.
func TestBatchWithMalformedJobs(t *testing.T) {
	b := newBench(t)
	good, large := `{"type":"t","payload":1}`, `{"type":"t","payload":"`+strings.Repeat("x", 300<<10)+`"}`
	jobs := []string{good, `{"payload":1}`, `7`, `{"type":"t","payload":1,"cost":0,"typo":1}`,
		`{"type":"t","payload":1,"route":"nowhere"}`, large, good,
		`{"type":"t","payload":1,"callback_url":"http://x/"}`}
	send := func(atomic bool) reply {
		return b.intake.do(t, "POST", "/v1/jobs/batch", nil, fmt.Sprintf(`{"jobs":[%s],"atomic":%v}`,
			strings.Join(jobs, ","), atomic))
	}
	r := send(false)
	var got wire.BatchResult
	err := json.Unmarshal(r.Body.Bytes(), &got)
	if err != nil || r.Code != http.StatusOK || len(got.Items) != len(jobs) {
		t.Fatalf("%d %s", r.Code, r.Body)
	}
	for i, want := range []struct {
		status       int
		kind, fields string
	}{
		{202, "", ""}, {422, "invalid-request", "type"}, {422, "invalid-request", "body"},
		{422, "invalid-request", "cost typo"}, {404, "unknown-route", "route"},
		{413, "too-large", "body"}, {202, "", ""}, {422, "invalid-request", "callback_url"},
	} {
		v := got.Items[i]
		var fields []string
		for _, e := range v.Errors {
			fields = append(fields, e.Field)
		}
		what := fmt.Sprintf("job %d: ", i)
		queuetest.Compare(t, what+"status", v.Status, want.status)
		queuetest.Compare(t, what+"type", strings.TrimPrefix(v.Type, problem.URN), want.kind)
		queuetest.Compare(t, what+"fields", strings.Join(fields, " "), want.fields)
		queuetest.Compare(t, what+"has a job", v.Job != nil, want.status == 202)
	}
	if n := len(b.queue.IDs()); n != 2 {
		t.Errorf("%d jobs were admitted, want 2", n)
	}
	if r = send(true); len(b.queue.IDs()) != 2 {
		t.Errorf("of an atomic batch some were admitted: %s", r.Body)
	}
	r.want(t, http.StatusUnprocessableEntity, "invalid-request")
	if !strings.HasPrefix(r.problem.Detail, "jobs[1].type (nothing) is required") || len(r.problem.Errors) != 5 {
		t.Errorf("%s", r.Body)
	}
}

// What is larger than the queue never fits, and is not to be tried again.
func TestNeverFits(t *testing.T) {
	b := newBench(t)
	b.admin.do(t, "PATCH", "/v1/tenants/b", nil, `{"capacity":5,"capacity_bytes":1000}`)
	h := headers{"Sluice-Tenant": "b"}
	large := `{"type":"t","payload":"` + strings.Repeat("x", 1200) + `"}`
	six := strings.TrimSuffix(strings.Repeat(`{"type":"t","payload":1},`, 6), ",")
	for _, c := range []struct{ what, path, body, detail string }{
		{"a batch", "/v1/jobs/batch", `{"jobs":[` + six + `],"atomic":true}`,
			"a batch of 6 jobs can never fit into a queue of 5: send fewer at once, or raise the capacity"},
		{"a payload", "/v1/jobs", large, "payloads of 1202 bytes at once can never fit into a queue of 1000"},
	} {
		r := b.intake.do(t, "POST", c.path, h, c.body)
		r.want(t, http.StatusTooManyRequests, "never-fits")
		if !strings.Contains(r.problem.Detail, c.detail) {
			t.Errorf("%s: the detail is %q, want %q in it", c.what, r.problem.Detail, c.detail)
		}
		queuetest.Compare(t, c.what+": Retry-After", r.Header().Get("Retry-After"), "")
		queuetest.Compare(t, c.what+": retry_after_ms", r.problem.RetryAfterMS, 0)
	}
	b.admin.do(t, "PATCH", "/v1/tenants/b", nil, `{"capacity":0}`)
	b.intake.do(t, "POST", "/v1/jobs", h, `{"type":"t","payload":1}`).want(t, http.StatusTooManyRequests,
		"queue-full")
}

func TestBatchKeys(t *testing.T) {
	b := newBench(t)
	first := b.submit(`{"type":"t","payload":1}`, headers{"Idempotency-Key": "k"})
	r := b.intake.do(t, "POST", "/v1/jobs/batch", nil,
		`{"jobs":[{"type":"t","payload":1,"idempotency_key":"k"},{"type":"t","payload":2,`+
			`"idempotency_key":"k"}]}`)
	var got wire.BatchResult
	if err := json.Unmarshal(r.Body.Bytes(), &got); err != nil || len(got.Items) != 2 {
		t.Fatalf("%s", r.Body)
	}
	known, reused := got.Items[0], got.Items[1]
	queuetest.Compare(t, "the statuses", []int{known.Status, reused.Status}, []int{202, 422})
	queuetest.Compare(t, "the replays", []bool{known.Replayed, reused.Replayed}, []bool{true, false})
	queuetest.Compare(t, "the job of the known key", known.Job.ID, first.job.ID)
}

func TestHead(t *testing.T) {
	b := newBench(t)
	id := b.submit(plainJob, nil).job.ID
	if r := b.intake.do(t, "HEAD", "/v1/jobs/"+id, nil, ""); r.Code != 200 {
		t.Errorf("%d", r.Code)
	}
}

// The jobs of a request carry its trace.
func TestJobsCarryTheTrace(t *testing.T) {
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	b := newBench(t)
	h := headers{"traceparent": trace}
	b.submit(plainJob, h)
	b.intake.do(t, "POST", "/v1/jobs/batch", h, `{"jobs":[`+plainJob+`,`+plainJob+`]}`)
	ids := b.queue.IDs()
	b.submit(plainJob, headers{"traceparent": "nonsense"})
	for i, id := range b.queue.IDs() {
		want := trace
		if i >= len(ids) {
			want = ""
		}
		if got := b.queue.Submission(id).TraceParent; got != want {
			t.Errorf("job %d: %q, want %q", i, got, want)
		}
	}
}
