package worker

import (
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

// outcomeOf is the outcome of a settlement. A retry of the last attempt, or a hold that cost it, leaves
// a dead letter.
func outcomeOf(s queue.Settlement, result queue.SettleResult) outcome {
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
	}
	return outcomeRetry
}

// metrics are the worker's own. No label grows with the number of tenants or jobs.
type metrics struct {
	// One counter per outcome, looked up once: a label lookup per job would show at full load.
	deliveries [outcomes]prometheus.Counter
	missed     prometheus.Counter
	leases     prometheus.Gauge
	pending    prometheus.Gauge

	wait, lateness, duration prometheus.Histogram

	breakerState *prometheus.GaugeVec   // by route
	breakerHeld  *prometheus.CounterVec // by route
}

// newMetrics makes the metrics and registers them with those of the load, unless registerer is nil.
func newMetrics(registerer prometheus.Registerer, load ...prometheus.Collector) (*metrics, error) {
	opts := func(name, help string) prometheus.Opts { return prometheus.Opts{Name: "sluice_" + name, Help: help} }
	counter := func(name, help string) prometheus.CounterOpts { return prometheus.CounterOpts(opts(name, help)) }
	gauge := func(name, help string) prometheus.GaugeOpts { return prometheus.GaugeOpts(opts(name, help)) }
	histogram := func(name, help string, buckets ...float64) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: "sluice_" + name, Help: help, Buckets: buckets})
	}
	byRoute := []string{"route"}
	deliveries := prometheus.NewCounterVec(counter("deliveries_total", "Ended leases by outcome."), []string{"outcome"})
	m := &metrics{
		wait: histogram("queue_wait_seconds", "From the instant a job could have left to its stamp.",
			.001, .005, .01, .05, .1, .5, 1, 5, 10, 60, 300, 1800, 3600, 21600, 86400),
		lateness: histogram("departure_lateness_seconds", "From the stamp of a job to its departure.",
			.00005, .0001, .00015, .00025, .0005, .001, .0025, .005, .01, .02, .05, .1),
		duration: histogram("delivery_duration_seconds", "From the departure of a job to the end of the delivery.",
			.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60),
		missed: prometheus.NewCounter(counter("stamps_missed_total",
			"Jobs that this worker gave back because they came too late to leave at their stamps.")),
		leases:  prometheus.NewGauge(gauge("leases", "Jobs that wait for their stamp in this worker or are being delivered.")),
		pending: prometheus.NewGauge(gauge("settle_pending", "Jobs that have ended here and are not settled yet.")),
		breakerState: prometheus.NewGaugeVec(gauge("route_breaker_state",
			"Circuit breaker of a route in this worker: 0 closed, 1 half-open, 2 open."), byRoute),
		breakerHeld: prometheus.NewCounterVec(counter("route_breaker_held_total",
			"Jobs that were held, not sent, because of the circuit breaker of their route."), byRoute),
	}
	for o, name := range outcomeNames {
		m.deliveries[o] = deliveries.WithLabelValues(name)
	}
	if registerer == nil {
		return m, nil
	}
	for _, c := range append(load, deliveries, m.wait, m.lateness, m.duration, m.missed, m.leases, m.pending, m.breakerState, m.breakerHeld) {
		if err := registerer.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// loadGauges are how much of the worker's capacity is in use. They are read when they are scraped.
func (w *Worker) loadGauges() []prometheus.Collector {
	gauge := func(name, help string, labels prometheus.Labels, read func() int) prometheus.Collector {
		o := prometheus.GaugeOpts{Name: "sluice_" + name, Help: help, ConstLabels: labels}
		return prometheus.NewGaugeFunc(o, func() float64 { return float64(read()) })
	}
	gauges := []prometheus.Collector{
		gauge("worker_places", "Jobs that this worker may hold at once.", nil, func() int { return w.capacity.limit }),
		gauge("worker_places_taken",
			"Places of this worker that are taken, by jobs that wait to be released, run or are not settled yet, and by looks under way.",
			nil, w.capacity.taken),
		gauge("polls_under_way", "Polls of this worker that Redis has not answered yet.",
			nil, func() int { return int(w.window.polls.Load()) }),
		gauge("settle_unanswered", "Ended jobs whose settlement Redis did not answer and which is sent again.",
			nil, w.settler.waiting),
	}
	for route := range w.cfg.Routes {
		gauges = append(gauges, gauge("route_places_taken", "Places of this worker that jobs of the route hold.",
			prometheus.Labels{"route": route}, func() int { return w.capacity.ofRoute(route) }))
	}
	return gauges
}
