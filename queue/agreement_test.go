package queue_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func perSecond(n int64) shaper.Policy {
	return shaper.Policy{Rate: shaper.Rate{Limit: n, Period: time.Second}, Burst: 1, Capacity: 1000}
}

// beside opens another queue on the engine, as another process with another file does.
func beside(t *testing.T, e *queue.Engine, o queue.Options) *queue.Queue {
	t.Helper()
	q, err := queue.Open(t.Context(), e, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return q
}

// TestTwoFilesLeaseOn: processes with different files look at one shard in turns, one as its owner and one as a helper. Each look leases, and
// the stamps are those of one rate, that of the process which started last.
func TestTwoFilesLeaseOn(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e, err := queue.OpenEngine(t.Context(), options(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = e.Close() })
			first := beside(t, e, queue.Options{Shards: 1, Defaults: perSecond(500)})
			second := beside(t, e, queue.Options{Shards: 1, Defaults: perSecond(100)})
			owner, helper := first.Consumer("a", 0), second.Consumer("b", 0)
			o := looking
			o.Max, o.Horizon = 5, time.Minute
			var last shaper.Instant
			for range 4 { // the first look of all only takes the flow in
				for _, p := range []struct {
					q      *queue.Queue
					c      *queue.Consumer
					helper bool
				}{{first, owner, false}, {second, helper, true}} {
					for range 5 {
						if v, err := p.q.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.Admitted {
							t.Fatalf("Submit: %v, %v", v.Outcome, err)
						}
					}
					o.Helper = p.helper
					tick, err := p.c.Tick(t.Context(), o)
					if err != nil || len(tick.Leases) != 5 {
						t.Fatalf("a look leased %d of 5 jobs (helper: %v), %v", len(tick.Leases), p.helper, err)
					}
					var ends []queue.Settlement
					for _, l := range tick.Leases {
						if apart := l.Stamp.Sub(last); last != 0 && apart != 10*time.Millisecond && l.Stamp > tick.Now {
							t.Errorf("a stamp %v after the one before it, want those of 100/s", apart)
						}
						last = l.Stamp
						ends = append(ends, queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: 3})
					}
					if _, err := p.q.Settle(t.Context(), ends); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// awhile is enough for processes to notice a lasting difference, and short enough for one of those that count them to be current.
const awhile = 7 * time.Second

// TestOtherFileIsSaid: the process whose file is not in force says so once, follows the other one, counts itself where both see it, and says
// when it agrees again.
func TestOtherFileIsSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close() }()
		var log bytes.Buffer
		metrics := prometheus.NewRegistry()
		first := beside(t, e, queue.Options{
			Shards: 2, Defaults: perSecond(50), Registerer: metrics, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		second := beside(t, e, queue.Options{Shards: 2, Defaults: perSecond(80)})
		agree := func(when string, q *queue.Queue, inForce bool, differing int) {
			t.Helper()
			if a := q.Agreement(); a.InForce != inForce || a.Differing != differing {
				t.Errorf("%s: %+v, want in force %v, differing %d", when, a, inForce, differing)
			}
		}
		rate := func(q *queue.Queue) int64 {
			t.Helper()
			tenant, err := q.Tenant(t.Context(), "acme")
			if err != nil {
				t.Fatal(err)
			}
			return tenant.Policy.Rate.Limit
		}
		time.Sleep(awhile)
		agree("the first", first, false, 1)
		agree("the second", second, true, 1)
		if got := rate(first); got != 80 {
			t.Errorf("the first process shows %d/s, while 80/s are in force", got)
		}
		if err := testutil.GatherAndCompare(metrics, strings.NewReader(`# HELP sluice_policies_in_force 1 if the policies of this process's configuration file are in force, 0 if those of another process's file are.
# TYPE sluice_policies_in_force gauge
sluice_policies_in_force 0
`), "sluice_policies_in_force"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), "not in force"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
		if err := first.SetPolicies(t.Context(), shaper.Baseline{Defaults: perSecond(80)}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(awhile)
		agree("the first with the same file", first, true, 0)
		agree("the second", second, true, 0)
		if !strings.Contains(log.String(), "in force again") {
			t.Errorf("not said that it agrees:\n%s", log.String())
		}
	})
}

// TestEmptiedStore: a FLUSHALL under running processes is noticed, said, and survived: layout and policies of the file are written again, and
// jobs are taken and leave. A record of the layout that alone was deleted is not taken for that.
func TestEmptiedStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true})
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = e.Close() }()
		fifty := int64(50)
		var log bytes.Buffer
		metrics := prometheus.NewRegistry()
		options := queue.Options{
			Shards: 2, Defaults: perSecond(100), Tenants: map[string]shaper.Overrides{"acme": {Capacity: &fifty}},
			Registerer: metrics, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}
		q := beside(t, e, options)
		options.Registerer, options.Logger = nil, slog.New(slog.DiscardHandler)
		other := beside(t, e, options)
		if _, err := q.Tune(t.Context(), "acme", queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
			o.Rate = &shaper.Rate{Limit: 7, Period: time.Second}
			return o, nil
		}}); err != nil {
			t.Fatal(err)
		}
		losses := func(want int) {
			t.Helper()
			n := 0.0
			families, err := metrics.Gather()
			for _, f := range families {
				if f.GetName() == "sluice_store_lost_total" {
					n = f.GetMetric()[0].GetCounter().GetValue()
				}
			}
			if err != nil || n != float64(want) || strings.Count(log.String(), "was emptied") != want {
				t.Errorf("%v losses counted, want %d, and the log (%v):\n%s", n, want, err, log.String())
			}
		}
		if err := e.Client().Del(t.Context(), "sluice:meta").Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(awhile)
		losses(0)
		if err := e.Client().FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*queue.Queue{q, other} { // takes jobs at once
			if v, err := p.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.Admitted {
				t.Fatalf("Submit: %v, %v", v.Outcome, err)
			}
		}
		time.Sleep(awhile)
		losses(1)
		tenant, err := q.Tenant(t.Context(), "acme")
		if err != nil || tenant.Policy.Capacity != 50 || tenant.Policy.Rate.Limit != 100 || tenant.Depth != 2 {
			t.Errorf("capacity %d, rate %v, depth %d, %v", tenant.Policy.Capacity, tenant.Policy.Rate, tenant.Depth, err)
		}
		third, err := queue.Open(t.Context(), e, queue.Options{Shards: 3})
		if !errors.Is(err, queue.ErrSchema) {
			t.Errorf("the layout is not written again: %v, %v", third, err)
		}
		time.Sleep(time.Minute)
		losses(1)
	})
}
