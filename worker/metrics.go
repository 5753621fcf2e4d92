package worker

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// outcome is what became of a lease, as the metrics count it.
type outcome int

const (
	outcomeSucceeded outcome = iota
	outcomeRetry
	outcomeDead
	outcomeHeld
	outcomeReleased
	outcomeStale
	outcomeHandedOff
	outcomeGivenUp // not settled: what is stored of the job is damaged
	outcomes
)

var outcomeNames = [outcomes]string{"succeeded", "retry", "dead", "held", "released", "stale", "handed_off", "given_up"}

// outcomeOf is the outcome of a settlement. A retry of the last attempt leaves a dead letter, and so does a hold that cost it.
func outcomeOf(s queue.Settlement, result queue.SettleResult) outcome {
	if result == queue.Stale {
		return outcomeStale
	}
	if result == queue.Died || s.Event == shaper.Retry && s.Attempt >= s.MaxAttempts {
		return outcomeDead
	}
	switch s.Event {
	case shaper.Succeed:
		return outcomeSucceeded
	case shaper.Die:
		return outcomeDead
	case shaper.Hold:
		return outcomeHeld
	case shaper.Release:
		return outcomeReleased
	default:
		return outcomeRetry
	}
}

// metrics are the worker's own. No label grows with the number of tenants or jobs.
type metrics struct {
	// One counter per outcome, looked up once: a label lookup per job would show at full load.
	deliveries [outcomes]prometheus.Counter
	wait       prometheus.Histogram
	lateness   prometheus.Histogram
	duration   prometheus.Histogram
	missed     prometheus.Counter
	leases     prometheus.Gauge
	pending    prometheus.Gauge

	load *loadMetrics

	breakerState *prometheus.GaugeVec   // by route
	breakerHeld  *prometheus.CounterVec // by route
}

// newMetrics makes the metrics and registers them, unless registerer is nil. places are the worker's.
func newMetrics(registerer prometheus.Registerer, places *capacity) (*metrics, error) {
	deliveries := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_deliveries_total", Help: "Ended leases by outcome.",
	}, []string{"outcome"})
	m := &metrics{
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_queue_wait_seconds", Help: "From the instant a job could have left to its stamp.",
			Buckets: []float64{.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 1800, 3600, 21600, 86400},
		}),
		lateness: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_departure_lateness_seconds", Help: "From the stamp of a job to its departure.",
			Buckets: []float64{.00005, .0001, .00015, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1},
		}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_delivery_duration_seconds", Help: "From the departure of a job to the end of the delivery.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60},
		}),
		missed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_stamps_missed_total", Help: "Jobs that this worker gave back because they came too late to leave at their stamps.",
		}),
		leases: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_leases", Help: "Jobs that wait for their stamp in this worker or are being delivered.",
		}),
		pending: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_settle_pending", Help: "Jobs that have ended here and are not settled yet.",
		}),
		breakerState: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_route_breaker_state", Help: "Circuit breaker of a route in this worker: 0 closed, 1 half-open, 2 open.",
		}, []string{"route"}),
		breakerHeld: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_route_breaker_held_total", Help: "Jobs that were held, not sent, because of the circuit breaker of their route.",
		}, []string{"route"}),
	}
	for o, name := range outcomeNames {
		m.deliveries[o] = deliveries.WithLabelValues(name)
	}
	m.load = newLoadMetrics(places)
	if registerer == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{
		deliveries, m.wait, m.lateness, m.duration, m.missed, m.leases, m.pending, m.load, m.breakerState, m.breakerHeld,
	} {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// loadMetrics are how much of a worker is in use: its places, its polls, and what Redis has not taken note of. They are read when
// they are scraped.
type loadMetrics struct {
	places  *capacity
	window  atomic.Pointer[window]  // nil before Run
	settler atomic.Pointer[settler] // nil before Run

	limit, taken, ofRoute, polls, unanswered *prometheus.Desc
}

func newLoadMetrics(places *capacity) *loadMetrics {
	desc := func(name, help string) *prometheus.Desc { return prometheus.NewDesc("sluice_"+name, help, nil, nil) }
	return &loadMetrics{
		places: places,
		limit:  desc("worker_places", "Jobs that this worker may hold at once."),
		ofRoute: prometheus.NewDesc("sluice_route_places_taken",
			"Places of this worker that jobs of the route hold.",
			[]string{"route"}, nil),
		taken:      desc("worker_places_taken", "Places of this worker that are taken, by jobs that wait to be released, run or are not settled yet, and by looks under way."),
		polls:      desc("polls_under_way", "Polls of this worker that Redis has not answered yet."),
		unanswered: desc("settle_unanswered", "Ended jobs whose settlement Redis did not answer and which is sent again."),
	}
}

// Describe implements prometheus.Collector.
func (m *loadMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.limit, m.taken, m.ofRoute, m.polls, m.unanswered} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *loadMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	gauge(m.limit, float64(m.places.limit))
	gauge(m.taken, float64(m.places.taken()))
	for route, n := range m.places.byRoute() {
		ch <- prometheus.MustNewConstMetric(m.ofRoute, prometheus.GaugeValue, float64(n), route)
	}
	if w := m.window.Load(); w != nil {
		gauge(m.polls, float64(w.polls.Load()))
	}
	if s := m.settler.Load(); s != nil {
		s.mu.Lock()
		unanswered := len(s.unanswered)
		s.mu.Unlock()
		gauge(m.unanswered, float64(unanswered))
	}
}
