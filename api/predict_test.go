package api

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// predict asks what the body would do to the tenant acme.
func (b *bench) predict(body string) wire.Prediction {
	b.t.Helper()
	r := b.admin.do(b.t, http.MethodPost, "/v1/tenants/acme/predict", nil, body)
	var p wire.Prediction
	if err := json.Unmarshal(r.Body.Bytes(), &p); err != nil || r.Code != http.StatusOK {
		b.t.Fatalf("%d %v: %s", r.Code, err, r.Body)
	}
	return p
}

// outlook is one that is expected: waits as p50, p95, p99 and max, or none.
func outlook(admitted, refused, depth int64, waits ...int64) wire.Outlook {
	o := wire.Outlook{Admitted: admitted, Refused: refused, DepthMax: depth}
	if len(waits) > 0 {
		o.WaitP50, o.WaitP95, o.WaitP99, o.WaitMax = &waits[0], &waits[1], &waits[2], &waits[3]
	}
	return o
}

// Time stories: thirty jobs come at once to a queue of twenty places at ten a second, and then
// settings are tried.
func TestPredictions(t *testing.T) {
	now := outlook(20, 10, 20, 900, 1800, 1900, 1900)
	for _, tt := range []struct {
		name, body string
		then       wire.Outlook
	}{
		{"nothing changes", `{}`, now},
		{"twice the rate, by its half", `{"rate":{"limit":20}}`, outlook(20, 10, 20, 450, 900, 950, 950)},
		{"room for all", `{"capacity":100}`, outlook(30, 0, 30, 1400, 2800, 2900, 2900)},
		{"a burst", `{"burst":5,"reason":"a try"}`, outlook(20, 10, 20, 500, 1400, 1500, 1500)},
		{"a longest wait", `{"max_wait_ms":1000}`, outlook(11, 19, 11, 500, 1000, 1000, 1000)},
		{"further rates", `{"rates":[{"limit":60,"period_ms":60000}]}`,
			outlook(20, 10, 20, 9000, 18_000, 19_000, 19_000)},
		{"paused", `{"paused":true}`, outlook(20, 10, 20)},
		{"back to the defaults", `{"rate":null,"capacity":null}`, outlook(30, 0, 30, 1400, 2800, 2900, 2900)},
		{"for this route", `{"routes":{"default":{"rate":{"limit":20,"period_ms":1000}}}}`,
			outlook(20, 10, 20, 450, 900, 950, 950)},
		{"for another route", `{"routes":{"other":{"rate":{"limit":20,"period_ms":1000}}}}`, now},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.admin.do(t, http.MethodPatch, "/v1/tenants/acme", nil, `{"capacity":20}`)
				begun := time.Now()
				time.Sleep(time.Minute)
				for range 30 {
					b.intake.do(t, http.MethodPost, "/v1/jobs", headers{"Sluice-Tenant": "acme"}, plainJob)
				}
				time.Sleep(10 * time.Minute)
				want := wire.Prediction{From: begun.UTC(), Until: time.Now().UTC(), Arrivals: 30, Now: now, Then: tt.then}
				if diff := cmp.Diff(want, b.predict(tt.body)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if got := b.queue.Actor("acme"); b.tenant("acme").Revision != 1 {
					t.Errorf("the trial has changed the tenant: %s", got)
				}
				time.Sleep(time.Hour)
				if p := b.predict(tt.body); p.Arrivals != 0 || !p.From.Equal(time.Now().Add(-time.Hour)) {
					t.Errorf("an hour later: %+v", p)
				}
			})
		})
	}
}

func (b *bench) tenant(name string) (t wire.Tenant) {
	b.t.Helper()
	err := json.Unmarshal(b.admin.do(b.t, http.MethodGet, "/v1/tenants/"+name, nil, "").Body.Bytes(), &t)
	if err != nil {
		b.t.Fatal(err)
	}
	return t
}

// TestWhatCountsAsAnArrival: whatever the queue has judged for the first time, admitted or not, one
// by one or in a batch.
func TestWhatCountsAsAnArrival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		acme := func(key string) headers {
			h := headers{"Sluice-Tenant": "acme"}
			if key != "" {
				h["Idempotency-Key"] = key
			}
			return h
		}
		b.admin.do(t, http.MethodPatch, "/v1/tenants/acme", nil, `{"capacity":3}`)
		b.submit(plainJob, acme("k")) // 1
		b.submit(plainJob, acme("k"))
		b.intake.do(t, http.MethodPost, "/v1/jobs", acme("k"), `{"type":"t","payload":2}`).want(t,
			http.StatusUnprocessableEntity, "idempotency-key-reused")
		b.intake.do(t, http.MethodPost, "/v1/jobs", acme(""), `{"type":"t","payload":2,"route":"nowhere"}`).
			want(t, http.StatusNotFound, "")
		// 4, one of them refused.
		b.intake.do(t, http.MethodPost, "/v1/jobs/batch", acme(""),
			`{"jobs":[`+plainJob+`,`+plainJob+`,`+plainJob+`]}`)
		// 5.
		b.intake.do(t, http.MethodPost, "/v1/jobs/batch", acme(""), `{"atomic":true,"jobs":[`+plainJob+`]}`).
			want(t, 429, "queue-full")
		b.intake.do(t, http.MethodPost, "/v1/jobs", headers{"Sluice-Tenant": "other"}, plainJob)
		b.queue.Fail(queue.ErrUnavailable)
		b.intake.do(t, http.MethodPost, "/v1/jobs", acme(""), plainJob).want(t, http.StatusServiceUnavailable, "")
		b.queue.Fail(nil)
		if p := b.predict(`{}`); p.Arrivals != 5 {
			t.Errorf("%+v", p)
		}
	})
}

func TestPredictionsThatAreRefused(t *testing.T) {
	b := newBench(t)
	predict := func(path, body string) reply { return b.admin.do(t, http.MethodPost, path, nil, body) }
	for _, body := range []string{
		`{"speed":1}`, `{"capacity":-1}`, `{"rate":{"limit":0}}`, `{"burst":1000000000000}`,
		`{"tier":"gold"}`, `[]`,
	} {
		predict("/v1/tenants/acme/predict", body).want(t, http.StatusUnprocessableEntity, "invalid-request")
	}
	predict("/v1/tenants/acme/predict", `{`).want(t, http.StatusBadRequest, "malformed-json")
	predict("/v1/tenants/"+strings.Repeat("x", 256)+"/predict", `{}`).want(t, http.StatusUnprocessableEntity,
		"invalid-request")
	b.queue.Fail(queue.ErrUnavailable)
	predict("/v1/tenants/acme/predict", `{}`).want(t, http.StatusServiceUnavailable, "unavailable")
	b.queue.Fail(nil)
	locked := newBench(t, func(c *Config) { c.AdminToken = "secret" })
	locked.admin.do(t, http.MethodPost, "/v1/tenants/acme/predict", nil, `{}`).want(t,
		http.StatusUnauthorized, "unauthorized")
	locked.admin.do(t, http.MethodGet, "/v1/tenants/acme/arrivals", nil, "").want(t, http.StatusUnauthorized,
		"unauthorized")
	if got := b.predict(`{}`); got.Arrivals != 0 || got.Now != (wire.Outlook{}) {
		t.Errorf("of nothing: %+v", got)
	}
}

// TestPredictionsKnowTheServiceTime: by the jobs that have ended, and the cap of concurrency counts
// then.
func TestPredictionsKnowTheServiceTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		for range 10 {
			b.submit(plainJob, headers{"Sluice-Tenant": "acme"})
		}
		first := b.predict(`{"concurrency":1}`)
		for i, id := range b.queue.IDs()[:3] {
			b.queue.Finish(id, shaper.Succeeded, nil, nil)
			b.queue.Took(id, time.Duration(400+i*100)*time.Millisecond)
		}
		b.queue.Finish(b.queue.IDs()[3], shaper.Dead, nil, nil)
		want := wire.Prediction{
			From: first.From, Until: first.Until, Arrivals: 10, ServiceTimeMS: 500,
			Now: outlook(10, 0, 10, 400, 900, 900, 900), Then: outlook(10, 0, 10, 2000, 4500, 4500, 4500),
		}
		if diff := cmp.Diff(want, b.predict(`{"concurrency":1}`)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if first.ServiceTimeMS != 0 || first.Then.Admitted != 10 || *first.Then.WaitMax != 900 {
			t.Errorf("without a job that has ended: %+v", first)
		}
		b.admin.do(t, http.MethodPatch, "/v1/tenants/acme", nil, `{"concurrency":0}`)
		if p := b.predict(`{"rate":{"limit":20}}`); p.ServiceTimeMS != 0 {
			t.Errorf("without a cap: %+v", p)
		}
	})
}

func TestPredictionOfATenantThatDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.submit(plainJob, headers{"Sluice-Tenant": "acme"})
		b.admin.do(t, http.MethodPost, "/v1/tenants/acme/drain", nil, "")
		if p := b.predict(`{}`); p.Now != outlook(0, 1, 0) {
			t.Errorf("%+v", p)
		}
	})
}
