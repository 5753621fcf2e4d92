package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/shaper/simulate"
)

// Config is the settings of a Server, all that an embedder can set. The zero value of a field means
// its default.
type Config struct {
	Routes  map[string]RouteInfo // by name; jobs for other routes are refused
	MaxBody int64                // bytes of a submission; default 262144
	// Auth finds the tenant of a request; nil: the header Sluice-Tenant names it, unchecked.
	Auth        *auth.Authenticator
	Headers     HeaderMode // rate limit headers; default HeadersBoth
	AdminToken  string     // empty: the admin listener answers to loopback names only
	AdminSubmit bool       // accept test jobs on the admin listener
	AdminHosts  []string   // further Host names that it answers to without a token
	// AdminNetworks are those of operators: requests from other addresses are refused on the admin
	// listener, except probes. Empty: all.
	AdminNetworks []netip.Prefix
	// AdminURL is the URL of the dashboard in browsers; empty: unknown. If it is https, cookies are
	// for https alone.
	AdminURL string
	// SignOn lets operators sign in to the dashboard at a provider; nil: with tokens alone. It
	// needs AdminToken and AdminURL.
	SignOn     *SignOn
	Version    VersionInfo           // the answer of GET /version
	Registerer prometheus.Registerer // nil: metrics are not registered
	Gatherer   prometheus.Gatherer   // nil: no /metrics
	Logger     *slog.Logger          // default slog.Default()
	// Traces makes one span per submission; nil: none, and jobs carry the client's traceparent.
	Traces trace.TracerProvider
	// StatusTenants lists the tenants with gauges of their own; the others share one. Nil: no
	// gauges by tenant.
	StatusTenants []string
	// TopTenants is used instead of StatusTenants: the number of tenants with the deepest queues
	// that have gauges, 0 to 100.
	TopTenants int
	MaxStreams int // event streams at once; default 1000
	// StatusRate bounds the reads of jobs by one tenant, with a burst of one second; zero:
	// unlimited.
	StatusRate shaper.Rate
	// ReadRate bounds the work that reads, cancellations and replays of one tenant make in the
	// store, in reads of one job, with a burst of two seconds. An address has twice as many.
	// Default 2000/s.
	ReadRate shaper.Rate
	// MaxDelay returns the longest delay of a job of the client, and the setting that bounds it.
	// nil: any delay.
	MaxDelay func(who auth.Principal) (most time.Duration, setting string)
	// CheckCallback checks a callback URL of a tenant with these endpoints. Its error is the rule
	// that the URL breaks, such as "must be an http or https URL with a host", and must not quote
	// the URL. nil: jobs have no callbacks.
	CheckCallback func(url string, endpoints []string) error
	// CheckEndpoint checks an endpoint that an admin registers for the callbacks of a tenant, as
	// CheckCallback does. nil: any.
	CheckEndpoint func(prefix string) error
	// EraseTasks deletes what is kept of a tenant outside the queue, such as tasks of asynq, and
	// returns how many. nil: there is nothing.
	EraseTasks func(ctx context.Context, tenant string) (int64, error)
	// Calls returns how the upstreams of routes are called, by name, for operators. nil: they do
	// not see it.
	Calls func() map[string]RouteCalls
	// AdminPages are further handlers of the admin listener, with the same access control. Each
	// serves its path, such as "/debug/pprof", and all paths below.
	AdminPages map[string]http.Handler
	// DrainGrace is how long a client still waits for the answer to a forwarded request that is
	// under way when the server drains, and a second more; default 20s, as worker.Config.Grace.
	DrainGrace time.Duration
	// Audit bounds the record of what operators do.
	Audit Audit
	// Guards are limiters in front of the operations of the intake. They count in Limits, which
	// they need.
	Guards []guard.Intake
	Limits limiter.Store
	// Horizon is how far ahead of their stamps workers lease jobs, for predictions; default
	// simulate.Horizon.
	Horizon time.Duration
	// TrustedProxies are the proxies whose X-Forwarded-For is trusted for the address of a client,
	// and whose X-Forwarded-Proto for whether a browser uses TLS.
	TrustedProxies []netip.Prefix
	// Guesses counts wrong credentials of both listeners; give Auth the same one. Default: a new
	// one.
	Guesses *auth.Guesses
	// KeyMaxAge is how long new API keys may be good; 0: for ever.
	KeyMaxAge time.Duration
	// LocalOnly is set if the intake listens on loopback. Without authentication it then answers to
	// loopback names and Hosts only, so that web pages of other sites cannot reach it through a
	// browser.
	LocalOnly bool
	Hosts     []string // further Host names of the intake, see LocalOnly
	// MaxRequests bounds the requests of clients that the intake handles at once; default 10000.
	MaxRequests int
	// TenantShare and AddressShare bound the shares of one tenant and one address in requests,
	// event streams and the memory of large bodies, in percent; defaults 25 and 50; 100 is no
	// bound.
	TenantShare, AddressShare Percent
}

// defaultReadRate is the default of Config.ReadRate: about a tenth of what Redis does.
var defaultReadRate = shaper.Rate{Limit: 2000, Period: time.Second}

// defaultRequests is the default of Config.MaxRequests.
const defaultRequests = 10_000

// RouteInfo is the part of a route that the intake needs.
type RouteInfo struct {
	MaxAttempts int      // deliveries until a job is dead; 0: queue.DefaultMaxAttempts
	Forward     *Forward // the route takes forwarded requests only; nil: jobs
	Paths       bool     // jobs may name a path below the route's URL
	JobHeaders  []string // names of the headers that jobs may set on their deliveries
	Estimated   bool     // answers have the actual costs of jobs, see shaper.Request
}

// RouteCalls is how the upstream of a route is called. Operators see it, so it has no secrets.
type RouteCalls struct {
	Method  string   // of deliveries; empty: that of the forwarded request
	URL     string   // without user, query and fragment
	Headers []string // names of those that the route sets
	Auth    []string // some of oauth2, certificate, header, basic and signature
	Proxy   string   // env, or host and port; empty: none
	// CertificateEnd is when the client certificate ends; zero without one.
	CertificateEnd time.Time
}

// Forward is the part of a route of forwarded requests that the intake needs.
type Forward struct {
	Path string        // of the upstream's base URL
	Cost int64         // of a request until its answer says more, at least; default 1
	Wait time.Duration // for an answer, unless the client prefers another; at most 300s
	// Forwarded is what happens to headers that say where a request came from; default
	// ReplaceForwarded.
	Forwarded string
	// OnWaitEnd is the status of the answer at the end of the wait to a client that has not said
	// how long it prefers to wait: 202, 503 or 504; default 504. A client that only changed its URL
	// would take 202 for the upstream's.
	OnWaitEnd int
	// Idle is how long a client may take nothing of an answer that it gets while it comes; default
	// 30s.
	Idle time.Duration
}

// VersionInfo identifies the program.
type VersionInfo struct {
	Version, Commit, Go string
}

const defaultDrainGrace = 20 * time.Second

func (c *Config) setDefaults() {
	c.MaxBody = cmp.Or(c.MaxBody, contract.DefaultMaxBody)
	c.Headers = cmp.Or(c.Headers, HeadersBoth)
	c.MaxStreams = cmp.Or(c.MaxStreams, defaultStreams)
	c.MaxRequests = cmp.Or(c.MaxRequests, defaultRequests)
	c.ReadRate = cmp.Or(c.ReadRate, defaultReadRate)
	c.TenantShare = cmp.Or(c.TenantShare, budget.DefaultTenantShare)
	c.AddressShare = cmp.Or(c.AddressShare, budget.DefaultAddressShare)
	c.Horizon = cmp.Or(c.Horizon, simulate.Horizon)
	c.DrainGrace = cmp.Or(c.DrainGrace, defaultDrainGrace)
	c.Routes = maps.Clone(c.Routes)
	for name, r := range c.Routes {
		r.MaxAttempts = cmp.Or(r.MaxAttempts, queue.DefaultMaxAttempts)
		c.Routes[name] = r
	}
	if c.Guesses == nil {
		c.Guesses = auth.NewGuesses()
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
}

func (c Config) validate() error {
	var errs []error
	if c.MaxBody < 1 || c.MaxBody > contract.MaxBatchBody {
		errs = append(errs, fmt.Errorf("api: max body: %d: must be from 1 to %d bytes", c.MaxBody,
			contract.MaxBatchBody))
	}
	if !slices.Contains([]HeaderMode{HeadersIETF, HeadersLegacy, HeadersBoth, HeadersNone}, c.Headers) {
		errs = append(errs, fmt.Errorf("api: headers: %q: must be ietf, legacy, both or none", c.Headers))
	}
	if err := c.StatusRate.Validate(); err != nil && c.StatusRate != (shaper.Rate{}) {
		errs = append(errs, fmt.Errorf("api: status rate: %w", err))
	}
	if err := c.ReadRate.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("api: read rate: %w", err))
	}
	if c.MaxStreams < 0 {
		errs = append(errs, fmt.Errorf("api: max streams: %d: must not be negative", c.MaxStreams))
	}
	if c.MaxRequests < 0 {
		errs = append(errs, fmt.Errorf("api: max requests: %d: must not be negative", c.MaxRequests))
	}
	errs = append(errs, c.SignOn.validate(c)...)
	for name, p := range map[string]Percent{"tenant share": c.TenantShare, "address share": c.AddressShare} {
		if p < 1 || p > 100 {
			errs = append(errs, fmt.Errorf("api: %s: %d: must be from 1 to 100 percent", name, p))
		}
	}
	if c.TopTenants < 0 || c.TopTenants > figures.MaxShown {
		errs = append(errs, fmt.Errorf("api: top tenants: %d: must be from 0 to %d", c.TopTenants, figures.MaxShown))
	}
	for name, r := range c.Routes {
		if r.MaxAttempts < 0 {
			errs = append(errs, fmt.Errorf("api: route %s: max attempts %d: must not be negative", name, r.MaxAttempts))
		}
		httpmsg.CheckJobHeaderNames(r.JobHeaders, nil, func(i int, rule string) {
			errs = append(errs, fmt.Errorf("api: route %s: job header %q: %s", name, r.JobHeaders[i], rule))
		})
	}
	for path := range c.AdminPages {
		if !strings.HasPrefix(path, "/") || strings.HasSuffix(path, "/") || strings.ContainsAny(path, "{}*") {
			errs = append(errs, fmt.Errorf("api: admin page %q: must be a path that begins with a slash "+
				"and does not end with one", path))
		}
	}
	for _, name := range c.StatusTenants {
		if err := codec.CheckTenant("status tenant", name); err != nil {
			errs = append(errs, fmt.Errorf("api: %w", err))
		}
	}
	return errors.Join(errs...)
}

// HeaderMode selects the rate limit headers of 202 and 429 answers.
type HeaderMode = problem.HeaderMode

// The header modes.
const (
	HeadersIETF   = problem.IETF   // RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-11)
	HeadersLegacy = problem.Legacy // X-RateLimit-Limit, -Remaining, -Retry-After
	HeadersBoth   = problem.Both   // the default
	HeadersNone   = problem.None
)

// Percent is the share of a resource that one client may use at once, 1 to 100.
type Percent = budget.Percent
