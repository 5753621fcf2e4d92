package api

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/scrape"
)

// limits are what a tenant can be limited by.
var limits = queue.LimitCauses

// figures are gauges of the store.
type figures struct {
	*scrape.Metrics

	backend Backend
	totals  struct{ depth, bytes, tenants, running, oldest, dead *prometheus.Desc }
	tenant  struct {
		depth, running, oldest, dead           *prometheus.Desc // also of all that are not shown
		capacity, rate, effective, ratio       *prometheus.Desc
		limitedBy                              *prometheus.Desc
		admittedTotal, rejected, departedTotal *prometheus.Desc
		succeededTotal                         *prometheus.Desc
	}

	mu    sync.Mutex // of what follows
	shown *shown
	scan  scan

	found atomic.Pointer[findings] // of the last scan; nil before the first has ended
}

func newFigures(b Backend, s *shown) *figures {
	f := &figures{backend: b, shown: s, scan: scan{backend: b}}
	f.Metrics = scrape.New(f.fetch)
	f.totals.depth = f.Desc("queue_depth", "Jobs scheduled, queued and retrying, of all tenants.")
	f.totals.bytes = f.Desc("queue_bytes", "Bytes of the payloads of the jobs that sluice_queue_depth counts.")
	f.totals.tenants = f.Desc("tenants", "Tenants with jobs, or active in the last ten minutes.")
	f.totals.running = f.Desc("running", "Jobs with a worker, of all tenants.")
	f.totals.oldest = f.Desc("oldest_wait_seconds", "How long ago the oldest job that waits could have left at first, through retries and holds, of all tenants; 0 for none.")
	f.totals.dead = f.Desc("dead_letters", "Dead letters that can be replayed, of all tenants.")
	one := func(name, help string, labels ...string) *prometheus.Desc {
		return f.Desc("tenant_"+name, help, append([]string{"tenant"}, labels...)...)
	}
	f.tenant.depth = one("depth", "Jobs scheduled, queued and retrying, of each tenant that is shown, and of all others together.")
	f.tenant.running = one("running", "Jobs with a worker, of each tenant that is shown, and of all others together.")
	f.tenant.oldest = one("oldest_wait_seconds", "How long ago the oldest job that waits could have left at first, through retries and holds, of each tenant that is shown, and of all others together.")
	f.tenant.dead = one("dead_letters", "Dead letters that can be replayed, of each tenant that is shown, and of all others together.")
	f.tenant.capacity = one("capacity", "Jobs that may wait, of each tenant that is shown.")
	f.tenant.rate = one("rate_per_second", "Departures per second that the settings of a shown tenant allow: the strictest of its rates.")
	f.tenant.effective = one("effective_rate_per_second", "Departures per second of a shown tenant now: less than the rate for a while after holds, 0 while paused.")
	f.tenant.ratio = one("rate_ratio", "Effective rate of a shown tenant divided by the rate that its settings allow.")
	f.tenant.limitedBy = one("limited_by", "1 for what keeps the next job of a shown tenant from leaving now, 0 for the rest.", "by")
	f.tenant.admittedTotal = one("admitted_total", "Jobs of a shown tenant that were admitted, counted anew when its idle flows are forgotten.")
	f.tenant.rejected = one("rejected_total", "Jobs of a shown tenant that were refused for its queue or its settings, counted anew when its idle flows are forgotten.")
	f.tenant.departedTotal = one("departed_total", "Departures of a shown tenant, counted anew when its idle flows are forgotten.")
	f.tenant.succeededTotal = one("succeeded_total", "Jobs of a shown tenant that succeeded, counted anew when its idle flows are forgotten.")
	return f
}

// show names the tenants that have gauges of their own.
func (f *figures) show(tenants []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.shown.name(tenants)
}

// deadLetters returns the dead letters of all tenants in the last scan. known is false before the
// first scan has ended.
func (f *figures) deadLetters(ctx context.Context) (n int64, known bool) {
	if f.mu.TryLock() { // else a scrape goes on with the scan
		defer f.mu.Unlock()
		f.found.Store(f.scan.goOn(ctx, f.shown.tenants(), liveBudget))
	}
	found := f.found.Load()
	if found == nil {
		return 0, false
	}
	return found.dead, true
}

func gauge(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
	return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (f *figures) fetch(ctx context.Context) []prometheus.Metric {
	f.mu.Lock()
	defer f.mu.Unlock()
	totals, err := f.backend.Totals(ctx)
	if err != nil {
		return nil
	}
	t := f.totals
	out := []prometheus.Metric{
		gauge(t.depth, float64(totals.Depth)), gauge(t.bytes, float64(totals.Bytes)), gauge(t.tenants, float64(totals.Tenants)),
		gauge(t.running, float64(totals.Running)),
	}
	found := f.scan.goOn(ctx, f.shown.tenants(), scrapeBudget)
	f.found.Store(found)
	if found != nil {
		f.shown.choose(found, time.Now())
		out = append(out, gauge(t.oldest, found.oldest().Seconds()), gauge(t.dead, float64(found.dead)))
	}
	return append(out, f.fetchTenants(ctx, totals, found)...)
}

// fetchTenants reads the tenants that are shown, and takes them from the totals for the others.
func (f *figures) fetchTenants(ctx context.Context, totals queue.Totals, found *findings) (out []prometheus.Metric) {
	if f.shown.none() {
		return nil
	}
	others := queue.Figures{Depth: totals.Depth, Running: totals.Running}
	if found != nil {
		others.Dead, others.OldestWait = found.dead, found.oldestBut(f.shown.has)
	}
	for _, name := range f.shown.tenants() {
		t, err := f.backend.Tenant(ctx, name)
		if err != nil {
			return out // what is left to the others would not be true
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
	// The store is read by several commands, between which it goes on.
	out = append(out, gauge(f.tenant.depth, float64(max(0, others.Depth)), otherTenants), gauge(f.tenant.running, float64(max(0, others.Running)), otherTenants))
	if found != nil {
		out = append(out, gauge(f.tenant.oldest, others.OldestWait.Seconds(), otherTenants),
			gauge(f.tenant.dead, float64(max(0, others.Dead)), otherTenants))
	}
	return out
}

func (f *figures) describe(t queue.Tenant, label string) []prometheus.Metric {
	rate := t.Policy.Rate.PerSecond()
	for _, p := range t.Policy.Rates {
		rate = min(rate, p.Rate.PerSecond())
	}
	count := func(d *prometheus.Desc, n int64) prometheus.Metric {
		return prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), label)
	}
	out := []prometheus.Metric{
		gauge(f.tenant.depth, float64(t.Depth), label), gauge(f.tenant.running, float64(t.Running), label),
		gauge(f.tenant.oldest, t.OldestWait.Seconds(), label), gauge(f.tenant.capacity, float64(t.Policy.Capacity), label),
		gauge(f.tenant.rate, rate, label), gauge(f.tenant.effective, t.EffectiveRate, label), gauge(f.tenant.ratio, t.EffectiveRate/rate, label),
		count(f.tenant.admittedTotal, t.Admitted), count(f.tenant.rejected, t.Rejected), count(f.tenant.departedTotal, t.Departed),
		count(f.tenant.succeededTotal, t.Succeeded),
	}
	for _, by := range limits {
		is := 0.0
		if by == t.LimitedBy {
			is = 1
		}
		out = append(out, gauge(f.tenant.limitedBy, is, label, by))
	}
	return out
}
