package api

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
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

// erp is a baseline with the pool erp of the route other.
func erp() shaper.Baseline {
	return shaper.Baseline{Defaults: shaper.DefaultPolicy(), Pools: map[string]shaper.PoolSettings{"erp": {
		Routes: []string{"other"}, Overrides: shaper.Overrides{Rate: &shaper.Rate{Limit: 20,
			Period: time.Second}, Capacity: new(int64(2))},
	}}}
}

func pooled(t *testing.T) *bench {
	t.Helper()
	b := newBench(t)
	b.queue.Baseline = erp()
	return b
}

func (r reply) pool(t *testing.T) (out wire.Pool) {
	t.Helper()
	if err := json.Unmarshal(r.Body.Bytes(), &out); err != nil || r.Code != http.StatusOK {
		t.Fatalf("%d %v: %s", r.Code, err, r.Body)
	}
	return out
}

func TestSettingsOfAPool(t *testing.T) {
	b := pooled(t)
	for _, step := range []struct {
		method, query, body string
		rate, revision      int64
		sources             string // of rate and concurrency
	}{
		{"PATCH", "", `{"rate":{"limit":40}}`, 40, 1, "api default"},
		{"PATCH", "?dry_run=true", `{"rate":"7/s"}`, 7, 1, "api default"},
		{"PATCH", "", `{"rate":null,"concurrency":3,"paused":true}`, 20, 2, "file api"},
		{"PUT", "", `{"rate":"5/s","rates":[{"rate":"100/h"}],"reason":"r"}`, 5, 3, "api default"},
		{"PUT", "", `{}`, 20, 4, "file default"},
	} {
		r := b.admin.do(t, step.method, "/v1/pools/erp"+step.query, nil, step.body)
		p := r.pool(t)
		sources := p.Sources["rate"] + " " + p.Sources["concurrency"]
		if p.Rate.Limit != step.rate || p.Revision != step.revision || sources != step.sources || len(r.Header().Get("ETag")) < 3 {
			t.Errorf("%s %s: %+v", step.method, step.body, p)
		}
	}
	b.admin.do(t, "PATCH", "/v1/pools/erp", headers{"If-Match": `"3"`}, `{"capacity":1}`).want(t,
		http.StatusPreconditionFailed, "revision-mismatch")
	b.admin.do(t, "PATCH", "/v1/pools/erp", headers{"If-Match": `"4", "5"`}, `{"capacity":1}`).want(t,
		http.StatusOK, "")
	if p := b.admin.do(t, "POST", "/v1/pools/erp/pause", nil,
		`{"reason":"maintenance"}`).pool(t); !*p.Paused || p.LimitedBy != "paused" || p.Reason != "maintenance" {
		t.Errorf("paused: %+v", p)
	}
	if p := b.admin.do(t, "POST", "/v1/pools/erp/resume", nil,
		"").pool(t); *p.Paused || p.Overrides != nil && p.Overrides.Paused != nil {
		t.Errorf("resumed: %+v", p)
	}
	b.admin.do(t, "POST", "/v1/pools/erp/unhold", nil, `{"reason":"back"}`).want(t, http.StatusOK, "")
	var h wire.History
	if err := json.Unmarshal(b.admin.do(t, "GET", "/v1/pools/erp/history", nil, "").Body.Bytes(),
		&h); err != nil || len(h.Items) != 8 ||
		h.Items[0].Action != "unhold" || h.Items[2].Reason != "maintenance" {
		t.Errorf("history %+v %v", h, err)
	}
}

func TestPoolsThatAreRefused(t *testing.T) {
	b := pooled(t)
	for _, c := range []struct{ method, path, body, kind, field string }{
		{"GET", "nowhere", "", "unknown-pool", ""},
		{"PATCH", "nowhere", `{}`, "unknown-pool", ""},
		{"PATCH", "nowhere", `{"rate":{"limit":1}}`, "unknown-pool", ""},
		{"POST", "nowhere/pause", "", "unknown-pool", ""},
		{"GET", "nowhere/history", "", "unknown-pool", ""},
		{"GET", "nowhere/flows", "", "unknown-pool", ""},
		{"GET", "erp/flows?limit=0", "", "invalid-request", "query.limit"},
		{"PATCH", "erp", `{"weight":2}`, "invalid-request", "weight"},
		{"PATCH", "erp", `{"reserve":"1/s"}`, "invalid-request", "reserve"},
		{"PATCH", "erp", `{"max_wait_ms":1}`, "invalid-request", "max_wait_ms"},
		{"PATCH", "erp", `{"tier":"pro"}`, "invalid-request", "tier"},
		{"PATCH", "erp", `{"routes":{"other":{}}}`, "invalid-request", "routes"},
		{"PUT", "erp", `{"rate":{"limit":5}}`, "invalid-request", "rate"},
		{"PATCH", "erp", `{"rate":"1/366d","burst":9007199254740991}`, "invalid-request", "burst"},
		{"PATCH", "erp?dry_run=maybe", `{}`, "invalid-request", "query.dry_run"},
	} {
		r := b.admin.do(t, c.method, "/v1/pools/"+c.path, nil, c.body)
		status := http.StatusUnprocessableEntity
		if c.kind == "unknown-pool" {
			status = http.StatusNotFound
		}
		r.want(t, status, c.kind)
		if c.field != "" && (len(r.problem.Errors) == 0 || r.problem.Errors[0].Field != c.field) {
			t.Errorf("%s %s: %+v", c.path, c.body, r.problem.Errors)
		}
	}
}

// TestPoolsTakeRequestsOfTheirRoutes: max_cost must not fall below what each request of a route
// costs, also where it follows the rate.
func TestPoolsTakeRequestsOfTheirRoutes(t *testing.T) {
	b := newBench(t, func(c *Config) {
		c.Routes["other"] = RouteInfo{Forward: &Forward{Path: "/", Wait: time.Second, Cost: 100}}
	})
	b.queue.Baseline = erp() // takes 200, the costs of ten seconds
	for _, step := range []struct {
		body, rule string // of max_cost; empty: the change is made
	}{
		{`{"max_cost":99}`, "must be at least 100, the cost of the route other: every request would be refused"},
		{`{"rate":"9/s"}`, "must be at least 100, the cost of the route other: every request would be refused; " +
			"not set, it follows the rate, so set it too"},
		{`{"rate":"9/s","max_cost":100}`, ""},
		{`{"rate":"1/s"}`, ""},
		{`{"max_cost":null,"rate":"40/s"}`, ""},
	} {
		r := b.admin.do(t, "PATCH", "/v1/pools/erp", nil, step.body)
		if step.rule == "" {
			r.want(t, http.StatusOK, "")
			continue
		}
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if e := r.problem.Errors; len(e) != 1 || e[0].Field != "max_cost" || e[0].Rule != step.rule {
			t.Errorf("%s: %+v", step.body, e)
		}
	}
}

func TestFiguresOfPools(t *testing.T) {
	b := pooled(t)
	b.queue.Shared = queue.Pool{Waiting: 2, Weights: 9, Reserves: 25, Running: 3, Departed: 7}
	b.queue.Flows = []queue.PoolFlow{
		{Tenant: "a", Route: "other", Depth: 5, Weight: 8, Reserve: shaper.Rate{Limit: 20,
			Period: time.Second}, Part: 0.8}, {Tenant: "b", Route: "other", Weight: 1, Part: 0.2},
	}
	var list wire.PoolList
	if err := json.Unmarshal(b.admin.do(t, "GET", "/v1/pools", nil, "").Body.Bytes(),
		&list); err != nil || len(list.Items) != 1 {
		t.Fatalf("%+v %v", list, err)
	}
	if p := list.Items[0]; p.Pool != "erp" || !slices.Equal(p.Routes,
		[]string{"other"}) || !p.Oversubscribed || p.WaitingFlows != 2 || p.Weights != 9 || p.Running != 3 || p.Departed != 7 {
		t.Errorf("%+v", p)
	}
	if p := list.Items[0]; p.Hold != "flow" || p.MaxHoldMS != 60_000 || *p.MaxCost != 200 {
		t.Errorf("hold %s for %d ms, max cost %d", p.Hold, p.MaxHoldMS, *p.MaxCost)
	}
	if p := b.admin.do(t, "PATCH", "/v1/pools/erp", nil, `{"rate":"25/s"}`).pool(t); p.Oversubscribed {
		t.Errorf("reserves that add up to the rate: %+v", p)
	}
	var flows wire.PoolFlows
	if err := json.Unmarshal(b.admin.do(t, "GET", "/v1/pools/erp/flows?limit=1", nil, "").Body.Bytes(),
		&flows); err != nil || len(flows.Items) != 1 {
		t.Fatalf("%+v %v", flows, err)
	}
	if f := flows.Items[0]; f.Tenant != "a" || f.Reserve == nil || f.Reserve.Limit != 20 || f.Part != 0.8 {
		t.Errorf("%+v", f)
	}
	if r := newBench(t).admin.do(t, "GET", "/v1/pools", nil,
		""); strings.TrimSpace(r.Body.String()) != `{"items":[]}` {
		t.Errorf("without pools: %s", r.Body)
	}
}

func TestWeightAndReserve(t *testing.T) {
	b := pooled(t)
	for _, step := range []struct {
		body            string
		weight, reserve int64
		other           int64
	}{
		{`{"weight":8,"reserve":"5/s"}`, 8, 5, 5},
		{`{"routes":{"other":{"reserve":{"limit":2,"period_ms":1000}}}}`, 8, 5, 2},
		{`{"weight":null,"reserve":null}`, 1, 0, 2},
	} {
		got := b.admin.do(t, "PATCH", "/v1/tenants/a", nil, step.body).tenant(t)
		limit := func(r *shaper.Rate) int64 {
			if r == nil {
				return 0
			}
			return r.Limit
		}
		other := got.Policy
		if f, own := got.Routes["other"]; own {
			other = f.Policy
		}
		if *got.Weight != step.weight || limit(got.Reserve) != step.reserve || limit(other.Reserve) != step.other {
			t.Errorf("%s: weight %d, reserve %+v, other %+v", step.body, *got.Weight, got.Reserve,
				other.Reserve)
		}
	}
	for body, field := range map[string]string{
		`{"weight":0}`: "weight", `{"weight":1001}`: "weight", `{"weight":1.5}`: "weight",
		`{"reserve":"11/s"}`: "reserve", `{"reserve":{"limit":1}}`: "reserve",
		`{"reserve":5}`: "reserve", `{"reserve":"0/s"}`: "reserve",
		`{"reserve":{"limit":2000001,"period_ms":1000}}`: "reserve",
		`{"routes":{"other":{"reserve":"11/s"}}}`:        "routes.other.reserve",
	} {
		r := b.admin.do(t, "PATCH", "/v1/tenants/a", nil, body)
		r.want(t, http.StatusUnprocessableEntity, "invalid-request")
		if len(r.problem.Errors) == 0 || r.problem.Errors[0].Field != field {
			t.Errorf("%s: %+v", body, r.problem.Errors)
		}
	}
}

// The answer to a job that does not fit into the pool says so; the flow's own queue has capacity.
func TestFullPool(t *testing.T) {
	b := pooled(t)
	job := func(tenant string) reply {
		return b.intake.do(t, "POST", "/v1/jobs", headers{"Sluice-Tenant": tenant},
			`{"type":"t","payload":1,"route":"other"}`)
	}
	job("a").want(t, http.StatusAccepted, "")
	job("b").want(t, http.StatusAccepted, "")
	r := job("c")
	r.want(t, http.StatusTooManyRequests, "queue-full")
	if p := r.problem; p.Scope != "pool" || p.Pool != "erp" || *p.Depth != 2 || *p.Capacity != 2 || p.Detail != "the pool erp holds 2 of 2 jobs" {
		t.Errorf("%+v", p)
	}
	b.admin.do(t, "PATCH", "/v1/tenants/d", nil, `{"capacity":0}`).want(t, http.StatusOK, "")
	if r := b.intake.do(t, "POST", "/v1/jobs", headers{"Sluice-Tenant": "d"},
		`{"type":"t","payload":1}`); r.problem.Scope != "flow" || r.problem.Pool != "" {
		t.Errorf("%+v", r.problem)
	}
	bytes := b.s.refusal(shaper.Admission{Outcome: shaper.FullOfBytes, OfPool: true, Bytes: 5,
		CapacityBytes: 6, Asked: 1, AskedBytes: 7, Never: true}, "", "other", "")
	if p := problem.Of(bytes); p.Type != "urn:sluice:problem:never-fits" || p.Scope != "pool" || p.Pool != "erp" || *p.CapacityBytes != 6 {
		t.Errorf("%+v", p)
	}
}

// The engine answers as the fake does, and lists who waits.
func TestPoolOfARealQueue(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	baseline := erp()
	q, err := queue.Open(t.Context(), engine, queue.Options{Logger: log, Defaults: baseline.Defaults,
		Pools: baseline.Pools})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	for name, over := range map[string]ports{"fake": withBaseline(newFake()).ports(), "embedded": portsOf(q)} {
		t.Run(name, func(t *testing.T) { poolStory(t, over) })
	}
	flows, err := q.PoolFlows(t.Context(), "erp", 10)
	if err != nil || len(flows) != 2 || flows[0].Part+flows[1].Part < 0.999 {
		t.Errorf("%+v %v", flows, err)
	}
	one, err := q.Pool(t.Context(), "erp")
	if all, failed := q.AllPools(t.Context()); err != nil || failed != nil || len(all) != 1 {
		t.Errorf("all pools: %+v %v %v", all, err, failed)
	} else {
		queuetest.Compare(t, "the pool among all", all[0], one)
	}
	if a, err := q.Tenant(t.Context(), "a"); err != nil || codec.Tenant(a).Routes["other"].Pool != "erp" {
		t.Errorf("the pool of a route: %+v %v", a, err)
	}
	if weights := pooledWeights(t, q); weights["a"] != 3 || weights["b"] != 1 || len(weights) != 2 {
		t.Errorf("weights in a scan: %v", weights)
	}
}

// pooledWeights are the weights of the flows of erp that wait in a scan, by tenant.
func pooledWeights(t *testing.T, q *queue.Queue) map[string]int64 {
	t.Helper()
	weights := map[string]int64{}
	for cursor := ""; ; {
		page, next, err := q.Scan(t.Context(), cursor, 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range page {
			for _, f := range b.Pooled {
				if f.Waits && f.Pool == "erp" && f.Route == "other" && f.Tenant == b.Name && f.LimitedBy != "" {
					weights[b.Name] = f.Weight
				}
			}
		}
		if cursor = next; cursor == "" {
			return weights
		}
	}
}

func withBaseline(f *fakeQueue) *fakeQueue {
	f.Baseline = erp()
	return f
}

func poolStory(t *testing.T, over ports) {
	s, err := newServer(over, Config{Routes: map[string]RouteInfo{"default": {MaxAttempts: 5},
		"other": {MaxAttempts: 1}}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	const job, elsewhere = `{"type":"t","payload":1,"route":"other"}`, `{"type":"t","payload":1}`
	for i, step := range []struct {
		h                          http.Handler
		method, path, tenant, body string
		status                     int
		part                       string
	}{
		{s.Admin(), "POST", "/v1/pools/erp/pause", "", "", 200, `"paused":true`},
		{s.Admin(), "PATCH", "/v1/tenants/a", "", `{"weight":3}`, 200, `"weight":3`},
		{s.Intake(), "POST", "/v1/jobs", "a", job, 202, `"state":"queued"`},
		{s.Intake(), "POST", "/v1/jobs", "b", job, 202, `"state":"queued"`},
		{s.Intake(), "POST", "/v1/jobs", "b", job, 429, `"scope":"pool","pool":"erp"`},
		{s.Intake(), "POST", "/v1/jobs", "b", elsewhere, 202, ""},
		{s.Admin(), "GET", "/v1/pools/erp", "", "", 200, `"depth":2`},
		{s.Admin(), "PATCH", "/v1/pools/erp", "", `{"capacity":null,"rate":"30/s"}`, 200, `"limit":30`},
		{s.Admin(), "GET", "/v1/pools/erp/history", "", "", 200, `"limit":30`},
		{s.Admin(), "POST", "/v1/pools/erp/unhold", "", `{"reason":"back"}`, 200, `"revision":3`},
		{s.Admin(), "GET", "/v1/pools", "", "", 200, `"pool":"erp"`},
		{s.Intake(), "POST", "/v1/jobs/batch", "a",
			`{"atomic":true,"jobs":[` + job + `,` + elsewhere + `]}`, 422,
			`"field":"atomic","kind":"boolean"`},
		{s.Intake(), "POST", "/v1/jobs/batch", "a", `{"jobs":[` + job + `,` + elsewhere + `]}`, 200,
			`"status":202`},
		{s.Admin(), "PATCH", "/v1/pools/erp", "", `{"burst":0}`, 422, `"field":"burst"`},
		{s.Admin(), "GET", "/v1/pools/else", "", "", 404, `unknown-pool`},
	} {
		r := httptest.NewRequestWithContext(context.Background(), step.method, "http://localhost"+step.path,
			strings.NewReader(step.body))
		if step.body != "" {
			r.Header.Set("Content-Type", "application/json")
		}
		if step.tenant != "" {
			r.Header.Set("Sluice-Tenant", step.tenant)
		}
		w := httptest.NewRecorder()
		step.h.ServeHTTP(w, r)
		if w.Code != step.status || !strings.Contains(w.Body.String(), step.part) {
			t.Errorf("step %d, %s %s: %d %s", i, step.method, step.path, w.Code, w.Body)
		}
	}
}

// TestTheChargeOfAPoolEnds: the history tells an unhold with charge, and the body has its rules.
func TestTheChargeOfAPoolEnds(t *testing.T) {
	b := pooled(t)
	b.admin.do(t, "POST", "/v1/pools/erp/unhold", nil, `{"charge":1}`).
		want(t, http.StatusUnprocessableEntity, "invalid-request")
	b.admin.do(t, "POST", "/v1/tenants/acme/unhold", nil, `{"charge":true}`).
		want(t, http.StatusUnprocessableEntity, "invalid-request")
	b.admin.do(t, "POST", "/v1/pools/erp/unhold", nil, `{"charge":true,"reason":"mistake"}`).want(t, http.StatusOK, "")
	r := b.admin.do(t, "GET", "/v1/pools/erp/history", nil, "")
	if body := r.Body.String(); !strings.Contains(body, `"action":"unhold-charge","reason":"mistake"`) ||
		!strings.Contains(body, "192.0.2.1") {
		t.Errorf("the history is %s", body)
	}
}
