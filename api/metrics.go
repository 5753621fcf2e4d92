package api

import (
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper"
)

// unavailableOutcome labels submissions with unknown outcome: the store failed before it answered.
const unavailableOutcome = "unavailable"

// alarming are the refusals whose series exist from the start.
var alarming = []problem.Kind{
	problem.Unauthorized, problem.RateLimited, problem.QueueFull, problem.QueueBytesFull,
	problem.DeadlineFarAway, problem.HopelessWait, problem.TenantDraining, problem.StoreFull, problem.StorageUnavailable,
	problem.OutcomeUnknown,
	problem.Overloaded, problem.ShuttingDown, problem.InternalFault,
	problem.StoredDamaged, problem.ClientLeft,
}

// metrics are the counters of the API. Their labels are bounded: outcomes, methods, route patterns,
// status classes.
type metrics struct {
	admissions *prometheus.CounterVec
	requests   *prometheus.CounterVec
	duration   *prometheus.HistogramVec
	streams    prometheus.Gauge
	auth       *prometheus.CounterVec
	refusals   *prometheus.CounterVec
	tooOften   prometheus.Counter

	evictedBodies  prometheus.Counter
	evictedAnswers prometheus.Counter
	abandoned      prometheus.Counter
	firstByte      *prometheus.HistogramVec

	figures *figures.Gauges

	series sync.Map // of requests and duration: requestSeries by requestLabels
}

// requestLabels are the labels of a request; class is the first digit of the status.
type requestLabels struct {
	method, route string
	class         int
}

// requestSeries caches the series of requests with equal labels: finding both took as long as
// counting.
type requestSeries struct {
	count    prometheus.Counter
	duration prometheus.Observer
}

func newMetrics(hub *figures.Hub, source figures.Store, cfg Config) (*metrics, error) {
	m := &metrics{
		figures: figures.NewGauges(hub, source, cfg.StatusTenants, cfg.TopTenants),
		admissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_admissions_total", Help: "Submissions and replays by outcome.",
		}, []string{"outcome"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_http_requests_total", Help: "Requests by method, route pattern and class of status.",
		}, []string{"method", "route", "status"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sluice_http_request_duration_seconds",
			Help:    "Time to answer, including waits that the client requested.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}, []string{"method", "route"}),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_event_streams", Help: "Open event streams.",
		}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_refusals_total",
			Help: "Requests to the intake, and jobs of batches, that were answered with a problem, by the " +
				"name in its type.",
		}, []string{"reason"}),
		auth: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_auth_refusals_total",
			Help: "Requests whose credential was refused (401), belongs to another tenant (403, class tenant) or " +
				"does not allow them (403, class forbidden), by class.",
		}, []string{"class"}),
		tooOften: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_reads_refused_total", Help: "Reads of jobs refused because the tenant, or its address, reads too much.",
		}),
	}
	m.evictedBodies = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_bodies_evicted_total",
		Help: "Large bodies that arrived too slowly and were cut off in favour of others.",
	})
	m.evictedAnswers = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_answers_evicted_total",
		Help: "Large answers that their clients took too slowly and that were cut off in favour of others.",
	})
	m.abandoned = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sluice_forward_abandoned_total",
		Help: "Forwarded requests without an Idempotency-Key that were cancelled while they waited, because " +
			"their client had left.",
	})
	m.firstByte = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "sluice_forward_first_byte_seconds",
		Help: "From the arrival of a forwarded request to the first byte of its answer at the client, of answers " +
			"that reach it while they come.",
		Buckets: []float64{.025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
	}, []string{"route"})
	for name, r := range cfg.Routes {
		if r.Forward != nil {
			m.firstByte.WithLabelValues(name)
		}
	}
	// Every series exists from the start, so that rate() sees its first event.
	m.admissions.WithLabelValues(unavailableOutcome)
	for _, o := range outcomes {
		m.admissions.WithLabelValues(string(o.of))
	}
	for _, k := range alarming {
		m.refusals.WithLabelValues(k.Name)
	}
	if cfg.Auth != nil {
		for _, class := range auth.Classes() {
			m.auth.WithLabelValues(string(class))
		}
		m.auth.WithLabelValues(tenantRefusal)
		m.auth.WithLabelValues(forbiddenRefusal)
	}
	if cfg.Registerer == nil {
		return m, nil
	}
	if err := m.register(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("api: metrics: %w", err)
	}
	return m, nil
}

// register registers all metrics, or none if one of them is refused.
func (m *metrics) register(r prometheus.Registerer) error {
	collectors := []prometheus.Collector{
		m.admissions, m.requests, m.duration, m.streams, m.auth, m.refusals, m.tooOften, m.evictedBodies, m.evictedAnswers, m.abandoned,
		m.firstByte, m.figures,
	}
	for i, c := range collectors {
		if err := r.Register(c); err != nil {
			for _, done := range collectors[:i] {
				r.Unregister(done)
			}
			return err
		}
	}
	return nil
}

func (m *metrics) admission(outcome string) { m.admitted(outcome, 1) }

// unanswered counts a submission that ended with an error, unless that was the client's mistake.
func (m *metrics) unanswered(err error) {
	if mistakes := (shaper.Problems{}); !errors.As(err, &mistakes) {
		m.admission(unavailableOutcome)
	}
}

// admitted counts several admissions with one outcome.
func (m *metrics) admitted(outcome string, n int64) {
	m.admissions.WithLabelValues(outcome).Add(float64(n))
}

// refused counts a refused credential.
func (m *metrics) refused(class string) { m.auth.WithLabelValues(class).Inc() }

// refusal counts a problem of the intake, by the name of its kind.
func (m *metrics) refusal(p *problem.Problem) {
	m.refusals.WithLabelValues(strings.TrimPrefix(p.Type, problem.URN)).Inc()
}

func (m *metrics) request(method, route string, status int, took time.Duration) {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodOptions:
	default:
		method = "other"
	}
	of := requestLabels{method, route, status / 100}
	found, known := m.series.Load(of)
	if !known {
		found, _ = m.series.LoadOrStore(of, requestSeries{
			m.requests.WithLabelValues(method, route, strconv.Itoa(of.class)+"xx"),
			m.duration.WithLabelValues(method, route),
		})
	}
	series := found.(requestSeries)
	series.count.Inc()
	series.duration.Observe(took.Seconds())
}
