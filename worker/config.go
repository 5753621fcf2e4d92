package worker

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Route is the destination of jobs: exactly one of an HTTP upstream (URL), a Go handler in this
// process (Handler), an asynq queue (Asynq) or the upstream of forwarded requests (Forward). The
// zero value of every other field means its default.
type Route struct {
	URL     string      // http or https, one POST per attempt; user information becomes basic authentication
	Handler bool        // run by Config.Handler
	Asynq   *AsynqRoute // handed off through Config.AsynqClient
	Forward *Forward    // forwarded as the client sent it

	// Timeout bounds one attempt with its answer; default 10s. asynq gets whole seconds, rounded
	// up.
	Timeout     time.Duration
	Connections int // to one host; default 256. Only for a URL or Forward
	// IdleTimeout is how long nothing may come on a connection: how long one is kept that is not
	// used, and how long an answer may pause that is passed on while it comes; default 30s. A
	// shorter time that an answer has in Keep-Alive counts instead for unused ones.
	// ConnectionMaxAge is after how long a connection gets no further request, so that a change
	// of the name's address is noticed; default 5m.
	IdleTimeout      time.Duration
	ConnectionMaxAge time.Duration
	Retry            Retry
	Breaker          Breaker // only for a URL
	// CostFrom says where an answer has the actual cost: "header" is its header Sluice-Cost, "none"
	// nowhere, and a JSON pointer (RFC 6901) such as "/usage/total_tokens" a part of its body. The
	// default is header for a URL that is in no pool, otherwise none: there one client's answer
	// would decide for others. Only for a URL or Forward.
	CostFrom string
	// MinCost replaces actual costs below it, so that answers with 0 do not buy departures without
	// end; nil: 1. Go handlers and asynq fleets report any cost.
	MinCost *int64
	// CostMissing is what an answer below 300 costs from which CostFrom, if it is set, cannot be
	// read; nil: the cost that the job or request was admitted with.
	CostMissing *int64
	Paths       bool     // jobs may name a path below URL. Only for a URL
	Secrets     []string // "whsec_" and base64; each signs (Standard Webhooks). Only for a URL

	// What follows is how an upstream is called, with Secrets. Worker.SetUpstream changes it.

	Method  string            // of deliveries to a URL: POST, PUT, PATCH, DELETE or GET; default POST. The last two have no body
	Headers map[string]string // set on each request, in place of those of a job or a client
	OAuth2  *OAuth2           // a token for the header Authorization; nil: none
	TLS     *tls.Config       // TLS 1.2 or newer in any case; nil: the authorities of the system
	// Proxy is "none", which is the default; "env", for HTTPS_PROXY, HTTP_PROXY and NO_PROXY; or an
	// http URL.
	Proxy string
	HTTP1 bool // no HTTP/2, although the upstream has it
	// Egress are link-local and metadata networks where the upstream may be. All others of these
	// are refused when they are dialled, as an answer that never comes.
	Egress []netip.Prefix
}

// OAuth2 are credentials for which an authorization server gives tokens (RFC 6749, section 4.4). A
// worker fetches one for a route, and another one before it ends or once the upstream answers 401.
// While there is none, jobs of the route wait and spend no attempt.
type OAuth2 struct {
	TokenURL     string
	ClientID     string
	ClientSecret string
	Scopes       []string
	Audience     string // sent as the parameter audience; empty: none
}

// Forward is the upstream of forwarded requests, whose answers are stored. The zero value of a
// field means its default.
type Forward struct {
	URL       string        // http or https, below which all requests go; without a query
	MaxAnswer int64         // bytes of an answer's body that are stored; default 1 MiB, at most 8 MiB
	FailLarge bool          // a larger answer is a failed request; otherwise it is cut
	Retention time.Duration // how long answers are kept; default 10m
	// RetryOn are the statuses that mean a failed attempt. A request that is not idempotent, as
	// POST, is sent again only if the upstream has not seen it, it has an Idempotency-Key, or
	// RetryUnsafe is set.
	RetryOn     []int
	RetryUnsafe bool
	// Stream is which answers are passed on while they come: StreamAuto, which is the default,
	// StreamAlways or StreamNever. Such an answer may then pause for Route.IdleTimeout, and take
	// MaxDuration in all; default 15m.
	Stream      string
	MaxDuration time.Duration
}

// maxAnswer bounds Forward.MaxAnswer: Redis and the API hold whole answers.
const maxAnswer = 8 << 20

// AsynqRoute is a queue of an asynq fleet. At its departure a job becomes a task with the job's
// type and payload, whose id is the job's id and the epoch of its lease, "06ah2…0f:3". From then on
// its pace and its retries are asynq's: one retry less than the route has attempts, but at least
// one, because without any asynq archives a task whose server crashed.
type AsynqRoute struct {
	Queue string // for example "orders"
	// Reports keeps the job leased, and running for its flow's concurrency, until the middleware of
	// package worker/handoff reports its end. Without it the job has succeeded when asynq has the
	// task. Then a worker that crashes in between makes a second task of it.
	Reports bool
	// ReportWithin is how long a job waits for a sign of its task: from the hand-off to the first
	// run, or from one run to the next. After that it goes back into its bucket and is handed off
	// again with a new id; tasks of the older id no longer run. At least Config.Lease; default 1h.
	ReportWithin time.Duration
}

// Retry sets how often and how fast a failed delivery is repeated. The zero value of a field means
// its default.
type Retry struct {
	MaxAttempts int           // at most 65,535; default 10, which with the other defaults take eight minutes
	MinBackoff  time.Duration // after the first failure, doubled by each further one; default 1s
	MaxBackoff  time.Duration // default 1h
}

// maxAttempts is as far as a job's record counts: the queue refuses settlements with more.
const maxAttempts = 1<<16 - 1

// Breaker sets when an unavailable upstream gets no jobs. Unavailable means: no answer at all, 502,
// 504, or 503 without Retry-After. Jobs that are due meanwhile hold their flow and spend no
// attempt, up to 20 times each. Each worker has a breaker of its own for each route. It opens for
// the whole route if at least half of its tenants find the upstream unavailable, otherwise for the
// flows that do. The zero value is no breaker.
type Breaker struct {
	Failures int // consecutive deliveries to an unavailable upstream that open the breaker; 0: never
	// Share is the percentage of such deliveries among at least 20 in 10 s that opens it, too;
	// default 50. Answers of a server that is overloaded do not count here.
	Share int
	// Delay is how long nothing is sent, ±20 %. Then one job is sent, and the others wait for its
	// end. If it fails too, the delay doubles, up to a minute. At most 1h; default 10s.
	Delay time.Duration
	// SlowAfter is after how long a running delivery counts among the consecutive ones, behind one
	// that has failed, until it ends. At most the route's timeout; default half of it.
	SlowAfter time.Duration
}

// Config is the settings of a Worker. The zero value of a field means its default.
type Config struct {
	Routes map[string]Route // by name; a job of any other route waits for another worker
	// Handler runs the jobs of the routes that have Handler set; usually an *asynq.ServeMux. See
	// the package's documentation for what handlers may rely on.
	Handler asynq.Handler
	// RetryDelay is how long a job waits after a handler failed; its n is the number of earlier
	// attempts, 0 after the first. The result is limited to 0 to 366 days. With nil, and always
	// after a handler that exceeded its timeout and still runs, it is the backoff of the route.
	RetryDelay asynq.RetryDelayFunc
	// AsynqClient is the Redis of the asynq fleet of the routes with Asynq. The caller closes it.
	AsynqClient redis.UniversalClient
	// Callbacks sends the callbacks of ended jobs; the worker runs it. Nil: other workers do.
	Callbacks Callbacks
	Lease     time.Duration // how long a lease lasts unless it is extended, from 100ms; default 30s
	Sweep     time.Duration // between two searches for expired leases; default 1s
	// Horizon is how far ahead of its stamp a job is leased at least. It grows where Redis is far,
	// up to a quarter of Lease; default 20ms.
	Horizon     time.Duration
	Concurrency int                   // jobs held at once until they are settled or handed off; default 256
	Grace       time.Duration         // how long running deliveries may take to end after the stop; default 20s
	Registerer  prometheus.Registerer // nil: metrics are not registered
	// Traces makes one span per delivery. Nil: none, and deliveries carry the submitted
	// traceparent.
	Traces trace.TracerProvider
	Logger *slog.Logger // default slog.Default()
}

func (r Route) withDefaults() Route {
	r.Timeout = cmp.Or(r.Timeout, 10*time.Second)
	r.Connections = cmp.Or(r.Connections, 256)
	r.IdleTimeout = cmp.Or(r.IdleTimeout, 30*time.Second)
	r.ConnectionMaxAge = cmp.Or(r.ConnectionMaxAge, 5*time.Minute)
	if r.Asynq != nil {
		to := *r.Asynq
		to.ReportWithin = cmp.Or(to.ReportWithin, time.Hour)
		r.Asynq = &to
	}
	if r.Forward != nil {
		f := *r.Forward
		f.MaxAnswer = cmp.Or(f.MaxAnswer, 1<<20)
		f.Retention = cmp.Or(f.Retention, 10*time.Minute)
		f.Stream = cmp.Or(f.Stream, StreamAuto)
		f.MaxDuration = cmp.Or(f.MaxDuration, 15*time.Minute)
		r.Forward = &f
	}
	r.MinCost = cmp.Or(r.MinCost, new(int64(1)))
	r.Retry.MaxAttempts = cmp.Or(r.Retry.MaxAttempts, queue.DefaultMaxAttempts)
	r.Retry.MinBackoff = cmp.Or(r.Retry.MinBackoff, time.Second)
	r.Retry.MaxBackoff = cmp.Or(r.Retry.MaxBackoff, time.Hour)
	r.Breaker.Share = cmp.Or(r.Breaker.Share, 50)
	r.Breaker.Delay = cmp.Or(r.Breaker.Delay, 10*time.Second)
	r.Breaker.SlowAfter = cmp.Or(r.Breaker.SlowAfter, max(1, r.Timeout/2))
	return r
}

func (c Config) withDefaults() Config {
	routes := make(map[string]Route, len(c.Routes))
	for name, r := range c.Routes {
		routes[name] = r.withDefaults()
	}
	c.Routes = routes
	c.Lease = cmp.Or(c.Lease, 30*time.Second)
	c.Sweep = cmp.Or(c.Sweep, time.Second)
	c.Horizon = cmp.Or(c.Horizon, 20*time.Millisecond)
	c.Concurrency = cmp.Or(c.Concurrency, 256)
	c.Grace = cmp.Or(c.Grace, 20*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate lists every setting that breaks a rule; the defaults are filled in by then.
func (c Config) validate() error {
	var ps shaper.Problems
	ps.Check(c.Lease >= 100*time.Millisecond, "lease", c.Lease, "must be at least 100ms")
	ps.Check(c.Sweep > 0, "sweep", c.Sweep, "must be positive")
	ps.Check(c.Horizon > 0 && c.Horizon <= c.Lease/4, "horizon", c.Horizon,
		"must be positive and at most a quarter of the lease")
	ps.Check(c.Concurrency > 0, "concurrency", c.Concurrency, "must be positive")
	ps.Check(c.Grace > 0, "grace", c.Grace, "must be positive")
	for _, name := range slices.Sorted(maps.Keys(c.Routes)) {
		ps = append(ps, c.problems(name, c.Routes[name])...)
	}
	return ps.Err()
}

// problems lists every setting of a route that breaks a rule.
func (c Config) problems(name string, r Route) (ps shaper.Problems) {
	at := "routes." + name
	check := func(ok bool, field string, value any, rule string) { ps.Check(ok, at+"."+field, value, rule) }
	var kinds []string
	if r.URL != "" {
		kinds = append(kinds, "url")
		shown, usable := redacted(r.URL)
		check(usable, "url", shown, "must be an http or https URL with a host, percent-encoded and without the segments . and ..")
	}
	if r.Handler {
		kinds = append(kinds, "handler")
		check(c.Handler != nil, "handler", true, "needs Config.Handler, which is not set")
	}
	if to := r.Asynq; to != nil {
		kinds = append(kinds, "asynq")
		check(c.AsynqClient != nil, "asynq", to.Queue, "needs Config.AsynqClient, which is not set")
		named := strings.TrimSpace(to.Queue) != ""
		check(named, "asynq.queue", strconv.Quote(to.Queue), "must be the name of a queue")
		check(to.ReportWithin >= c.Lease, "asynq.report_within", to.ReportWithin, "must be at least the lease")
	}
	if f := r.Forward; f != nil {
		kinds = append(kinds, "forward")
		shown, usable := redacted(f.URL)
		check(usable && !strings.ContainsAny(f.URL, "?#"), "forward", shown,
			"must be an http or https URL with a host and without a query")
		check(f.MaxAnswer > 0 && f.MaxAnswer <= maxAnswer, "max_response", f.MaxAnswer, "must be 1 to 8388608 bytes")
		check(f.Retention >= time.Second, "retention", f.Retention, "must be at least 1s")
		check(f.Stream == StreamAuto || f.Stream == StreamAlways || f.Stream == StreamNever, "stream", strconv.Quote(f.Stream),
			"must be auto, always or never")
		check(f.MaxDuration > 0, "max_duration", f.MaxDuration, "must be positive")
		for _, status := range f.RetryOn {
			check(status >= 400 && status <= 599, "retry.on", status, "must be statuses from 400 to 599")
		}
	}
	ps.Check(len(kinds) == 1, at, cmp.Or(strings.Join(kinds, ", "), "nothing"),
		"must have exactly one of url, handler, asynq and forward")
	check(r.Timeout > 0, "timeout", r.Timeout, "must be positive")
	check(r.Connections > 0, "connections", r.Connections, "must be positive")
	check(r.IdleTimeout > 0, "idle_timeout", r.IdleTimeout, "must be positive")
	check(r.ConnectionMaxAge > 0, "connection_max_age", r.ConnectionMaxAge, "must be positive")
	retry, b := r.Retry, r.Breaker
	countable := retry.MaxAttempts > 0 && retry.MaxAttempts <= maxAttempts
	check(countable, "retry.max_attempts", retry.MaxAttempts, "must be 1 to 65535")
	check(retry.MinBackoff > 0, "retry.min_backoff", retry.MinBackoff, "must be positive")
	longer := retry.MaxBackoff >= retry.MinBackoff
	check(longer, "retry.max_backoff", retry.MaxBackoff, "must be at least min_backoff")
	check(b.Failures >= 0, "breaker.failures", b.Failures, "must not be negative")
	check(b.Failures <= 0 || r.calls(), "breaker.failures", b.Failures, "breaks deliveries to a url or forward only")
	check(b.Share > 0 && b.Share <= 100, "breaker.share", b.Share, "must be from 1 to 100")
	check(b.Delay > 0 && b.Delay <= maxHold, "breaker.delay", b.Delay, "must be positive and at most 1h")
	inTime := b.SlowAfter > 0 && b.SlowAfter <= max(1, r.Timeout)
	check(inTime, "breaker.slow_after", b.SlowAfter, "must be positive and at most the timeout")
	named := r.CostFrom == costNone || r.CostFrom == costFromHeader
	check(named || jsontext.Pointer(r.CostFrom).IsValid(), "cost_from", strconv.Quote(r.CostFrom),
		"must be none, header or a JSON pointer (RFC 6901) such as /usage/total_tokens")
	check(r.CostFrom == "" || r.calls(), "cost_from", r.CostFrom, "reads answers of a url or forward only")
	check(*r.MinCost >= 0 && *r.MinCost <= shaper.MaxCost, "min_cost", *r.MinCost, "must be 0 to 1000000")
	missing := r.CostMissing
	check(missing == nil || *missing >= 0 && *missing <= shaper.MaxCost, "cost_missing", missing, "must be 0 to 1000000")
	check(!r.Paths || r.URL != "", "paths", r.Paths, "are below a url only")
	check(len(r.Secrets) == 0 || r.URL != "", "secrets", "(hidden)", "sign requests to a url only")
	for i, secret := range r.Secrets {
		check(outbound.ValidSecret(secret), fmt.Sprintf("secrets[%d]", i), "(hidden)", "must be whsec_ and base64")
	}
	r.checkUpstream(check)
	return ps
}

// calls reports whether the route's upstream is called by HTTP.
func (r Route) calls() bool { return r.URL != "" || r.Forward != nil }

// redacted is a URL without its secrets: user information, query and fragment. It is usable if the
// HTTP deliverer can post to it.
func redacted(raw string) (shown string, usable bool) {
	u, err := url.Parse(raw)
	if err != nil {
		return "(not a URL)", false
	}
	usable = httpmsg.CheckURL(raw) == ""
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String(), usable
}

// beat is the time between two heartbeats, of the worker and of its leases.
func (c Config) beat() time.Duration { return min(time.Second, c.Lease/10) }

// margin is what a lease must have left for its job to depart: a tenth of it, and at least two
// heartbeats, so that the first extension of the running delivery may fail once.
func (c Config) margin() time.Duration { return max(c.Lease/10, 2*c.beat()) }
