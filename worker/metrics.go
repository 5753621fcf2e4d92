package worker

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Outcomes of leases, as the metrics and spans name them.
const (
	outcomeSucceeded = "succeeded"
	outcomeRetry     = "retry"
	outcomeDead      = "dead"
	outcomeHeld      = "held"
	outcomeReleased  = "released"
	outcomeCutOff    = "cut_off" // the worker stopped
	outcomeStale     = "stale"
	outcomeHandedOff = "handed_off"
	outcomeGivenUp   = "given_up" // not settled: the stored job is damaged
)

// outcomeOf is the outcome of a settlement. A retry of the last attempt, or a hold or a stop that
// cost it, leaves a dead letter.
func outcomeOf(s queue.Settlement, result queue.SettleResult) string {
	switch {
	case result == queue.Stale:
		return outcomeStale
	case result == queue.Died, s.Event == shaper.Die, s.Event == shaper.Retry && s.Attempt >= s.MaxAttempts:
		return outcomeDead
	case s.Event == shaper.Succeed:
		return outcomeSucceeded
	case s.Event == shaper.Hold:
		return outcomeHeld
	case s.Event == shaper.Release:
		return outcomeReleased
	case s.Event == shaper.LeaseExpired:
		return outcomeCutOff
	}
	return outcomeRetry
}

// metrics are the worker's own. No label grows with the number of tenants or jobs.
type metrics struct {
	registry *prometheus.Registry // of all of them

	// One counter per outcome, looked up once: a label lookup per job would show at full load.
	deliveries map[string]prometheus.Counter

	wait, lateness, duration prometheus.Histogram
}

// newMetrics makes the metrics of a worker, whose parts they read.
func newMetrics(w *Worker) *metrics {
	m := &metrics{registry: prometheus.NewRegistry(), deliveries: map[string]prometheus.Counter{}}
	prefixed := prometheus.WrapRegistererWithPrefix("sluice_", m.registry)
	f := promauto.With(prefixed)
	counter := func(name, help string, labels prometheus.Labels, read func() int64) {
		f.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(read()) })
	}
	gauge := func(name, help string, labels prometheus.Labels, read func() int) {
		f.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(read()) })
	}
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		return f.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	}
	m.wait = histogram("queue_wait_seconds", "From the instant a job could have left to its stamp.",
		.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 1800, 3600, 21600, 86400)
	m.lateness = histogram("departure_lateness_seconds", "From the stamp of a job to its departure.",
		.00005, .0001, .00015, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1)
	m.duration = histogram("delivery_duration_seconds",
		"From the departure of a job to the end of the delivery.",
		.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60)
	deliveries := f.NewCounterVec(
		prometheus.CounterOpts{Name: "deliveries_total", Help: "Ended leases by outcome."}, []string{"outcome"})
	for _, o := range []string{
		outcomeSucceeded, outcomeRetry, outcomeDead, outcomeHeld,
		outcomeReleased, outcomeCutOff, outcomeStale, outcomeHandedOff, outcomeGivenUp,
	} {
		m.deliveries[o] = deliveries.WithLabelValues(o)
	}

	gauge("leases", "Jobs that wait for their stamp in this worker or are being delivered.", nil,
		func() int { return w.capacity.count(false) })
	gauge("settle_pending", "Jobs that have ended here and are not settled yet.", nil,
		func() int { return w.capacity.count(true) })
	gauge("settle_unanswered", "Ended jobs whose settlement Redis did not answer and which is sent again.", nil,
		w.settler.unanswered)
	gauge("polls_under_way", "Polls of this worker that Redis has not answered yet.", nil,
		func() int { return int(w.window.polls.Load()) })
	gauge("worker_slots", "Jobs that this worker may hold at once.", nil, func() int {
		return w.cfg.Concurrency
	})
	gauge("worker_slots_taken", "Slots of this worker that are taken: by jobs that wait for their stamp, "+
		"run or "+
		"are not settled yet, and by polls under way.", nil, w.capacity.taken)
	counter("stamps_missed_total",
		"Jobs that this worker gave back because they came too late to leave at their stamps.", nil,
		w.lateness.missed.Load)
	prefixed.MustRegister(upstreamMetrics(w.loads))
	for name, route := range w.cfg.Routes {
		labels, load := prometheus.Labels{"route": name}, w.loads[name]
		gauge("route_slots_taken", "Slots of this worker that jobs of the route take.", labels,
			func() int { return w.capacity.ofRoute(name) })
		counter("route_deliveries_total", "Ended deliveries of a route, without jobs that its circuit breaker held.",
			labels, load.ends.Load)
		counter("route_deliveries_failed_total",
			"Deliveries of a route that failed, whatever became of the job, also answers 5xx to forwarded requests.",
			labels, load.failures.Load)
		if route.Asynq == nil {
			counter("route_cost_estimated_total",
				"Costs that departures were charged for, of deliveries whose actual cost is known.",
				labels, load.costs.estimated.Load)
			counter("route_cost_actual_total", "Actual costs of the deliveries that reported one.",
				labels, load.costs.actual.Load)
			counter("route_cost_ignored_total",
				"Answers whose actual cost was ignored: it is not a number from 0 to 1000000, not where cost_from points, or "+
					"in a header that counts only with cost_from: header.",
				labels, load.costs.ignored.Load)
			counter("route_cost_cut_total",
				"Actual costs above the max_cost of the pool, which was charged for that alone.",
				labels, load.costs.cut.Load)
		}
		if s := load.streams; s != nil {
			gauge("route_streams", "Answers of a route that this worker passes on while they come.", labels, func() int {
				open, _ := s.now()
				return int(open)
			})
			counter("route_stream_bytes_total", "Bytes of such answers that were passed on.", labels, s.bytes.Load)
			for cause, n := range s.broken {
				counter("route_streams_broken_total", "Such answers that broke off, by cause: see docs/streaming.md.",
					prometheus.Labels{"route": name, "cause": cause}, n.Load)
			}
			s.firstByte = f.NewHistogram(prometheus.HistogramOpts{
				Name: "route_stream_first_byte_seconds", Help: "From the departure of a request to the begin of such an answer.",
				ConstLabels: labels, Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
			})
		}
		if route.Breaker.Failures > 0 {
			gauge("route_breaker_state", "Circuit breaker of a route in this worker: 0 closed, 1 half-open, 2 open.",
				labels, func() int { return int(load.breaker.Load()) })
			gauge("route_breaker_flows", "Flows of a route whose own circuit breaker is not closed in this worker.",
				labels, func() int { return int(load.flows.Load()) })
			counter("route_breaker_held_total",
				"Jobs that were held, not sent, because of the circuit breaker of their route or flow.", labels, load.held.Load)
		}
	}
	return m
}

// upstreamMetrics are those of the credentials for upstreams. Worker.SetUpstream adds and removes
// credentials, so the series are collected from the upstreams that are in use.
type upstreamMetrics routeLoads

var (
	tokenMissing = prometheus.NewDesc("route_token_missing",
		"1 if this worker has no token for the upstream of a route, because its last request for one failed; else 0.",
		[]string{"route"}, nil)
	certificateExpiry = prometheus.NewDesc("route_certificate_expiry_timestamp_seconds",
		"When the client certificate of a route ends, in seconds since 1970.", []string{"route"}, nil)
)

func (upstreamMetrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- tokenMissing
	descs <- certificateExpiry
}

func (m upstreamMetrics) Collect(metrics chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, route string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, route)
	}
	for name, load := range m {
		if load.upstream == nil {
			continue
		}
		upstream := load.upstream.Load()
		if upstream.HasTokens() {
			missing := 0.0
			if upstream.TokenState().Problem != "" {
				missing = 1
			}
			gauge(tokenMissing, missing, name)
		}
		if end := upstream.CertificateEnd(); !end.IsZero() {
			gauge(certificateExpiry, float64(end.Unix()), name)
		}
	}
}
