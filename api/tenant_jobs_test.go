package api

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func (r reply) detail(t testing.TB) (job wire.JobDetail) {
	t.Helper()
	if err := json.Unmarshal(r.Body.Bytes(), &job); err != nil || r.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", r.Code, err, r.Body)
	}
	return job
}

// An operator sees the jobs of every tenant, by its name in the path and without a credential of
// the tenant's.
func TestOperatorListsJobs(t *testing.T) {
	b := newBench(t, func(c *Config) { c.StatusRate = shaper.Rate{Limit: 1, Period: time.Hour} })
	for _, tenant := range []string{"acme", "a/b c", "é"} {
		path := "/v1/tenants/" + url.PathEscape(tenant) + "/jobs"
		first := b.submit(plainJob, headers{"Sluice-Tenant": tenant}).job.ID
		second := b.submit(`{"type":"t","payload":1,"route":"other"}`, headers{"Sluice-Tenant": tenant}).job.ID
		if _, ids := b.admin.do(t, "GET", path+"?state=queued", nil, "").list(t); !slices.Equal(ids,
			[]string{second, first}) {
			t.Errorf("%s: %v", tenant, ids)
		}
		if _, ids := b.admin.do(t, "GET", path+"?state=queued&route=other", nil, "").
			list(t); !slices.Equal(ids, []string{second}) {
			t.Errorf("%s, by route: %v", tenant, ids)
		}
		page, ids := b.admin.do(t, "GET", path+"?state=queued&limit=1", nil, "").list(t)
		if !slices.Equal(ids, []string{second}) || page.NextCursor == "" {
			t.Errorf("%s, the first page: %v %q", tenant, ids, page.NextCursor)
		}
		if _, ids := b.admin.do(t, "GET",
			path+"?state=queued&limit=1&cursor="+url.QueryEscape(page.NextCursor), nil,
			"").list(t); !slices.Equal(ids, []string{first}) {
			t.Errorf("%s, the second page: %v", tenant, ids)
		}
		b.admin.do(t, "GET", path+"?state=dead&route=gone", nil, "").want(t, http.StatusNotFound, "unknown-route")
	}
	for query, field := range map[string]string{
		"": "query.state", "?state=done": "query.state", "?state=dead&limit=0": "query.limit",
		"?state=dead&cursor=":        "query.cursor",
		"?state=dead&cursor=nowhere": "query.cursor", "?state=dead&route=": "query.route",
		"?state=dead&tenant=x": "query.tenant",
	} {
		r := b.admin.do(t, "GET", "/v1/tenants/acme/jobs"+query, nil, "")
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if len(r.problem.Errors) != 1 || r.problem.Errors[0].Field != field {
			t.Errorf("%q: %s", query, r.Body)
		}
	}
	b.admin.do(t, "GET", "/v1/tenants/"+strings.Repeat("x", 256)+"/jobs?state=dead", nil, "").want(t,
		http.StatusUnprocessableEntity, "")
	b.queue.Fail(queue.ErrUnavailable)
	b.admin.do(t, "GET", "/v1/tenants/acme/jobs?state=dead", nil, "").want(t, http.StatusServiceUnavailable,
		"unavailable")
}

func TestOperatorReadsPayloads(t *testing.T) {
	b := newBench(t)
	read := func(id string) wire.JobDetail {
		t.Helper()
		return b.admin.do(t, "GET", "/v1/tenants/default/jobs/"+id, nil, "").detail(t)
	}
	full := `"` + strings.Repeat("x", wire.MaxPayload-2) + `"`
	for payload, shown := range map[string]bool{
		`{"sku":1,"html":"<b>&amp;</b>","big":123456789012345678901234567890,"nul":null}`: true,
		`null`: true, `""`: true, `[1e400]`: true, full: true, `"` + full[1:] + ` `: true,
		`"y` + full[1:]: false,
	} {
		id := b.submit(`{"type":"t","payload":`+payload+`}`, nil).job.ID
		payload = strings.TrimSpace(payload)
		got := read(id)
		if want := (wire.JobDetail{Job: got.Job, PayloadBytes: len(payload),
			PayloadTruncated: !shown}); got.PayloadBytes != want.PayloadBytes ||
			got.PayloadTruncated != want.PayloadTruncated || got.PayloadEncoding != "" || got.ID != id ||
			got.State != "queued" {
			t.Errorf("%.40s: %d bytes, truncated %v, encoding %q, job %+v", payload, got.PayloadBytes,
				got.PayloadTruncated, got.PayloadEncoding, got.Job)
		}
		if string(got.Payload) != payload && shown || got.Payload != nil && !shown {
			t.Errorf("%.40s came back as %.40s", payload, got.Payload)
		}
	}
	dead := b.dead(plainJob, "refused")
	if got := read(dead); got.Payload == nil || len(got.AttemptLog) != 1 ||
		got.AttemptLog[0].Outcome != "dead" || got.LastError == nil {
		t.Errorf("a dead job is %+v", got)
	}
	done := b.submit(plainJob, nil).job.ID
	b.queue.Finish(done, shaper.Succeeded, &queue.Response{Status: 200}, nil)
	if got := read(done); got.Payload != nil || got.PayloadBytes != 0 || got.PayloadTruncated ||
		got.Response == nil {
		t.Errorf("a job that has ended is %+v", got)
	}
	// A Go program may submit what is not JSON.
	v, err := b.queue.Submit(t.Context(), queue.Submission{
		ID: "bytes", Tenant: "default", Route: "default", Type: "t", Payload: []byte("\xff<not json>"),
	})
	if err != nil || v.Job.ID != "bytes" {
		t.Fatal(v, err)
	}
	got := read("bytes")
	if want := `"` + base64.StdEncoding.EncodeToString([]byte("\xff<not json>")) +
		`"`; string(got.Payload) != want || got.PayloadEncoding != "base64" {
		t.Errorf("what is not JSON is %s (%s)", got.Payload, got.PayloadEncoding)
	}
	for _, path := range []string{"other/jobs/" + done, "default/jobs/nowhere", "default/jobs/UPPER"} {
		b.admin.do(t, "GET", "/v1/tenants/"+path, nil, "").want(t, http.StatusNotFound, "unknown-job")
	}
	b.queue.Fail(queue.ErrUnavailable)
	b.admin.do(t, "GET", "/v1/tenants/default/jobs/"+done, nil, "").want(t, http.StatusServiceUnavailable,
		"unavailable")
}

func TestOperatorCancelsAndReplays(t *testing.T) {
	b := newBench(t)
	of := headers{"Sluice-Tenant": "a/b"}
	const path = "/v1/tenants/a%2Fb/jobs/"
	waiting := b.submit(plainJob, of).job.ID
	b.admin.do(t, "DELETE", "/v1/tenants/a/jobs/"+waiting, nil, "").want(t, http.StatusNotFound, "unknown-job")
	for range 2 {
		if r := b.admin.do(t, "DELETE", path+waiting, nil, ""); r.Code != http.StatusOK ||
			r.job.State != "cancelled" {
			t.Errorf("cancel: %d %s", r.Code, r.Body)
		}
	}
	b.admin.do(t, "POST", path+waiting+"/replay", nil, "").want(t, http.StatusConflict, "job-state-conflict")
	dead := b.submit(plainJob, of).job.ID
	b.queue.Finish(dead, shaper.Dead, nil, &queue.JobError{Message: "refused", At: time.Now()})
	b.admin.do(t, "DELETE", path+dead, nil, "").want(t, http.StatusConflict, "job-state-conflict")
	b.admin.do(t, "POST", "/v1/tenants/a/jobs/"+dead+"/replay", nil, "").want(t, http.StatusNotFound,
		"unknown-job")
	b.admin.do(t, "POST", path+dead+"/replay", nil, `{"all":true}`).want(t, http.StatusUnprocessableEntity,
		"invalid-request")
	r := b.admin.do(t, "POST", path+dead+"/replay", nil, "")
	if r.want(t, http.StatusAccepted, ""); r.job.State != "queued" || r.Header().Get("Location") != path+dead {
		t.Errorf("%q %s", r.Header().Get("Location"), r.Body)
	}
}

// Operators wait for a job and follow its states as its client does.
func TestOperatorFollows(t *testing.T) {
	b := newBench(t, func(c *Config) { c.StatusRate = shaper.Rate{Limit: 1, Period: time.Hour} })
	id := b.submit(plainJob, headers{"Sluice-Tenant": "a/b"}).job.ID
	path := "/v1/tenants/a%2Fb/jobs/" + id
	waited := make(chan reply, 1)
	go func() { waited <- b.admin.do(t, "GET", path, headers{"Prefer": "wait=20"}, "") }()
	b.queue.Finish(id, shaper.Succeeded, nil, nil)
	if r := <-waited; r.job.State != "succeeded" || r.Header().Get("Preference-Applied") != "wait=20" {
		t.Errorf("%v %s", r.Header(), r.Body)
	}
	for range 3 { // their reads do not count
		r := b.admin.do(t, "GET", path+"/events", nil, "")
		if events := readEvents(t, r.Body.String()); r.Code != http.StatusOK || len(events) != 1 || !events[0].job(t).Done {
			t.Errorf("%d %s", r.Code, r.Body)
		}
	}
	b.admin.do(t, "GET", "/v1/tenants/other/jobs/"+id+"/events", nil, "").want(t, http.StatusNotFound, "unknown-job")
}

// Without admin.submit the admin listener takes no jobs, and does not say that it could.
func TestOperatorSubmitsWhereItMay(t *testing.T) {
	const path = "/v1/tenants/a%2Fb/jobs"
	off := newBench(t)
	for _, method := range []string{"POST", "PUT"} {
		r := off.admin.do(t, method, path, nil, plainJob)
		if r.want(t, http.StatusMethodNotAllowed, "method-not-allowed"); r.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("%s: allowed are %q", method, r.Header().Get("Allow"))
		}
	}
	if off.admin.read().paths["/v1/tenants/{tenant}/jobs"]["post"] != nil {
		t.Error("it is documented where it is off")
	}
	b := newBench(t, func(c *Config) { c.AdminSubmit = true; c.AdminToken = "s3cret" })
	token := headers{"Authorization": "Bearer s3cret", "Idempotency-Key": "k"}
	b.admin.do(t, "POST", path, nil, plainJob).want(t, http.StatusUnauthorized, "unauthorized")
	first := b.admin.do(t, "POST", path, token, plainJob)
	if first.want(t, http.StatusAccepted, ""); first.job.Tenant != "a/b" ||
		first.Header().Get("Location") != path+"/"+first.job.ID {
		t.Errorf("%q %s", first.Header().Get("Location"), first.Body)
	}
	again := b.admin.do(t, "POST", path, token, plainJob)
	if again.want(t, http.StatusAccepted, ""); again.job.ID != first.job.ID ||
		again.Header().Get("Idempotent-Replayed") != "true" {
		t.Errorf("the same key: %s", again.Body)
	}
	if r := b.intake.do(t, "GET", "/v1/jobs/"+first.job.ID, headers{"Sluice-Tenant": "a/b"},
		""); r.Code != http.StatusOK {
		t.Errorf("on the intake it is %d", r.Code)
	}
	for body, status := range map[string]int{
		`{"type":"t"}`: 422, `{`: 400, `{"type":"t","payload":1,"route":"nowhere"}`: 404,
		`{"type":"t","payload":1,"callback_url":"http://x"}`: 422,
	} {
		b.admin.do(t, "POST", path, headers{"Authorization": "Bearer s3cret"}, body).want(t, status, "")
	}
	b.s.Drain()
	b.admin.do(t, "POST", path, token, plainJob).want(t, http.StatusServiceUnavailable, "shutting-down")
	b.admin.do(t, "GET", path+"?state=queued", token, "").want(t, http.StatusOK, "")
}

// What names hosts and addresses of the operator's network is for operators alone.
func TestDetailOfAnErrorIsForOperators(t *testing.T) {
	b := newBench(t)
	id := b.submit(plainJob, headers{"Sluice-Tenant": "acme"}).job.ID
	const detail = "dial tcp 10.0.0.7:80: connect: connection refused"
	b.queue.Finish(id, shaper.Dead, nil, &queue.JobError{Message: "connection failed", Detail: detail})
	callback, err := JobJSON(queue.Job{
		ID: id, State: shaper.Dead, LastError: &queue.JobError{Message: "connection failed", Detail: detail},
	})
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"a callback": string(callback),
		"the job":    b.intake.do(t, "GET", "/v1/jobs/"+id, headers{"Sluice-Tenant": "acme"}, "").Body.String(),
		"the list": b.intake.do(t, "GET", "/v1/jobs?state=dead", headers{"Sluice-Tenant": "acme"}, "").
			Body.String(),
		"the events": b.intake.do(t, "GET", "/v1/jobs/"+id+"/events", headers{"Sluice-Tenant": "acme"}, "").
			Body.String(),
	} {
		if strings.Contains(text, "10.0.0.7") || !strings.Contains(text, `"connection failed"`) {
			t.Errorf("%s: %s", what, text)
		}
	}
	for _, path := range []string{"/v1/tenants/acme/jobs/" + id, "/v1/tenants/acme/jobs?state=dead"} {
		if text := b.admin.do(t, "GET", path, nil, "").Body.String(); !strings.Contains(text, detail) {
			t.Errorf("%s: %s", path, text)
		}
	}
}
