package queue_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// scrape is what a registry says now, by name and the values of the labels; of a histogram the
// number of observations.
func scrape(t *testing.T, g prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := g.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			switch f.GetType().String() {
			case "COUNTER":
				out[name] = m.GetCounter().GetValue()
			case "GAUGE":
				out[name] = m.GetGauge().GetValue()
			default:
				out[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return out
}

// afresh is a scrape that is not answered from what an earlier one has read.
func afresh(t *testing.T, g prometheus.Gatherer, name string, want float64) map[string]float64 {
	t.Helper()
	var got map[string]float64
	queuetest.Await(t, fmt.Sprintf("%s to be %v", name, want), func() bool {
		got = scrape(t, g)
		v, there := got[name]
		return there && v == want
	})
	return got
}

// TestStoreMetrics: the gauges are those of a real store, and what Redis does not tell is absent.
func TestStoreMetrics(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "--maxmemory", "64mb")
	registry := prometheus.NewRegistry()
	q := open(t, queue.EngineOptions{URL: s.URL()}, func(o *queue.Options) {
		o.Shards, o.Registerer = 2, registry
	})
	got := scrape(t, registry)
	for name, want := range map[string]float64{
		"sluice_redis_up": 1, "sluice_redis_memory_max_bytes": 64 << 20, "sluice_redis_aof_ok": 1,
		"sluice_workers": 0, "sluice_leases_expired_total": 0,
		"sluice_jobs_dead_total": 0, "sluice_redis_clock_set_back_seconds": 0, "sluice_callbacks_outbox": 0,
		"sluice_redis_memory_intake_bytes": 64 << 20 / 100 * 85, "sluice_stored_bytes": 0,
		"sluice_redis_pool_timeouts_total intake": 0,
	} {
		if v, there := got[name]; !there || v != want {
			t.Errorf("%s is %v (there: %v), want %v", name, v, there, want)
		}
	}
	for _, name := range []string{
		"sluice_redis_ping_seconds", "sluice_redis_memory_used_bytes", "sluice_redis_pool_hits_total worker",
		"sluice_redis_pool_connections worker",
	} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}

	ids := make([]string, 3)
	for i := range ids {
		w := work()
		w.MaxAttempts, w.CallbackURL = 1, "https://partner.example/"
		v, err := q.Submit(t.Context(), w)
		if err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("Submit: %+v, %v", v, err)
		}
		ids[i] = v.Job.ID
	}
	o := looking
	o.Max, o.Lease, o.Sweep, o.Horizon = 3, 50*time.Millisecond, 10*time.Millisecond, time.Hour
	consumers := []*queue.Consumer{q.Broker().Consumer("w", 0), q.Broker().Consumer("w", 1)}
	var leases []queue.Lease
	poll := func() {
		for _, c := range consumers {
			tick, err := c.Tick(t.Context(), o)
			if err != nil {
				t.Fatalf("Tick: %v", err)
			}
			leases = append(leases, tick.Leases...)
		}
	}
	queuetest.Await(t, "the jobs to be leased", func() bool { poll(); return len(leases) >= 3 })
	if _, err := q.Broker().Settle(t.Context(),
		[]queue.Settlement{{LeaseRef: leases[0].LeaseRef, Event: shaper.Die, MaxAttempts: 1}}); err != nil {
		t.Fatalf("Settle: %v", err)
	}
	if _, err := q.Broker().Heartbeat(t.Context(), "w", time.Minute); err != nil {
		t.Fatalf("Heartbeat: %v", err)
	}
	o.Max = 0
	queuetest.Await(t, "the two leases left to be taken back", func() bool {
		poll()
		totals, err := q.Totals(t.Context())
		return err == nil && totals.Running == 0
	})
	got = afresh(t, registry, "sluice_leases_expired_total", 2)
	if got["sluice_jobs_dead_total"] != 1 || got["sluice_callbacks_outbox"] != 1 {
		t.Errorf("dead %v, outbox %v", got["sluice_jobs_dead_total"], got["sluice_callbacks_outbox"])
	}
	if _, err := q.Broker().Heartbeat(t.Context(), "w", time.Minute); err != nil {
		t.Fatalf("Heartbeat: %v", err)
	}
	afresh(t, registry, "sluice_workers", 1)

	s.Freeze()
	got = afresh(t, registry, "sluice_redis_up", 0)
	s.Thaw()
	if _, there := got["sluice_workers"]; there {
		t.Error("gauges of a store that does not answer")
	}
	afresh(t, registry, "sluice_redis_up", 1)
}

// counter counts what is asked of Redis.
type counter struct{ asked atomic.Int64 }

func (c *counter) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *counter) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.asked.Add(1)
		return next(ctx, cmd)
	}
}

func (c *counter) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.asked.Add(1)
		return next(ctx, cmds)
	}
}

// TestScrapesAreNoLoad: however often it is scraped, Redis is asked once a second.
func TestScrapesAreNoLoad(t *testing.T) {
	t.Parallel()
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{Embedded: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	registry, hook := prometheus.NewRegistry(), &counter{}
	engine.AddHook(hook) // before the queue uses the clients
	q, err := queue.Open(t.Context(), engine, queue.Options{Registerer: registry})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	begin, before := time.Now(), hook.asked.Load()
	for range 50 {
		got := scrape(t, registry)
		if _, there := got["sluice_redis_memory_used_bytes"]; there || got["sluice_redis_up"] != 1 {
			t.Fatalf("the embedded engine says %v", got)
		}
	}
	// A PING, the sums, what Redis says of itself, and what a new connection begins with.
	most := 8 * (1 + int(time.Since(begin)/time.Second))
	if hook.asked.Load() == before || hook.asked.Load()-before > int64(most) {
		t.Errorf("asked %d times, want at most %d", hook.asked.Load()-before, most)
	}
}

// TestScanPages: a scan of more tenants than one page has, on several shards, has them all.
func TestScanPages(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := open(t, queue.EngineOptions{URL: s.URL()}, func(o *queue.Options) { o.Shards, o.Defaults.Rate = 2, slow })
	const tenants = 2500
	failed := make(chan error, 50)
	for w := range cap(failed) {
		go func() {
			var err error
			for i := w; i < tenants && err == nil; i += cap(failed) {
				job := work()
				job.Tenant = fmt.Sprintf("tenant %d", i)
				_, err = q.Submit(context.Background(), job)
			}
			failed <- err
		}()
	}
	for range cap(failed) {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	seen, steps := map[string]bool{}, 0
	for cursor := ""; steps == 0 || cursor != ""; steps++ {
		some, next, err := q.Scan(t.Context(), cursor, 500)
		if err != nil {
			t.Fatal(err)
		}
		if len(some) > 700 {
			t.Errorf("a page has %d tenants", len(some))
		}
		for _, b := range some {
			if b.Depth != 1 || !strings.HasPrefix(b.Name, "tenant ") {
				t.Fatalf("%+v", b)
			}
			seen[b.Name] = true
		}
		cursor = next
	}
	if len(seen) != tenants || steps < 4 {
		t.Errorf("%d tenants in %d steps", len(seen), steps)
	}
}

// TestScanAsksShardsWithFlows: with many pools a tenant may have flows in many shards. A scan calls
// those alone in which it has some.
func TestScanAsksShardsWithFlows(t *testing.T) {
	t.Parallel()
	const pools, tenants, shards = 8, 10, 16
	q := embedded(t, func(o *queue.Options) {
		o.Shards, o.Defaults.Rate, o.Pools = shards, slow, map[string]shaper.PoolSettings{}
		for p := range pools {
			name := fmt.Sprint("pool", p)
			o.Pools[name] = shaper.PoolSettings{Routes: []string{name}, Overrides: shaper.Overrides{Rate: &slow}}
		}
	})
	for i := range tenants {
		job := work()
		job.Tenant, job.Route = fmt.Sprint("tenant", i), fmt.Sprint("pool", i%pools)
		admitted(t, q, job)
	}
	calls, depth := 0, int64(0)
	q.AfterScript("scan", func() { calls++ })
	for cursor, first := "", true; first || cursor != ""; first = false {
		page, next, err := q.Scan(t.Context(), cursor, queue.ScanPage)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range page {
			depth += b.Depth
		}
		cursor = next
	}
	// A page of each shard and pool, and of each tenant its home and the shard of its flow.
	if most := shards + pools + 2*tenants; depth != tenants || calls > most {
		t.Errorf("%d calls, want at most %d, found %d jobs", calls, most, depth)
	}
}
