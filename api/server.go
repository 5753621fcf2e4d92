package api

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/dashboard"
	"github.com/7509e464/sluice/api/internal/arrivals"
	"github.com/7509e464/sluice/api/internal/live"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue/spans"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/shaper/simulate"
)

// Config is the settings of a Server. The zero value of a field means its default.
type Config struct {
	Routes        map[string]RouteInfo  // by name; a job for another one is refused
	MaxBody       int64                 // bytes of a submission; default 262144
	Auth          *auth.Authenticator   // whose requests are whose; nil: the header Sluice-Tenant says it, unchecked
	Headers       HeaderMode            // rate limit headers; default HeadersBoth
	AdminToken    string                // empty: the admin listener answers to loopback names only
	AdminSubmit   bool                  // take jobs on the admin listener too, to try things out
	AdminHosts    []string              // further Host names it answers to without a token
	Version       VersionInfo           // told at /version
	Registerer    prometheus.Registerer // nil: metrics are not registered
	Gatherer      prometheus.Gatherer   // nil: no /metrics
	Logger        *slog.Logger          // default slog.Default()
	Traces        *spans.Tracer         // one span per submission; nil: none, and jobs carry the client's traceparent
	StatusTenants []string              // tenants that have gauges of their own, the others sharing one; nil: no gauges of tenants
	TopTenants    int                   // instead: so many tenants with the deepest queues, 0 to 100
	MaxStreams    int                   // event streams at once; default 1000
	StatusRate    shaper.Rate           // reads of jobs by one tenant, with a second's worth at once; zero: no bound
	// CheckCallback says whether a callback URL may be used. Its error is the rule that is broken,
	// such as "must be an http or https URL with a host", and must not quote the URL. nil: no job
	// may have one.
	CheckCallback func(url string) error
	// AdminPages are further handlers of the admin listener, behind its guard: each serves its
	// path, such as "/asynqmon", and all below.
	AdminPages map[string]http.Handler
	// Guards stand before the operations of the intake and count in Limits, which they need.
	Guards []IntakeGuard
	Limits limiter.Store
	// Horizon is how far ahead of their stamps workers lease jobs, for predictions; default
	// simulate.Horizon.
	Horizon time.Duration
	// TrustedProxies are the proxies whose X-Forwarded-For is trusted for the address of a client.
	TrustedProxies []netip.Prefix
	// Guesses counts wrong credentials of both listeners; Auth should have the same. Default: one
	// of its own.
	Guesses *auth.Guesses
	// LocalOnly says that the intake listens on loopback. Without authentication it then answers to
	// loopback names and to Hosts only, so that pages of other sites cannot reach it through a
	// browser.
	LocalOnly bool
	Hosts     []string
	// MaxRequests are the requests of clients that the intake may have under way at once; default
	// 10000.
	MaxRequests int
	// TenantShare and AddressShare are what one tenant and one address may hold of requests, event
	// streams and the memory of large bodies; 100 is no bound of their own.
	TenantShare, AddressShare Percent
}

// RouteInfo is what the intake must know of a route.
type RouteInfo struct {
	MaxAttempts int // deliveries until a job is dead; at least 1
}

// VersionInfo says which program this is.
type VersionInfo struct {
	Version, Commit, Go string
}

const (
	defaultMaxBody = 256 << 10
	maxBatchBody   = 8 << 20
	maxSmallBody   = 64 << 10 // of settings, reasons and empty bodies
	maxFilterBody  = 128 << 10

	defaultRequests = 10_000
)

// Server answers the HTTP API.
type Server struct {
	backend  Backend
	cfg      Config
	log      *slog.Logger
	metrics  *metrics
	troubles *troubles
	draining chan struct{}
	streams  shares // event streams
	requests shares // requests of tenants under way
	bodies   *bodyBudget
	reads    *readBudget // nil: no bound
	turns    *turns
	live     *live.Hub
	guards   []*intakeGuard
	board    *dashboard.Dashboard
	drain    sync.Once
	intake   http.Handler
	admin    http.Handler
	scrape   http.Handler

	clientAddress func(*http.Request) (address string, ok bool)

	arrivals   *arrivals.Log
	predicting chan struct{} // has an element while there is a prediction in the making
}

func (c *Config) setDefaults() {
	c.MaxBody = cmp.Or(c.MaxBody, defaultMaxBody)
	c.Headers = cmp.Or(c.Headers, HeadersBoth)
	c.MaxStreams = cmp.Or(c.MaxStreams, defaultStreams)
	c.MaxRequests = cmp.Or(c.MaxRequests, defaultRequests)
	c.TenantShare = cmp.Or(c.TenantShare, DefaultTenantShare)
	c.AddressShare = cmp.Or(c.AddressShare, DefaultAddressShare)
	c.Horizon = cmp.Or(c.Horizon, simulate.Horizon)
	if c.Guesses == nil {
		c.Guesses = auth.NewGuesses()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

// New makes the server of a queue. It fails when the settings cannot work, or when the metrics are
// registered already.
func New(b Backend, cfg Config) (*Server, error) {
	if b == nil {
		return nil, errors.New("api: no queue")
	}
	cfg.setDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	s := &Server{
		backend: b, cfg: cfg, log: cfg.Logger, troubles: newTroubles(cfg.Logger), draining: make(chan struct{}),
		streams:  newShares(int64(cfg.MaxStreams), cfg.TenantShare, cfg.AddressShare),
		requests: newShares(int64(cfg.MaxRequests), cfg.TenantShare, cfg.AddressShare),
		turns:    newTurns(),
		arrivals: arrivals.New(), predicting: make(chan struct{}, 1),
	}
	if cfg.StatusRate != (shaper.Rate{}) {
		s.reads = newReadBudget(cfg.StatusRate)
	}
	var err error
	if s.metrics, err = newMetrics(b, cfg); err != nil {
		return nil, err
	}
	s.live = live.New(watched{b, cfg.Routes, s.metrics.figures}, liveStreams)
	if s.clientAddress, err = auth.ClientAddress(cfg.TrustedProxies...); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	s.bodies = newBodyBudget(cfg.TenantShare, cfg.AddressShare, s.metrics.evictedBodies)
	if s.guards, err = newIntakeGuards(cfg); err != nil {
		return nil, err
	}
	if s.board, err = dashboard.New(cfg.AdminToken, b, cfg.Guesses, nothingAt(onAdmin)); err != nil {
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

func (c Config) validate() error {
	var errs []error
	if c.MaxBody < 1 || c.MaxBody > maxBatchBody {
		errs = append(errs, fmt.Errorf("api: max body: %d: must be from 1 to %d bytes", c.MaxBody, maxBatchBody))
	}
	if !slices.Contains([]HeaderMode{HeadersIETF, HeadersLegacy, HeadersBoth, HeadersNone}, c.Headers) {
		errs = append(errs, fmt.Errorf("api: headers: %q: must be ietf, legacy, both or none", c.Headers))
	}
	if err := c.StatusRate.Validate(); err != nil && c.StatusRate != (shaper.Rate{}) {
		errs = append(errs, fmt.Errorf("api: status rate: %w", err))
	}
	if c.MaxStreams < 0 {
		errs = append(errs, fmt.Errorf("api: max streams: %d: must not be negative", c.MaxStreams))
	}
	if c.MaxRequests < 0 {
		errs = append(errs, fmt.Errorf("api: max requests: %d: must not be negative", c.MaxRequests))
	}
	for name, p := range map[string]Percent{"tenant share": c.TenantShare, "address share": c.AddressShare} {
		if p < 1 || p > 100 {
			errs = append(errs, fmt.Errorf("api: %s: %d: must be from 1 to 100 percent", name, p))
		}
	}
	if c.TopTenants < 0 || c.TopTenants > maxShown {
		errs = append(errs, fmt.Errorf("api: top tenants: %d: must be from 0 to %d", c.TopTenants, maxShown))
	}
	for name, r := range c.Routes {
		if r.MaxAttempts < 1 {
			errs = append(errs, fmt.Errorf("api: route %s: max attempts %d: must be at least 1", name, r.MaxAttempts))
		}
	}
	for path := range c.AdminPages {
		if !strings.HasPrefix(path, "/") || strings.HasSuffix(path, "/") || strings.ContainsAny(path, "{}*") {
			errs = append(errs, fmt.Errorf("api: admin page %q: must be a path that begins with a slash and does not end with one", path))
		}
	}
	for _, name := range c.StatusTenants {
		if err := tenantRule("status tenant", name); err != nil {
			errs = append(errs, fmt.Errorf("api: %w", err))
		}
	}
	return errors.Join(errs...)
}

// SetStatusTenants changes the named tenants that have gauges of their own; the names must be
// legal. It changes nothing where the deepest have them, or none.
func (s *Server) SetStatusTenants(names []string) { s.metrics.figures.show(names) }

// Intake is the data plane.
func (s *Server) Intake() http.Handler { return s.intake }

// Admin is the control plane, with metrics and probes.
func (s *Server) Admin() http.Handler { return s.admin }

// Metrics serves /metrics alone, to everybody who reaches it, for a collector that must not be an
// operator.
func (s *Server) Metrics() http.Handler { return s.scrape }

// Drain announces the end: from now on /readyz is 503, POSTs on the intake are refused with
// Retry-After, and clients that wait for a job are answered at once with its present state, event
// streams end. It returns immediately and may be called again.
func (s *Server) Drain() { s.drain.Do(func() { close(s.draining) }) }

// End ends the streams of figures, which go on while the server drains, and returns when nothing is
// read for them any more. Call it before the admin listener is shut down, which waits for them.
// What was not logged yet of bursts is logged.
func (s *Server) End() {
	s.live.Close()
	s.troubles.end()
}

func (s *Server) isDraining() bool {
	select {
	case <-s.draining:
		return true
	default:
		return false
	}
}

// Bounds of a connection. A request must be there readTimeout after its first byte (or its
// connection), so that one that drips is closed within 10 s whatever it drips; large bodies get
// more as they arrive, see incoming. The time to write begins with the header, so it must hold the
// longest wait and the answer; answers have a bound of their own once they begin, see hurry. An
// idle connection may stay long, for proxies keep theirs: it makes room when there is need, see
// Listener.
const (
	headerTimeout = 5 * time.Second
	readTimeout   = 8 * time.Second
	answerTimeout = 5 * time.Second
	refuseTimeout = readTimeout + 500*time.Millisecond // of a problem, which may begin only when what is left of a body was read
	writeTimeout  = readTimeout + wire.MaxWaitSeconds*time.Second + answerTimeout
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
)

// HTTPServer is a server for one of the handlers with bounds on time and size, so that slow clients
// cannot hold it. What net/http has to say about connections is logged at debug.
func HTTPServer(addr string, h http.Handler, log *slog.Logger) *http.Server {
	if log == nil {
		log = slog.Default()
	}
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}
