package api

import (
	"encoding/json"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Sixty jobs of a tenant come at once to a pool of 20/s, in which two others wait: one of weight 2,
// and a guest of weight 1 whose own rate is 2/s.
func TestPredictionsInAPool(t *testing.T) {
	for _, tt := range []struct {
		name, body string
		alone      bool
		most       [2]time.Duration // the longest wait now and then, within a tenth
	}{
		{"alone", `{}`, true, [2]time.Duration{2950 * time.Millisecond, 2950 * time.Millisecond}},
		{"under competition", `{}`, false, [2]time.Duration{9700 * time.Millisecond, 9700 * time.Millisecond}},
		{"with a greater weight", `{"weight":6}`, false, [2]time.Duration{9700 * time.Millisecond, 4400 * time.Millisecond}},
		{"with a reserve", `{"reserve":{"limit":10,"period_ms":1000}}`, false,
			[2]time.Duration{9700 * time.Millisecond, 4600 * time.Millisecond}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := pooled(t)
				pool := b.queue.Baseline.Pools["erp"]
				pool.Overrides.Capacity = nil
				b.queue.Baseline.Pools["erp"] = pool
				b.queue.Baseline.Defaults.Rate = shaper.Rate{Limit: 1000, Period: time.Second}
				b.admin.do(t, http.MethodPatch, "/v1/tenants/guest:slow", nil, `{"rate":{"limit":2,"period_ms":1000}}`)
				if !tt.alone {
					b.queue.Flows = []queue.PoolFlow{{Tenant: "heavy", Route: "other", Weight: 2}, {Tenant: "guest:slow", Route: "other", Weight: 1},
						{Tenant: "acme", Route: "other", Weight: 1}}
					b.queue.Shared = queue.Pool{Waiting: 3, Weights: 4}
				}
				time.Sleep(time.Minute)
				for range 60 {
					b.intake.do(t, http.MethodPost, "/v1/jobs", headers{"Sluice-Tenant": "acme"}, `{"type":"t","route":"other","payload":1}`)
				}
				time.Sleep(time.Minute)
				p := b.predict(tt.body)
				for i, o := range []wire.Outlook{p.Now, p.Then} {
					if o.Admitted != 60 || o.WaitMax == nil {
						t.Fatalf("%+v", o)
					}
					got := time.Duration(*o.WaitMax) * time.Millisecond
					if got < tt.most[i]*9/10 || got > tt.most[i]*11/10 {
						t.Errorf("outlook %d: the last waits %v, want about %v", i, got, tt.most[i])
					}
				}
			})
		})
	}
}

// Two tenants send to a pool of 20/s, and a try doubles its rate.
func TestPredictionsOfAPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := pooled(t)
		pool := b.queue.Baseline.Pools["erp"]
		pool.Overrides.Capacity = nil
		b.queue.Baseline.Pools["erp"] = pool
		b.queue.Baseline.Defaults.Rate = shaper.Rate{Limit: 1000, Period: time.Second}
		time.Sleep(time.Minute)
		for _, tenant := range []string{"acme", "shop"} {
			for range 20 {
				b.intake.do(t, http.MethodPost, "/v1/jobs", headers{"Sluice-Tenant": tenant}, `{"type":"t","route":"other","payload":1}`)
			}
		}
		b.intake.do(t, http.MethodPost, "/v1/jobs", headers{"Sluice-Tenant": "acme"}, plainJob) // of another route
		time.Sleep(time.Minute)
		var p wire.Prediction
		r := b.admin.do(t, http.MethodPost, "/v1/pools/erp/predict", nil, `{"rate":{"limit":40}}`)
		if err := json.Unmarshal(r.Body.Bytes(), &p); err != nil || r.Code != http.StatusOK {
			t.Fatalf("%d %v: %s", r.Code, err, r.Body)
		}
		if p.Arrivals != 40 || *p.Now.WaitMax != 1950 || *p.Then.WaitMax != 975 || p.Then.DepthMax != 40 {
			t.Errorf("%s", r.Body)
		}
		if got := b.admin.do(t, "GET", "/v1/pools/erp", nil, "").pool(t); got.Rate.Limit != 20 || got.Revision != 0 {
			t.Errorf("the trial has changed the pool: %+v", got)
		}
		if r := b.admin.do(t, http.MethodPost, "/v1/pools/none/predict", nil, `{}`); r.Code != http.StatusNotFound {
			t.Errorf("%d %s", r.Code, r.Body)
		}
	})
}
