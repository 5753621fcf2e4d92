package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// One story over the fake that the other tests use, and over the real queue: both answer alike.
func TestStoryOverBothQueues(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	real, err := queue.Open(t.Context(), engine, queue.Options{Logger: log, Defaults: shaper.DefaultPolicy()})
	if err != nil {
		t.Fatal(err)
	}
	defer real.Close()
	for name, over := range map[string]ports{"fake": newFake().ports(), "embedded": portsOf(real)} {
		t.Run(name, func(t *testing.T) { story(t, over) })
	}
}

// The API shows the attempts that a worker has logged in a real queue: of two that fail, and
// of the one after a replay.
func TestAttemptLogOfARealQueue(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	q, err := queue.Open(t.Context(), engine, queue.Options{Logger: log, Defaults: shaper.DefaultPolicy()})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	var answers atomic.Int64
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if answers.Add(1) <= 2 {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer upstream.Close()
	w, err := worker.New(q, worker.Config{Logger: log, Routes: map[string]worker.Route{"default": {
		URL:   upstream.URL,
		Retry: worker.Retry{MaxAttempts: 2, MinBackoff: time.Millisecond, MaxBackoff: time.Millisecond},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- w.Run(ctx) }()
	defer func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	s, err := New(q, Config{Routes: map[string]RouteInfo{"default": {MaxAttempts: 2}}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	intake := readDocument(t, s.Intake())
	tell := func(r reply) (text string) {
		for _, a := range r.job.AttemptLog {
			if a.At.Before(r.job.Created) || a.At.Location() != time.UTC {
				t.Errorf("at %v of a job created at %v", a.At, r.job.Created)
			}
			text += fmt.Sprintf("%d %s %d %q\n", a.Attempt, a.Outcome, a.Status, a.Message)
		}
		return text
	}
	const failed = "1 retry 502 \"the upstream answered 502 Bad Gateway\"\n" +
		"2 dead 502 \"the upstream answered 502 Bad Gateway\"\n"
	r := intake.do(t, "POST", "/v1/jobs", headers{"Prefer": "wait=30"}, plainJob)
	if got := tell(r); r.job.State != "dead" || got != failed {
		t.Errorf("%s: %s", got, r.Body)
	}
	path := "/v1/jobs/" + r.job.ID
	if r = intake.do(t, "POST", path+"/replay", nil, ""); r.Code != http.StatusAccepted {
		t.Fatalf("%s", r.Body)
	}
	r = intake.do(t, "GET", path, headers{"Prefer": "wait=30"}, "")
	if got := tell(r); r.job.State != "succeeded" || got != failed+"1 succeeded 200 \"\"\n" {
		t.Errorf("%s: %s", got, r.Body)
	}
}

func story(t *testing.T, over ports) {
	s, err := newServer(over, Config{
		Routes: map[string]RouteInfo{"default": {MaxAttempts: 5}}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	intake, admin := readDocument(t, s.Intake()), readDocument(t, s.Admin())
	const tenant, path = "a/é", "/v1/tenants/a%2F%C3%A9"
	var first string
	for _, step := range []struct {
		method, path string
		h            headers
		body         string
		status       int
		says         string
	}{
		{"POST", "/v1/jobs", headers{"Idempotency-Key": `"k"`}, plainJob, 202, `"position":1`},
		{"POST", "/v1/jobs", headers{"Idempotency-Key": "k", "Prefer": "wait=1"}, plainJob, 202,
			`"state":"queued"`},
		{"POST", "/v1/jobs", headers{"Idempotency-Key": "k"}, `{"type":"t","payload":2}`, 422,
			"idempotency-key-reused"},
		{"POST", "/v1/jobs", headers{"Prefer": "wait=1"}, `{"type":"t","payload":1,"delay_ms":60000}`, 202,
			`"scheduled_at"`},
		{"GET", "/v1/jobs/{first}", headers{"Prefer": "wait=1"}, "", 200, `"attempts":0`},
		{"GET", "/v1/jobs/{first}", headers{"Sluice-Tenant": "other"}, "", 404, "unknown-job"},
		{"GET", "/v1/jobs/{first}x", nil, "", 404, "unknown-job"},
		{"PATCH", path, headers{"If-Match": `"0"`},
			`{"rate":{"limit":1,"period_ms":60000},"capacity":3,"reason":"x"}`, 200, `"revision":1`},
		{"PATCH", path, nil, `{"rate":{"limit":2}}`, 200, `"rate":{"limit":2,"period_ms":60000}`},
		{"PATCH", path, nil, `{"burst":4000000000}`, 422, "200 years"},
		{"PUT", path, headers{"If-Match": `"1"`}, `{}`, 412, "revision-mismatch"},
		{"POST", "/v1/jobs", nil, plainJob, 202, `"position":2`},
		{"POST", "/v1/jobs", nil, plainJob, 429, `"depth":3`},
		{"POST", "/v1/jobs/batch", nil, `{"jobs":[` + plainJob + `],"atomic":true}`, 429, "queue-full"},
		{"POST", "/v1/jobs/batch", nil,
			`{"jobs":[{"type":"order.create","payload":{"n":1},"idempotency_key":"k"},` + plainJob + `]}`,
			200, `"status":429`},
		{"POST", path + "/pause", nil, "", 200, `"limited_by":"paused"`},
		{"GET", "/v1/jobs?state=queued", nil, "", 200, `"items":[{`},
		{"GET", "/v1/jobs?state=scheduled&route=default&limit=1000", nil, "", 200, `"state":"scheduled"`},
		{"GET", "/v1/jobs?state=queued&limit=1", nil, "", 200, `"next_cursor":"`},
		{"GET", "/v1/jobs?state=dead", nil, "", 200, `{"items":[]}`},
		{"GET", "/v1/jobs?state=queued", headers{"Sluice-Tenant": "other"}, "", 200, `{"items":[]}`},
		{"GET", "/v1/jobs?state=queued&cursor=%00", nil, "", 422, "query.cursor"},
		{"DELETE", "/v1/jobs/{first}", nil, "", 200, `"cancelled"`},
		{"GET", "/v1/jobs?state=cancelled", nil, "", 200, `"state":"cancelled"`},
		{"GET", "/v1/jobs/{first}/events", nil, "", 200, `"state":"cancelled"`},
		{"GET", "/v1/jobs/{first}/events", headers{"Sluice-Tenant": "other"}, "", 404, "unknown-job"},
		{"DELETE", "/v1/jobs/{first}", nil, "", 200, `"finished_at"`},
		{"POST", "/v1/jobs/{first}/replay", nil, "{}", 409, `"state":"cancelled"`},
		{"POST", "/v1/jobs", nil, `{"type":"t","payload":1,"max_wait_ms":1}`, 202, `"position":2`},
		{"POST", path + "/resume", nil, `{"reason":"go"}`, 200, `"reason":"go"`},
		{"POST", path + "/unhold", headers{"If-Match": `"3"`}, "", 412, "revision-mismatch"},
		{"POST", path + "/unhold", headers{"If-Match": `"4"`}, `{"reason":"mended"}`, 200, `"reason":"go"`},
		{"POST", path + "/unhold", nil, `{"rate":null}`, 422, "is not a known field"},
		{"GET", path + "/history", nil, "", 200, `"action":"unhold","reason":"mended"`},
		{"POST", path + "/drain", headers{"If-Match": `"5"`}, `{"reason":"moving"}`, 200, `"draining":true`},
		{"POST", "/v1/jobs", nil, plainJob, 503, "problem:draining"},
		{"POST", "/v1/jobs/batch", nil, `{"jobs":[` + plainJob + `]}`, 200, `"status":503`},
		{"POST", "/v1/jobs/batch", nil, `{"jobs":[` + plainJob + `],"atomic":true}`, 503, "problem:draining"},
		{"POST", "/v1/jobs", headers{"Idempotency-Key": "k"}, plainJob, 202, `"state":"cancelled"`},
		{"PUT", path, nil, `{"capacity":3}`, 200, `"draining":true`},
		{"POST", path + "/purge", nil, `{"ids":["{first}"]}`, 200, `"count":0`},
		{"POST", path + "/purge", nil, `{"state":"scheduled","route":"default"}`, 200, `"count":1`},
		{"POST", path + "/purge", nil, `{"created_before":"2020-01-01T00:00:00Z"}`, 200,
			`{"count":0,"created_before":"2020-01-01T00:00:00Z"}`},
		{"POST", path + "/purge", nil, `{"all":true}`, 200, `"count":2`},
		{"POST", path + "/replay", nil, `{"error":"x"}`, 200, `"count":0`},
		{"POST", path + "/resume", nil, "", 200, `"paused":false`},
		{"POST", "/v1/jobs", nil, plainJob, 202, `"tenant":"a/é"`},
		{"GET", path + "/history", nil, "", 200,
			`"reason":"moving","before":{"rate":{"limit":2,"period_ms":60000},"capacity":3},` +
				`"after":{"rate":{"limit":2,"period_ms":60000},"capacity":3,"draining":true}`},
		{"GET", "/v1/tenants", nil, "", 200, `"tenant":"a/é"`},
		{"GET", "/v1/tenants?cursor=AAAA", nil, "", 422, "query.cursor"},
		{"DELETE", path, nil, "", 204, ""},
		{"GET", path, nil, "", 200, `"rate":{"limit":10,"period_ms":1000}`},
		{"GET", "/readyz", nil, "", 200, "ok"},
	} {
		d := intake
		if strings.HasPrefix(step.path, "/v1/tenants") {
			d = admin
		}
		h := headers{"Sluice-Tenant": tenant}
		for name, value := range step.h {
			h[name] = value
		}
		r := d.do(t, step.method, strings.Replace(step.path, "{first}", first, 1), h,
			strings.Replace(step.body, "{first}", first, 1))
		if r.Code != step.status || !strings.Contains(r.Body.String(), step.says) {
			t.Errorf("%s %s %s: %d, want %d with %s: %s", step.method, step.path, step.body, r.Code,
				step.status, step.says, r.Body)
		}
		if first == "" {
			first = r.job.ID
		}
	}
}
