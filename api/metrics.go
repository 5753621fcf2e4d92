package api

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/queue"
)

const (
	figuresAge     = time.Second            // how old the gauges may be: scrapes must not become load
	figuresTimeout = 500 * time.Millisecond // a store that is away must not hold up a scrape
)

// limits are what a tenant can be limited by.
var limits = []string{"rate", "concurrency", "held", "paused", "idle"}

// metrics are what the API counts. Their labels are bounded: outcomes, methods, route patterns, classes of statuses.
type metrics struct {
	admissions *prometheus.CounterVec
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	streams    prometheus.Gauge
	refusals   *prometheus.CounterVec
	tooOften   prometheus.Counter
	figures    *figures
}

func newMetrics(b Backend, cfg Config) (*metrics, error) {
	m := &metrics{
		figures: newFigures(b, cfg.StatusTenants),
		admissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_admissions_total", Help: "Submissions and replays by outcome.",
		}, []string{"outcome"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_http_requests_total", Help: "Requests by method, route pattern and class of status.",
		}, []string{"method", "route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "sluice_http_request_duration_seconds", Help: "Time to answer, waits that the client asked for included.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"method", "route"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_event_streams", Help: "Event streams that are open.",
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_auth_refusals_total", Help: "Requests whose credential was refused (401), or was another tenant's (403, class tenant), by class.",
		}, []string{"class"}),
		tooOften: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_reads_refused_total", Help: "Reads of jobs that were refused because their tenant reads too often.",
		}),
	}
	if cfg.Auth != nil {
		for _, class := range auth.Classes() {
			m.refusals.WithLabelValues(string(class))
		}
		m.refusals.WithLabelValues(tenantRefusal)
	}
	if cfg.Registerer == nil {
		return m, nil
	}
	collectors := []prometheus.Collector{m.admissions, m.requests, m.duration, m.streams, m.refusals, m.tooOften, m.figures}
	for i, c := range collectors {
		if err := cfg.Registerer.Register(c); err != nil {
			for _, done := range collectors[:i] {
				cfg.Registerer.Unregister(done)
			}
			return nil, fmt.Errorf("api: metrics: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) admission(outcome string) { m.admitted(outcome, 1) }

// admitted counts several admissions with one outcome.
func (m *metrics) admitted(outcome string, n int64) {
	m.admissions.WithLabelValues(outcome).Add(float64(n))
}

func (m *metrics) refused(class string) { m.refusals.WithLabelValues(class).Inc() }

func (m *metrics) request(method, route string, status int, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions:
	default:
		method = "other"
	}
	m.requests.WithLabelValues(method, route, strconv.Itoa(status/100)+"xx").Inc()
	m.duration.WithLabelValues(method, route).Observe(took.Seconds())
}

// figures are gauges that are read from the store when they are scraped, but at most once a second. While the store is away
// they are absent, which is not the same as 0.
type figures struct {
	backend            Backend
	depth, bytes, live *prometheus.Desc
	running            *prometheus.Desc
	tDepth             *prometheus.Desc
	capacity           *prometheus.Desc
	rate               *prometheus.Desc
	effective          *prometheus.Desc
	limitedBy          *prometheus.Desc

	mu      sync.Mutex
	tenants []string
	read    time.Time
	cache   []prometheus.Metric
}

func newFigures(b Backend, tenants []string) *figures {
	label := []string{"tenant"}
	f := &figures{
		backend:  b,
		depth:    prometheus.NewDesc("sluice_queue_depth", "Jobs scheduled, queued and retrying, of all tenants.", nil, nil),
		bytes:    prometheus.NewDesc("sluice_queue_bytes", "Bytes of the payloads of the jobs that sluice_queue_depth counts.", nil, nil),
		live:     prometheus.NewDesc("sluice_tenants", "Tenants with jobs, or active in the last ten minutes.", nil, nil),
		running:  prometheus.NewDesc("sluice_running", "Jobs with a worker, of all tenants.", nil, nil),
		tDepth:   prometheus.NewDesc("sluice_tenant_depth", "Jobs scheduled, queued and retrying, of tenants named in the configuration.", label, nil),
		capacity: prometheus.NewDesc("sluice_tenant_capacity", "Capacity of tenants named in the configuration.", label, nil),
		rate: prometheus.NewDesc("sluice_tenant_rate",
			"Departures per second that the settings of tenants named in the configuration allow: the strictest of their rates.", label, nil),
		effective: prometheus.NewDesc("sluice_tenant_effective_rate",
			"Departures per second of tenants named in the configuration now: less than the rate for a while after holds, 0 while paused.", label, nil),
		limitedBy: prometheus.NewDesc("sluice_tenant_limited_by",
			"1 for what keeps the next job of a tenant named in the configuration from leaving now, 0 for the rest.", append(label, "by"), nil),
	}
	f.show(tenants)
	return f
}

// show chooses the tenants that have gauges of their own.
func (f *figures) show(tenants []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tenants = slices.Compact(slices.Sorted(slices.Values(tenants))) // a series may not be told twice
}

// Describe implements prometheus.Collector.
func (f *figures) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{f.depth, f.bytes, f.live, f.running, f.tDepth, f.capacity, f.rate, f.effective, f.limitedBy} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (f *figures) Collect(ch chan<- prometheus.Metric) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.read.IsZero() || time.Since(f.read) >= figuresAge {
		f.cache = f.fetch()
		f.read = time.Now()
	}
	for _, m := range f.cache {
		ch <- m
	}
}

func (f *figures) fetch() []prometheus.Metric {
	ctx, cancel := context.WithTimeout(context.Background(), figuresTimeout)
	defer cancel()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) prometheus.Metric {
		return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	totals, err := f.backend.Totals(ctx)
	if err != nil {
		return nil
	}
	out := []prometheus.Metric{
		gauge(f.depth, float64(totals.Depth)), gauge(f.bytes, float64(totals.Bytes)), gauge(f.live, float64(totals.Tenants)),
		gauge(f.running, float64(totals.Running)),
	}
	for _, name := range f.tenants {
		var t queue.Tenant
		if t, err = f.backend.Tenant(ctx, name); err != nil {
			return out
		}
		rate := t.Policy.Rate.PerSecond()
		for _, p := range t.Policy.Rates {
			rate = min(rate, p.Rate.PerSecond())
		}
		out = append(out, gauge(f.tDepth, float64(t.Depth), name), gauge(f.capacity, float64(t.Policy.Capacity), name),
			gauge(f.rate, rate, name), gauge(f.effective, t.EffectiveRate, name))
		for _, by := range limits {
			is := 0.0
			if by == t.LimitedBy {
				is = 1
			}
			out = append(out, gauge(f.limitedBy, is, name, by))
		}
	}
	return out
}
