// Package config reads the settings of the sluice program: defaults, then the file, then the
// environment, then the command line, the later winning.
//
// It promises that nothing is repaired in silence. Every unknown key, wrong type and broken rule of
// all four sources is collected and reported at once, each with its path, its value and the rule,
// as shaper.Problems. The values of secrets are never part of a report. What the settings mean is
// left to the packages that use them.
package config

import (
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
	Headers   string // which rate limit headers answers carry: ietf, legacy, both or none
	Worker    Worker
	Retention Retention
	Store     Store
	Callbacks Callbacks
	Routes    map[string]Route // at least one
	Tenants   Tenants
	Guards    map[string]Guard // in front of the intake; none: off
	Metrics   Metrics
	Traces    Traces
	Log       Log
}

// Redis says where jobs are kept.
type Redis struct {
	URL         string // empty: a private redis-server, started by this process
	DataDir     string // of the private redis-server
	AllowUnsafe bool   // accept a Redis that evicts or has no append-only file
}

// API is the listener that clients send jobs to.
type API struct {
	Listen      string
	MaxBody     int64 // bytes of one submission
	MaxStreams  int64 // event streams of this process at once
	Hosts       string
	AllowPublic bool // listen beyond loopback although there is no authentication

	MaxConnections int64
	TenantShare    int64       // percent of what all clients share
	AddressShare   int64       // the same of one address
	StatusRate     shaper.Rate // reads of jobs by one tenant; zero: no bound
}

// HostNames are the names that it answers to beside those of loopback.
func (a API) HostNames() []string {
	return strings.FieldsFunc(a.Hosts, func(r rune) bool { return r == ',' || r == ' ' })
}

// Admin is the listener of the operator.
type Admin struct {
	Listen string
	Token  string // empty: loopback only

	Asynqmon bool // serve asynq's own web page too
	Profiles bool // and the runtime's profiles
	Submit   bool // and take jobs

	MaxConnections int64
}

// Worker is how leased jobs are handled.
type Worker struct {
	Lease       time.Duration // how long a worker may be silent before its jobs are given to another
	Sweep       time.Duration // how often expired leases are looked for
	Horizon     time.Duration // how far ahead of its departure a job may be leased
	Concurrency int64         // deliveries of this process at once
}

// Retention is how long things are kept once a job is done.
type Retention struct {
	Succeeded   time.Duration // succeeded, cancelled and expired jobs
	Dead        time.Duration // dead letters
	Idempotency time.Duration // idempotency keys

	DeadCapacity int64 // dead letters of a flow; it pauses itself when it has so many
	DeadBytes    int64 // bytes of them
}

// Store bounds what all tenants together may keep; 0 is no bound.
type Store struct {
	MaxBytes   int64 // of jobs that wait, are leased or are dead
	FlowShare  int64 // percent of the store that a flow may fill
	MaxTenants int64 // with jobs, or active in the last ten minutes
	// CompressOver is from how many bytes on a payload is stored compressed; 0: never.
	CompressOver int64
}

// Callbacks tell clients that their jobs have ended.
type Callbacks struct {
	Allow       []string      // URL prefixes that need not lead to public addresses
	Secrets     []string      // that sign callbacks, newest first; none: not signed
	Timeout     time.Duration // of one attempt
	MaxAttempts int64
}

// Route is where jobs go: an upstream they are delivered to by POST, or an asynq queue.
type Route struct {
	Asynq       Asynq
	URL         string
	Timeout     time.Duration
	Connections int64    // of this process to the upstream, at the most
	Secrets     []string // that sign deliveries, newest first; none: not signed
	Retry       Retry
	Breaker     Breaker
}

// Asynq is a queue of an asynq fleet; without a name the route is none.
type Asynq struct {
	Queue        string
	Reports      bool
	ReportWithin time.Duration
}

// Retry is what becomes of a failed delivery.
type Retry struct {
	MaxAttempts int64
	MinBackoff  time.Duration
	MaxBackoff  time.Duration
}

// Breaker is when an upstream that is unavailable is left alone, and for how long.
type Breaker struct {
	Failures  int64 // 0: never
	Delay     time.Duration
	SlowAfter time.Duration // 0: half of the timeout
}

// Tenants are the policies that the configuration gives.
type Tenants struct {
	Defaults shaper.Policy               // of every tenant of which nothing else is said
	Routes   map[string]shaper.Overrides // laid over the defaults for the flows of a route
	Tiers    map[string]shaper.Overrides // laid over the defaults for the tenants of a tier
	Named    map[string]shaper.Overrides // laid over the defaults and the tier
}

// Baseline is what holds for tenants that are not named.
func (t Tenants) Baseline() shaper.Baseline {
	return shaper.Baseline{Defaults: t.Defaults, Routes: t.Routes, Tiers: t.Tiers}
}

// Traces say where OpenTelemetry spans are sent.
type Traces struct {
	Endpoint string   // URL; empty: as OpenTelemetry's own variables say, which is nowhere without them
	Sample   *float64 // share of the traces that begin here, 0 to 1; nil: as the variables say, else 1
}

// Log is what the process says on standard error.
type Log struct {
	Level string // debug, info, warn or error
}

// Metrics are how the process is watched.
type Metrics struct {
	Listen  string // of a listener that serves metrics alone; empty: none
	Tenants string // which have gauges of their own: TenantsNamed, TenantsNone, or TenantsTop and their number
}

// Values of Metrics.Tenants.
const (
	TenantsNamed = "named"
	TenantsNone  = "none"
	TenantsTop   = "top:" // and a number from 1 to 100
)

// Top is how many of the deepest tenants have gauges of their own; 0 where others have.
func (m Metrics) Top() int {
	n, err := strconv.Atoi(strings.TrimPrefix(m.Tenants, TenantsTop))
	if err != nil {
		return 0
	}
	return n
}
