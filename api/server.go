// Package api serves Sluice over HTTP: the intake, where clients submit and read jobs, and the
// admin listener, where operators change tenants.
//
// Every error is a problem (RFC 9457) that names the field, the kind of value and the rule, and
// never repeats a payload. Every answer is documented by /openapi.json. The package keeps no state
// except caches of figures and the arrivals of the last hour, for predictions. Jobs and rates
// belong to the queue.
//
// # How a request is answered
//
// Package contract declares each operation: the OpenAPI document is made of it, and mount enforces
// it. Query parameters that it does not list are refused, and it bounds the body. Package auth
// finds the tenant before a body is read (identity.go). Package codec turns the request into
// values, a handler calls the queue, and codec makes the JSON of the answer. A handler returns an
// answer or an error, and package problem maps errors to statuses. An event stream (events.go) is
// an answer that continues after its headers; everything that can be refused is refused before.
package api

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/audit"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/internal/sessions"
	"github.com/7509e464/sluice/internal/spans"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Server answers the HTTP API. It holds the parts that all handlers share, hence its many fields.
type Server struct {
	queue    ports
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	traces   *spans.Tracer
	errors   *errorLog
	awaiting atomic.Int64 // clients that wait for the answer to a forwarded request
	draining chan struct{}
	streams  budget.Shares // event streams
	requests budget.Shares // requests of tenants in progress
	bodies   *budget.Bodies
	answers  *budget.Answers
	reads    *budget.Reads // nil: no bound by api.status_rate
	rows     *budget.Rows
	gate     *budget.Gate
	decoders *budget.Gate
	retries  *problem.RetrySlots
	live     *figures.Hub
	guards   []*intakeGuard
	board    *dashboard.Dashboard
	signOn   *singleSignOn // nil: none
	drain    sync.Once
	intake   http.Handler
	admin    http.Handler
	scrape   http.Handler

	clientNetwork func(*http.Request) (network string, ok bool)
	clientIP      func(*http.Request) netip.Addr // not valid: there is none
	operators     *operators.Ring
	endpoints     *endpoints

	arrivals   *figures.Arrivals
	predicting chan struct{} // has an element while a prediction runs
}

// ports are what a Server uses of a queue, which documents them. Each is declared beside its
// handlers, and tests replace single ones. Every error about the store wraps queue.ErrUnavailable
// or queue.ErrScript.
type ports struct {
	admitter
	jobs
	ends
	sweeper
	tenants
	pools
	keyRing
	tokenRing
	callbacks
	health
	readings
	dashboard.Store
	operators.Accounts
	trail trail
}

// New makes the server of a queue. Its error is that of bad settings, or of metrics that are
// registered already.
func New(q *queue.Queue, cfg Config) (*Server, error) {
	if q == nil {
		return nil, errors.New("api: no queue")
	}
	ports := portsOf(q)
	var err error
	ports.trail, err = audit.New(store.Of(q), audit.Options{
		Retention: cfg.Audit.Retention, MaxBytes: cfg.Audit.MaxBytes, Lines: cfg.Audit.Lines,
		Logger: cfg.Logger, Registerer: cfg.Registerer,
	})
	if err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	s, err := newServer(ports, cfg)
	if err == nil {
		ports.trail.Start()
	}
	return s, err
}

func portsOf(q *queue.Queue) ports {
	s := store.Of(q)
	f := struct {
		*queue.Queue
		*reports.Reports
	}{q, reports.New(s)}
	return ports{q, q, q, q, q, q, q.Keys(), q.Tokens(), q.Callbacks(), q, f, sessions.New(s), operators.NewStore(s), nil}
}

func newServer(ports ports, cfg Config) (*Server, error) {
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		queue: ports, cfg: cfg, log: cfg.Logger, traces: spans.New(cfg.Traces),
		errors: newErrorLog(cfg.Logger), draining: make(chan struct{}),
		streams:  budget.NewShares(int64(cfg.MaxStreams), cfg.TenantShare, cfg.AddressShare),
		requests: budget.NewShares(int64(cfg.MaxRequests), cfg.TenantShare, cfg.AddressShare),
		rows:     budget.NewRows(cfg.ReadRate), gate: budget.NewHeavyReads(),
		decoders: budget.NewDecoders(), retries: problem.NewRetrySlots(),
		operators: operators.NewRing(ports.Accounts),
		endpoints: &endpoints{of: ports.callbacks}, arrivals: figures.NewArrivals(), predicting: make(chan struct{}, 1),
	}
	if cfg.StatusRate != (shaper.Rate{}) {
		s.reads = budget.NewReads(cfg.StatusRate)
	}
	s.live = figures.NewHub(watched{ports, cfg.Routes}, contract.LiveStreams)
	var err error
	if s.metrics, err = newMetrics(s.live, ports, cfg); err != nil {
		return nil, err
	}
	if s.clientNetwork, err = auth.ClientNetwork(cfg.TrustedProxies...); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	if s.clientIP, err = auth.ClientIP(cfg.TrustedProxies...); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	s.bodies = budget.NewBodies(cfg.TenantShare, cfg.AddressShare, s.metrics.evictedBodies)
	s.answers = budget.NewAnswers(cfg.TenantShare, cfg.AddressShare, s.metrics.evictedAnswers)
	if s.guards, err = newIntakeGuards(cfg); err != nil {
		return nil, err
	}
	overTLS := auth.OverTLS(cfg.TrustedProxies...)
	if strings.HasPrefix(cfg.AdminURL, "https://") {
		overTLS = func(*http.Request) bool { return true }
	}
	var signOn dashboard.SignOn
	if cfg.SignOn != nil {
		s.signOn = newSingleSignOn(s, *cfg.SignOn)
		signOn = s.signOn
	}
	if s.board, err = dashboard.New(cfg.AdminToken, ports, cfg.Guesses, s.signsIn, signOn, overTLS, nothingAt(onAdmin)); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	if s.intake, err = s.intakeRouter(); err != nil {
		return nil, err
	}
	if s.admin, err = s.adminRouter(); err != nil {
		return nil, err
	}
	s.scrape = s.metricsRouter()
	return s, nil
}

// SetStatusTenants changes the tenants with gauges of their own; the names must be legal. It has no
// effect if the gauges are off or those of the deepest queues.
func (s *Server) SetStatusTenants(names []string) { s.metrics.figures.Show(names) }

// Intake returns the handler of the data plane, with probes.
func (s *Server) Intake() http.Handler { return s.intake }

// Admin returns the handler of the control plane, with the dashboard, metrics and probes.
func (s *Server) Admin() http.Handler { return s.admin }

// Metrics returns a handler that serves only /metrics, without access control, for a collector that
// must not be an operator.
func (s *Server) Metrics() http.Handler { return s.scrape }

// Drain announces the end. From now on /readyz returns 503, and POSTs on the intake are refused
// with Retry-After. Clients that wait for a job get its present state at once, and event streams
// end. Drain returns immediately and may be called again.
func (s *Server) Drain() { s.drain.Do(func() { close(s.draining) }) }

// End ends the streams of figures, which continue while the server drains, and returns when their
// reads of the store have ended. Call it before the shutdown of the admin listener, which waits for
// the streams. It also logs the rest of bursts of events.
func (s *Server) End() {
	s.live.Close()
	s.errors.end()
	if s.signOn != nil {
		s.signOn.Close()
	}
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}
