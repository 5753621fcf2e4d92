package deploy_test

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Tenants of the simulated outage, by what their upstream does in it.
const (
	refusing = "refusing" // 503 with Retry-After
	away     = "away"     // no answer: tried again after a backoff
	fine     = "fine"     // nothing is amiss
)

const (
	outageBegins = 5 * time.Minute
	outageEnds   = 35 * time.Minute
	simulated    = 50 * time.Minute
	step         = 5 * time.Second
)

// outage is a store in which each of three tenants sends a job in every step, may send two, and a
// worker delivers by virtual time.
type outage struct {
	t      *testing.T
	q      *queue.Queue
	worker *queue.Consumer
	begin  time.Time
}

// end is how the delivery of a lease ends.
func (o *outage) end(l queue.Lease) queue.Settlement {
	s := queue.Settlement{
		LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: l.MaxAttempts, Attempt: l.Attempt,
		Log: l.Log,
	}
	if at := time.Since(o.begin); at < outageBegins || at >= outageEnds {
		return s
	}
	switch l.Tenant {
	case refusing:
		s.Event, s.Delay = shaper.Hold, 30*time.Second
	case away:
		s.Event, s.Delay = shaper.Retry, min(time.Minute, time.Second<<min(l.Attempt, 6))
	}
	return s
}

// step admits a job for each tenant and delivers what leaves within the step.
func (o *outage) step(ctx context.Context) {
	for _, tenant := range []string{refusing, away, fine} {
		if _, err := o.q.Submit(ctx, queue.Submission{Tenant: tenant, Route: "default", Type: "n",
			Payload: []byte("1"), MaxAttempts: 1000}); err != nil {
			o.t.Fatal(err)
		}
	}
	for range 2 {
		for {
			tick, err := o.worker.Tick(ctx, queue.TickOptions{
				Max: 100, Lease: time.Minute, Horizon: 20 * time.Millisecond, Sweep: time.Second,
			})
			if err != nil {
				o.t.Fatal(err)
			}
			var ends []queue.Settlement
			for _, l := range tick.Leases {
				ends = append(ends, o.end(l))
			}
			if _, err := o.q.Broker().Settle(ctx, ends); err != nil {
				o.t.Fatal(err)
			}
			if !tick.More {
				break
			}
		}
		time.Sleep(step / 2)
	}
}

// series are what Prometheus would have kept of a registry: a value a minute, "_" where there was
// none.
type series map[string][]string

func (s series) scrape(t *testing.T, g prometheus.Gatherer, minute int) {
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetHistogram() != nil {
				continue
			}
			labels := []string{`instance="a"`}
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			name := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			s[name] = append(s[name], slices.Repeat([]string{"_"}, minute-len(s[name]))...)
			s[name] = append(s[name], fmt.Sprint(m.GetGauge().GetValue()+m.GetCounter().GetValue()))
		}
	}
}

// TestAlertsFireInAnOutage: the alerts see an outage by the figures that a real store shows in it,
// and its end. In an outage jobs keep leaving, fail and come back, so an alert must go by neither
// departures nor the last time that a job was queued.
func TestAlertsFireInAnOutage(t *testing.T) {
	recorded, oldest := series{}, map[time.Duration]float64{}
	synctest.Test(t, func(t *testing.T) {
		engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer engine.Close()
		policy := shaper.Policy{Rate: shaper.Rate{Limit: 2, Period: step}, Burst: 1, Capacity: 100_000}
		q, err := queue.Open(t.Context(), engine, queue.Options{Shards: 1, Defaults: policy})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		registry := prometheus.NewRegistry()
		server, err := api.New(q, api.Config{
			Registerer: registry, StatusTenants: []string{refusing, away, fine},
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer server.End()
		o := &outage{t: t, q: q, worker: q.Broker().Consumer("w", 0), begin: time.Now()}
		for at := time.Duration(0); at < simulated; at += step {
			if at%time.Minute == 0 {
				recorded.scrape(t, registry, int(at/time.Minute))
				all, err := q.Tenant(t.Context(), away)
				if err != nil {
					t.Fatal(err)
				}
				oldest[at] = all.OldestWait.Seconds()
			}
			o.step(t.Context())
		}
	})
	// What an outage of n minutes shows: a job that has waited for n minutes, up to the jobs that
	// left at once before it.
	for at := outageBegins + time.Minute; at <= outageEnds; at += time.Minute {
		if want := (at - outageBegins).Seconds(); math.Abs(oldest[at]-want) >= 2*step.Seconds() {
			t.Errorf("%v after the begin of the outage the oldest wait is %v s", at-outageBegins, oldest[at])
		}
	}
	type sample struct {
		Labels string `yaml:"labels"`
		Value  int    `yaml:"value"`
	}
	type expectation struct {
		Expr    string   `yaml:"expr"`
		Eval    string   `yaml:"eval_time"`
		Samples []sample `yaml:"exp_samples"`
	}
	type input struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	}
	stalled := func(at time.Duration, tenants ...string) expectation {
		e := expectation{
			Expr: `sum by (tenant) (ALERTS{alertname="SluiceTenantStalled",alertstate="firing"})`,
			Eval: at.String(), Samples: []sample{},
		}
		for _, tenant := range tenants {
			e.Samples = append(e.Samples, sample{fmt.Sprintf("{tenant=%q}", tenant), 1})
		}
		return e
	}
	rules, err := filepath.Abs("prometheus/rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var inputs []input
	for name, values := range recorded {
		inputs = append(inputs, input{name, strings.Join(values, " ")})
	}
	file, err := yaml.Marshal(map[string]any{
		"rule_files": []string{rules}, "evaluation_interval": "1m",
		"tests": []map[string]any{{
			"interval": "1m", "input_series": inputs,
			"promql_expr_test": []expectation{
				stalled(outageBegins), stalled(outageBegins + 8*time.Minute),
				stalled(outageBegins+18*time.Minute, away, refusing),
				stalled(outageEnds, away, refusing), stalled(simulated - time.Minute),
			},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "outage_test.yml")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	testRules(t, path)
}
