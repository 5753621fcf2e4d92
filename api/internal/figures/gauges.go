package figures

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/scrape"
	"github.com/7509e464/sluice/queue"
)

// Store is what the gauges read.
type Store interface {
	// Totals sums over all tenants.
	Totals(ctx context.Context) (queue.Totals, error)
	// Tenant reads one tenant.
	Tenant(ctx context.Context, tenant string) (queue.Tenant, error)
	// Pools lists the names of the pools, at most shaper.MaxPools.
	Pools() []string
	// Pool reads one pool.
	Pool(ctx context.Context, name string) (queue.Pool, error)
}

// Gauges are gauges of the store, a prometheus.Collector.
type Gauges struct {
	*scrape.Metrics

	store  Store
	totals struct{ depth, bytes, tenants, running, oldest, dead *prometheus.Desc }
	tenant struct {
		depth, running, oldest, dead           *prometheus.Desc // also of all other tenants together
		capacity, rate, effective, ratio       *prometheus.Desc
		limitedBy                              *prometheus.Desc
		admittedTotal, rejected, departedTotal *prometheus.Desc
		succeededTotal                         *prometheus.Desc
	}
	pool poolGauges

	tally *tally

	mu    sync.Mutex // guards shown
	shown *shown
}

// NewGauges makes the gauges of a store, which share the scans of the hub. The named tenants have
// gauges of their own, or the top tenants with the deepest queues. With named nil and top 0 no
// tenant has.
func NewGauges(h *Hub, store Store, named []string, top int) *Gauges {
	return newGauges(store, h.tally, newShown(named, top))
}

func newGauges(store Store, t *tally, s *shown) *Gauges {
	f := &Gauges{store: store, tally: t, shown: s}
	t.wanted = s.tenants()
	f.Metrics = scrape.New(f.fetch)
	const (
		jobs    = "Jobs scheduled, queued and retrying"
		oldest  = "Time since the oldest waiting job could first have left, retries and holds included"
		some    = ", by tenant; \"other\" sums the tenants without gauges of their own."
		resets  = "; starts from 0 when the tenant's idle flows are deleted."
		byShown = ", by tenant"
	)
	f.totals.depth = f.Desc("queue_depth", jobs+", of all tenants.")
	f.totals.bytes = f.Desc("queue_bytes", "Bytes of the payloads of the jobs that sluice_queue_depth counts.")
	f.totals.tenants = f.Desc("tenants", "Tenants with jobs, or active in the last ten minutes; one in several pools may count for each of them.")
	f.totals.running = f.Desc("running", "Jobs leased by a worker, of all tenants.")
	f.totals.oldest = f.Desc("oldest_wait_seconds", oldest+", of all tenants; 0 for none.")
	f.totals.dead = f.Desc("dead_letters", "Dead letters that can be replayed, of all tenants.")
	one := func(name, help string, labels ...string) *prometheus.Desc {
		return f.Desc("tenant_"+name, help, append([]string{"tenant"}, labels...)...)
	}
	f.tenant.depth = one("depth", jobs+some)
	f.tenant.running = one("running", "Jobs leased by a worker"+some)
	f.tenant.oldest = one("oldest_wait_seconds", oldest+some)
	f.tenant.dead = one("dead_letters", "Dead letters that can be replayed"+some)
	f.tenant.capacity = one("capacity", "Jobs that may wait"+byShown+".")
	f.tenant.rate = one("rate_per_second",
		"Departures per second that the tenant's settings allow: the strictest of its rates.")
	f.tenant.effective = one("effective_rate_per_second",
		"Departures per second that the tenant has now: below its rate for a while after a hold, 0 while paused.")
	f.tenant.ratio = one("rate_ratio", "Effective rate divided by the rate of the settings"+byShown+".")
	f.tenant.limitedBy = one("limited_by",
		"1 for the cause that keeps the tenant's next job from leaving now, 0 for the other causes.", "by")
	f.tenant.admittedTotal = one("admitted_total", "Admitted jobs"+byShown+resets)
	f.tenant.rejected = one("rejected_total",
		"Jobs refused because of the tenant's queue or settings"+byShown+resets)
	f.tenant.departedTotal = one("departed_total", "Departures"+byShown+resets)
	f.tenant.succeededTotal = one("succeeded_total", "Succeeded jobs"+byShown+resets)
	f.pool = newPoolGauges(f.Metrics)
	return f
}

// Show changes the named tenants that have gauges of their own. It does nothing where the deepest
// tenants have them, or none.
func (f *Gauges) Show(tenants []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shown.name(tenants)
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (f *Gauges) fetch(ctx context.Context) []prometheus.Metric {
	f.mu.Lock()
	defer f.mu.Unlock()
	totals, err := f.store.Totals(ctx)
	if err != nil {
		return nil
	}
	t := f.totals
	out := []prometheus.Metric{
		gauge(t.depth, float64(totals.Depth)), gauge(t.bytes, float64(totals.Bytes)),
		gauge(t.tenants, float64(totals.Tenants)),
		gauge(t.running, float64(totals.Running)),
	}
	found := f.tally.scrape(ctx, f.shown.tenants())
	if found != nil {
		f.shown.choose(found, time.Now())
		out = append(out, gauge(t.oldest, found.oldest().Seconds()), gauge(t.dead, float64(found.dead)))
	}
	out = append(out, f.pool.fetch(ctx, f.store)...)
	return append(out, f.fetchTenants(ctx, totals, found)...)
}

// fetchTenants reads the tenants that are shown, and subtracts them from the totals for the others.
func (f *Gauges) fetchTenants(
	ctx context.Context, totals queue.Totals, found *findings,
) (out []prometheus.Metric) {
	if f.shown.none() {
		return nil
	}
	others := queue.Figures{Depth: totals.Depth, Running: totals.Running}
	if found != nil {
		others.Dead, others.OldestWait = found.dead, found.oldestBut(f.shown.has)
	}
	for _, name := range f.shown.tenants() {
		t, err := f.store.Tenant(ctx, name)
		if err != nil {
			return out // the difference would be wrong
		}
		label := tenantLabel(name)
		out = append(out, f.describe(t, label)...)
		others.Depth -= t.Depth
		others.Running -= t.Running
		if found != nil {
			dead := found.of(name).Dead
			others.Dead -= dead
			out = append(out, gauge(f.tenant.dead, float64(dead), label))
		}
	}
	// Several commands read the store, which changes between them: a difference may be negative.
	out = append(out, gauge(f.tenant.depth, float64(max(0, others.Depth)), otherTenants),
		gauge(f.tenant.running, float64(max(0, others.Running)), otherTenants))
	if found != nil {
		out = append(out, gauge(f.tenant.oldest, others.OldestWait.Seconds(), otherTenants),
			gauge(f.tenant.dead, float64(max(0, others.Dead)), otherTenants))
	}
	return out
}

func (f *Gauges) describe(t queue.Tenant, label string) []prometheus.Metric {
	rate := t.Policy.Strictest()
	count := func(d *prometheus.Desc, n int64) prometheus.Metric {
		return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	out := []prometheus.Metric{
		gauge(f.tenant.depth, float64(t.Depth), label), gauge(f.tenant.running, float64(t.Running), label),
		gauge(f.tenant.oldest, t.OldestWait.Seconds(), label),
		gauge(f.tenant.capacity, float64(t.Policy.Capacity), label),
		gauge(f.tenant.rate, rate, label), gauge(f.tenant.effective, t.EffectiveRate, label),
		gauge(f.tenant.ratio, t.EffectiveRate/rate, label),
		count(f.tenant.admittedTotal, t.Admitted), count(f.tenant.rejected, t.Rejected),
		count(f.tenant.departedTotal, t.Departed),
		count(f.tenant.succeededTotal, t.Succeeded),
	}
	return append(out, limitedBy(f.tenant.limitedBy, label, t.LimitedBy)...)
}

// limitedBy is a gauge for each cause: 1 for that of now, 0 for the others.
func limitedBy(d *prometheus.Desc, label, now string) (out []prometheus.Metric) {
	for _, by := range queue.LimitCauses {
		is := 0.0
		if by == now {
			is = 1
		}
		out = append(out, gauge(d, is, label, by))
	}
	return out
}
