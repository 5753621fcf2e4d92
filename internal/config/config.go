// Package config reads the settings of the sluice program: defaults, file, environment and command
// line. A later source overrides an earlier one.
//
// It reports every unknown key, wrong type and broken rule of all four sources at once as
// shaper.Problems, each with its path, value and rule. Nothing is repaired silently, and a report
// never contains a secret. The packages that use the settings define their meaning.
package config

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Config is the settings of one process, complete and checked.
type Config struct {
	Redis     Redis
	API       API
	Admin     Admin
	Auth      Auth
	Headers   string // rate limit headers of answers: ietf, legacy, both or none
	Worker    Worker
	Retention Retention
	Store     Store
	Codec     Codec
	Egress    Egress
	Callbacks Callbacks
	Routes    map[string]Route // at least one
	Forward   []ForwardListener
	Tenants   Tenants
	Guards    map[string]Guard // before the intake; none: off
	Metrics   Metrics
	Traces    Traces
	Audit     Audit
	Log       Log
	// Notes are what an operator should know although it is no problem.
	Notes []string
	// Files are those that settings refer to, also of a file with problems. Their content is in the
	// settings.
	Files []string
}

// Redis is where jobs are stored.
type Redis struct {
	URL         string // empty: this process starts a private redis-server
	DataDir     string // of the private redis-server
	AllowUnsafe bool   // accept a Redis that evicts keys or has no append-only file
	Durability  Durability
}

// Durability is what a change waits for before its client gets an answer.
type Durability struct {
	Replicas int64         // that have the change; 0: no wait
	Fsync    bool          // on disk, there and on the master
	Timeout  time.Duration // after which the outcome is unknown
}

// API is the listener that clients send jobs to.
type API struct {
	Listen      string
	TLS         ListenerTLS
	MaxBody     int64 // bytes of one submission
	MaxStreams  int64 // concurrent event streams of this process
	Hosts       string
	AllowPublic bool // listen beyond loopback without authentication

	MaxConnections int64
	TenantShare    int64       // percent of the shared resources for one tenant
	AddressShare   int64       // percent for one address
	StatusRate     shaper.Rate // reads of jobs by one tenant; zero: no bound
	ReadRate       shaper.Rate // what reads, cancellations and replays of one tenant cost, in reads of one job
}

// HostNames returns the accepted host names besides those of loopback.
func (a API) HostNames() []string {
	return strings.FieldsFunc(a.Hosts, func(r rune) bool { return r == ',' || r == ' ' })
}

// Admin is the listener of operators.
type Admin struct {
	Listen    string
	TLS       ListenerTLS
	Token     string // empty: see TokenFile
	TokenFile string // of a token that the process makes; empty: one in Redis.DataDir, unless Listen is on loopback
	Allow     string // networks of operators, separated by commas; empty: all
	PublicURL string // of the dashboard in browsers; empty: that of the listener
	OIDC      OIDC   // single sign-on

	Profiles bool // serve the runtime's profiles
	Submit   bool // admit jobs

	MaxConnections int64
}

// Networks returns those of Allow.
func (a Admin) Networks() []netip.Prefix {
	networks, _ := networksOf(a.Allow) // was checked
	return networks
}

// Worker holds the settings of leases and deliveries.
type Worker struct {
	Lease       time.Duration // how long a worker may be silent before other workers get its jobs
	Sweep       time.Duration // interval of the search for expired leases
	Horizon     time.Duration // how far ahead of its departure a job may be leased
	Concurrency int64         // concurrent deliveries of this process
	Grace       time.Duration // for what runs when the process stops
}

// Retention is how long ended jobs and idempotency keys are stored.
type Retention struct {
	Succeeded   time.Duration // succeeded, cancelled and expired jobs
	Dead        time.Duration // dead letters
	Idempotency time.Duration // idempotency keys

	DeadCapacity int64 // maximum dead letters of a flow; at the maximum the flow stops
	DeadBytes    int64 // maximum bytes of them
}

// Codec encrypts what clients wrote before it is stored.
type Codec struct {
	KeyFile  string
	Command  string // instead of KeyFile; both empty: no encryption
	ReadOnly bool   // new texts are stored in clear
}

// Store bounds the data of all tenants together; 0 is no bound.
type Store struct {
	Environment  string // name of the deployment; empty: none
	Shards       int64  // fixed at the first start; 0: as many as the store has, and 64 in a new one
	MaxBytes     int64  // of waiting, leased and dead jobs
	FlowShare    int64  // percent of the store that a flow may use
	Reserve      int64  // percent of all that only tenants with settings or keys may use
	GuestShare   int64  // percent of the bytes that all guests may use together
	GuestTenants int64  // percent of MaxTenants that may be guests
	MaxTenants   int64  // with jobs, or active in the last ten minutes
	CompressOver int64  // minimum bytes of a payload that is stored compressed; 0: no compression
}

// Egress is where upstreams may be.
type Egress struct {
	Allow string // link-local and metadata networks, which are refused otherwise
}

// Callbacks notify clients of the end of their jobs.
type Callbacks struct {
	Mode        string        // off, registered or public
	Deny        string        // networks that no callback may lead to
	Allow       []string      // URL prefixes that may lead to private addresses
	Secrets     []string      // they sign callbacks, newest first; none: not signed
	Proxy       string        // none, env or a URL
	Timeout     time.Duration // of one attempt
	MaxAttempts int64
}

// Denied returns the networks of Deny.
func (c Callbacks) Denied() []netip.Prefix {
	networks, _ := networksOf(c.Deny) // was checked
	return networks
}

// Route is the destination of jobs: an upstream that receives them by POST, or an asynq queue.
type Route struct {
	Asynq       Asynq
	URL         string
	Forward     string // base URL of the upstream of forwarded requests; empty: the route has jobs
	Shown       string // URL or Forward for people: without user and query, and with hidden in place of references
	Timeout     time.Duration
	Connections int64    // maximum connections of this process to the upstream
	Paths       bool     // jobs may name a path below the URL
	JobHeaders  []string // names of the headers that jobs may set on their deliveries
	// How long a connection to the upstream is kept unused, and after how long it gets no further
	// request.
	IdleTimeout, ConnectionMaxAge time.Duration
	CostFrom                      string      // none, header or a JSON pointer to the actual cost in an answer; may be empty
	CostMissing                   string      // estimate, or what an answer without a readable cost costs
	MinCost                       int64       // lower actual costs in answers count as this
	Rate                          shaper.Rate // of a pool of this route alone, zero for none
	Secrets                       []string    // they sign deliveries, newest first; none: not signed
	Retry                         Retry
	Breaker                       Breaker
	Calls

	// Of forwarded requests:
	Wait              time.Duration // for an answer, unless the client prefers another
	Cost              int64         // of a request until its answer says more, at least
	OnWaitEnd         int64         // status at the end of it: 202, 503 or 504
	Forwarded         string        // replace, append or pass headers that say where a request came from
	MaxResponse       int64         // bytes of an answer's body that are stored
	MaxResponseAction string        // for a larger one: cut or fail
	Stream            string        // which answers are passed on while they come: auto, always or never
	MaxDuration       time.Duration // of such an answer
	Retention         time.Duration // of answers
}

// Calls is how a route's upstream is called, with Route.Secrets. A reload changes it.
type Calls struct {
	Method  string            // of deliveries to a url
	Headers map[string]string // set on each request
	OAuth2  OAuth2
	TLS     TLS
	Proxy   string         // none, env or a URL
	HTTP2   bool           // where the upstream has it
	Egress  []netip.Prefix // as Egress.Allow
}

// OAuth2 are the credentials for tokens; without a TokenURL there are none.
type OAuth2 struct {
	TokenURL, ClientID, ClientSecret, Audience string
	Scopes                                     []string
}

// TLS is what a route's upstream is verified by, and what it verifies: the contents of files in
// PEM.
type TLS struct {
	CA, Cert, Key string // each empty if not set
	ServerName    string // empty: that of the URL
}

// Values of Route.CostFrom beside JSON pointers.
const (
	costNone   = "none"
	costHeader = "header"
)

// costFrom is where the answers of a route have the actual cost. The worker decides in the same
// way.
func (c Config) costFrom(name string) string {
	route := c.Routes[name]
	switch {
	case route.CostFrom != "":
		return route.CostFrom
	case route.Forwards() || c.Tenants.Baseline().PoolOf(name) != "":
		return costNone
	}
	return costHeader
}

// Asynq is a queue of an asynq fleet. Without a name the route has a URL.
type Asynq struct {
	Queue        string
	Reports      bool
	ReportWithin time.Duration
}

// Retry holds the retries of failed deliveries.
type Retry struct {
	MaxAttempts int64
	MinBackoff  time.Duration
	MaxBackoff  time.Duration
	On          []int64 // statuses of answers to forwarded requests that are failed attempts
	Unsafe      bool    // send forwarded requests again that are not idempotent
}

// Breaker is the circuit breaker of a route.
type Breaker struct {
	Failures  int64 // 0: never
	Share     int64 // percent
	Delay     time.Duration
	SlowAfter time.Duration // 0: half of the timeout
}

// Tenants are the policies of the configuration.
type Tenants struct {
	Defaults shaper.Policy                  // of tenants without overrides
	Routes   map[string]shaper.Overrides    // override the defaults for the flows of a route
	Tiers    map[string]shaper.Overrides    // override the defaults for the tenants of a tier
	Named    map[string]shaper.Overrides    // override the defaults and the tier
	Bounds   map[string]TierBounds          // of the tenants of a tier; a tier without any is absent
	Weights  map[string]int64               // in pools of all tenants that claim a tier; see shaper.Baseline
	Pools    map[string]shaper.PoolSettings // rates that the flows of several routes or tenants share
}

// TierBounds bound what the tenants of a tier may store together, in percent, and each job. They
// have the tier's weight in pools, too.
type TierBounds struct {
	StoreShare, TenantShare int64
	PoolWeight              int64
	MaxDelay                time.Duration
}

// MaxDelay returns the longest delay of a job, and the setting that says so.
func (c Config) MaxDelay(tenant, claimed string, guest bool) (most time.Duration, setting string) {
	most, setting = shaper.MaxPeriod, "the longest delay"
	tier := claimed
	if named := c.Tenants.Named[tenant].Tier; named != nil {
		tier = *named
	}
	if b, ok := c.Tenants.Bounds[tier]; ok && b.MaxDelay < most {
		most, setting = b.MaxDelay, "tiers."+tier+".max_delay"
	}
	if guest && c.Auth.Guest.MaxDelay < most {
		most, setting = c.Auth.Guest.MaxDelay, "auth.guest.max_delay"
	}
	return most, setting
}

// Baseline returns the policies of tenants that are not named.
func (t Tenants) Baseline() shaper.Baseline {
	return shaper.Baseline{Defaults: t.Defaults, Routes: t.Routes, Tiers: t.Tiers, Pools: t.Pools, PoolWeights: t.Weights}
}

// Traces are the settings of OpenTelemetry spans.
type Traces struct {
	Endpoint string   // URL of the collector; empty: OpenTelemetry's own variables decide
	Sample   *float64 // share of sampled traces that begin here, 0 to 1; nil: the variables decide
}

// Audit is the record of what operators do.
type Audit struct {
	Retention time.Duration
	MaxBytes  int64  // in Redis
	Log       string // off, stdout or a file
}

// Log is the log on standard error.
type Log struct {
	Level string // debug, info, warn or error
}

// Metrics are the settings of Prometheus metrics.
type Metrics struct {
	Listen  string // address of a listener for metrics alone; empty: none
	TLS     ListenerTLS
	Tenants string // with gauges of their own: TenantsNamed, TenantsNone, or TenantsTop and their number
}

// Values of Metrics.Tenants.
const (
	TenantsNamed = "named"
	TenantsNone  = "none"
	TenantsTop   = "top:" // and a number from 1 to 100
)

// Top returns how many of the deepest tenants have gauges of their own, 0 unless Tenants is
// TenantsTop.
func (m Metrics) Top() int {
	n, err := strconv.Atoi(strings.TrimPrefix(m.Tenants, TenantsTop))
	if err != nil {
		return 0
	}
	return n
}
