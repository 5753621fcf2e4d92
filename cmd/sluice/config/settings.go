package config

import (
	"fmt"
	"math"
	"strings"
	"time"
)

// Kind is the type of a setting's value.
type Kind string

// The kinds of settings.
const (
	Text     Kind = "text"
	Whole    Kind = "whole number"
	Switch   Kind = "true or false"
	Duration Kind = "duration"
	Rate     Kind = "rate"
	Share    Kind = "number from 0 to 1"
)

// Setting is one value that can be set: what the reader, the flags, the help texts and the
// reference page know of it.
type Setting struct {
	Key     string // path in the file, such as "worker.lease"
	Kind    Kind
	Default string // as written in the file; empty: not set
	Rule    string // what the value must be
	Help    string // what it does
	Secret  bool   // its value is never shown

	flag     string
	min, max int64                   // of a whole number or, in nanoseconds, a duration; both 0: checked elsewhere
	check    func(value string) bool // of a text
}

// Env is the environment variable of the setting.
func (s Setting) Env() string {
	return "SLUICE_" + strings.ToUpper(strings.ReplaceAll(s.Key, ".", "_"))
}

// Flag is the name of the command line flag of the setting, without dashes.
func (s Setting) Flag() string {
	if s.flag != "" {
		return s.flag
	}
	return strings.NewReplacer(".", "-", "_", "-").Replace(s.Key)
}

func whole(key, value string, low, high int64, help string) Setting {
	return Setting{Key: key, Kind: Whole, Default: value, Help: help, min: low, max: high,
		Rule: fmt.Sprintf("must be a whole number from %d to %d", low, high)}
}

func duration(key, value string, low, high time.Duration, help string) Setting {
	return Setting{Key: key, Kind: Duration, Default: value, Help: help, min: int64(low), max: int64(high),
		Rule: fmt.Sprintf("must be a duration from %s to %s", Short(low), Short(high))}
}

func toggle(key, help string) Setting {
	return Setting{Key: key, Kind: Switch, Default: "false", Help: help, Rule: "must be true or false"}
}

func choice(key, value, help string, choices ...string) Setting {
	return Setting{Key: key, Kind: Text, Default: value, Help: help, Rule: "must be one of " + strings.Join(choices, ", "),
		check: func(v string) bool {
			for _, c := range choices {
				if v == c {
					return true
				}
			}
			return false
		}}
}

func address(key, flag, value, help string) Setting {
	return Setting{Key: key, Kind: Text, Default: value, Help: help, flag: flag, check: isAddress,
		Rule: "must be HOST:PORT, such as 127.0.0.1:8080, HOST an IP address or localhost"}
}

const (
	day  = 24 * time.Hour
	year = 366 * day
)

// Settings are all scalar settings that have one place in the file, in the order of the reference
// page.
func Settings() []Setting {
	settings := []Setting{
		{Key: "redis.url", Kind: Text, check: isRedisURL, Help: "Redis that keeps the jobs. Without it a private redis-server is started.",
			Rule: "must be redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://, such as redis://127.0.0.1:6379/0", Secret: true},
		{Key: "redis.data_dir", Kind: Text, Default: "./data", check: notEmpty, Help: "Directory of the private redis-server.",
			Rule: "must be the path of a directory"},
		toggle("redis.allow_unsafe", "Accept a Redis that evicts keys or has no append-only file, and may therefore lose jobs."),
		address("api.listen", "api", "127.0.0.1:8080", "Address of the listener for clients."),
		whole("api.max_body", "262144", 1024, 8<<20, "Bytes of one submission."),
		whole("api.max_streams", "1000", 1, 100_000, "Event streams of this process at once; more are answered with 503."),
		whole("api.max_connections", "10000", 1, 1_000_000, "Connections to this listener at once. When they are reached, idle ones make room for new ones, and where none is idle the new one is closed."),
		whole("api.tenant_share", "25", 1, 100, "Percent of api.max_connections (requests under way), of api.max_streams and of the memory of large bodies that one tenant may hold at once."),
		whole("api.address_share", "50", 1, 100, "The same for one address: connections, event streams, memory. Proxies of auth.guest.trusted_proxies may hold all connections."),
		{Key: "api.status_rate", Kind: Rate, Help: "How often one tenant may read jobs and lists and open event streams, in this process, such as 100/s; a second's worth may come at once. More are answered with 429. Not set: no bound.",
			Rule: "must be LIMIT/PERIOD with the units ms, s, m, h, d, period from 1ms to 366d, at most 1000000 a second"},
		{Key: "api.hosts", Kind: Text, check: isHosts, Help: "Names, beside those of loopback, that the API answers to while it listens on loopback and does not authenticate; pages of theirs may ask it, too. For a proxy on this machine that passes its own name on.",
			Rule: "must be names of hosts, perhaps with a port, separated by commas, such as jobs.example,jobs.example:8443"},
		toggle("api.allow_public", "Let the API listen beyond loopback although clients are not authenticated."),
		address("admin.listen", "admin", "127.0.0.1:8081", "Address of the listener for operators: tenants, health, metrics."),
		{Key: "admin.token", Kind: Text, check: isToken, Secret: true, Help: "Bearer token of the admin listener. Without it that listens on loopback only.",
			Rule: "must be 16 to 255 visible ASCII characters without spaces"},
		whole("admin.max_connections", "1000", 1, 1_000_000, "Connections to this listener at once, as api.max_connections; one address may hold api.address_share of them."),
		toggle("admin.asynqmon", "Serve asynqmon, asynq's own web page, on the admin listener at /asynqmon/: callbacks, and the tasks of asynq routes."),
		toggle("admin.submit", "Take jobs on the admin listener too (POST /v1/tenants/{tenant}/jobs), to try things out; sluice dev has it on."),
		toggle("admin.profiles", "Serve the runtime's profiles of this process on the admin listener at /debug/pprof/, for go tool pprof."),
	}
	settings = append(settings, authSettings()...)
	settings = append(settings, []Setting{
		choice("headers", "both", "Rate limit headers of answers: those of the IETF draft, the legacy X- ones, both or none.",
			"ietf", "legacy", "both", "none"),
		duration("worker.lease", "30s", time.Second, time.Hour, "How long a worker may be silent before its jobs go to another."),
		duration("worker.sweep", "1s", 10*time.Millisecond, 15*time.Minute, "How often expired leases are looked for; at most a quarter of the lease."),
		duration("worker.horizon", "20ms", time.Millisecond, time.Second, "How far ahead of its departure a job is leased where Redis is near; at most a quarter of the lease. Workers lease earlier by themselves where Redis answers late."),
		whole("worker.concurrency", "256", 1, 100_000, "Deliveries of this process at once."),
		duration("retention.succeeded", "1h", time.Second, year, "How long succeeded, cancelled and expired jobs can be read."),
		duration("retention.dead", "168h", time.Second, year, "How long dead letters are kept."),
		duration("retention.idempotency", "24h", time.Second, year, "How long an idempotency key outlives its job."),
		whole("retention.dead_capacity", "10000", 1, 1_000_000, "Dead letters that a flow keeps; when it has so many, nothing leaves it until they are replayed or purged."),
		whole("retention.dead_bytes", "67108864", 1, 1<<50, "Bytes of dead letters that a flow keeps; when it has so many, nothing leaves it until some are replayed or purged."),
		whole("store.flow_share", "50", 1, 100, "Percent of the store that one flow, a route of a tenant, may fill while the others keep little; more is refused with 429. The more is stored, the less it may have. 100 is no bound."),
		whole("store.max_bytes", "0", 0, 1<<50, "Bytes of all jobs that wait, are delivered or are dead, beyond which jobs are refused with 503; 0: what the memory of Redis allows."),
		whole("store.compress_over", "0", 0, 8<<20, "Payloads of so many bytes or more are stored compressed, and count with the bytes they then have; 0: none. From 1024 on JSON shrinks by half. Workers of all processes must know it: set it after an upgrade."),
		whole("store.max_tenants", "1000000", 0, 1_000_000_000, "Tenants with jobs or activity in the last ten minutes, beyond which jobs of others are refused with 503; 0 is no bound."),
		duration("callbacks.timeout", "10s", 100*time.Millisecond, 5*time.Minute, "How long one attempt of a callback may take."),
		whole("callbacks.max_attempts", "15", 2, 100, "Attempts before a callback is given up; 15 take about a day."),
	}...)
	settings = append(settings, []Setting{
		{Key: "metrics.listen", Kind: Text, check: func(text string) bool { return text == "" || isAddress(text) }, Help: "Address of a listener that serves /metrics alone, without a token, for a collector that must not be an operator. Not set: /metrics is on the admin listener only.",
			Rule: "must be HOST:PORT, such as 127.0.0.1:9464, HOST an IP address or localhost"},
		{Key: "metrics.tenants", Kind: Text, Default: TenantsNamed, check: isTenantChoice, Help: "Which tenants have gauges of their own, the others sharing the label other: the first 100 that the file names, the N with the deepest queues, or none at all.",
			Rule: "must be named, none or top:N, N from 1 to 100"},
	}...)
	for _, s := range TenantSettings() {
		s.Key = "tenants.defaults." + s.Key
		s.Help = "Default of tenants: " + strings.ToLower(s.Help[:1]) + s.Help[1:]
		settings = append(settings, s)
	}
	settings = append(settings,
		Setting{Key: "traces.endpoint", Kind: Text, check: isCollector, Help: "OpenTelemetry collector that spans are sent to, by OTLP over HTTP. Not set: the one of OTEL_EXPORTER_OTLP_ENDPOINT, and none without that.",
			Rule: "must be an http:// or https:// URL without user, query and fragment, such as http://127.0.0.1:4318; /v1/traces is added where it has no path"},
		Setting{Key: "traces.sample", Kind: Share, Help: "Share of the traces that are kept, where the client's traceparent does not decide. Not set: what OTEL_TRACES_SAMPLER says, and all without that.",
			Rule: "must be a number from 0 to 1, such as 0.1"})
	return append(settings, choice("log.level", "info", "Least level of what is logged.", "debug", "info", "warn", "error"))
}

// TenantSettings are the scalar settings of tenants.defaults and of each named tenant, which has no
// defaults of its own. Their bounds are those of shaper.Policy, which checks them together.
func TenantSettings() []Setting {
	return []Setting{
		{Key: "rate", Kind: Rate, Default: "10/s", Help: "Departures per period, such as 10/s or 5/24h.",
			Rule: "must be LIMIT/PERIOD with the units ms, s, m, h, d, period from 1ms to 366d, at most 1000000 a second"},
		{Key: "burst", Kind: Whole, Default: "1", Help: "Jobs that may leave at once after an idle stretch.",
			Rule: "must be a whole number of at least 1; burst × period at most 200 years"},
		{Key: "capacity", Kind: Whole, Default: "1000", Help: "Jobs that may wait; more are refused with 429.",
			Rule: "must be a whole number from 0 to 1000000000"},
		{Key: "capacity_bytes", Kind: Whole, Default: "0", Help: "Bytes that the payloads of waiting jobs may have; more are refused with 429. 0 is no bound.",
			Rule: "must be a whole number from 0 to 1125899906842624"},
		{Key: "concurrency", Kind: Whole, Default: "64", Help: "Deliveries at once over all workers; 0 is no cap.",
			Rule: "must be a whole number from 0 to 1000000"},
		{Key: "max_wait", Kind: Duration, Default: "0s", Help: "Longest wait before a job expires instead; 0s is no limit.",
			Rule: "must be a duration in whole milliseconds from 0s to 8784h"},
		{Key: "paused", Kind: Switch, Default: "false", Help: "Admit jobs but let none leave.", Rule: "must be true or false"},
	}
}

// RouteSettings are the scalar settings of each route.
func RouteSettings() []Setting {
	return []Setting{
		{Key: "url", Kind: Text, check: isUpstream, Help: "Where jobs are delivered by POST. Required unless asynq.queue is set. User and password in it become basic authentication.",
			Rule: "must be an absolute http:// or https:// URL without a fragment"},
		duration("timeout", "10s", time.Millisecond, time.Hour, "How long one delivery may take."),
		whole("connections", "256", 1, 100_000, "Connections of this process to the upstream at the most."),
		whole("retry.max_attempts", "10", 1, 1000, "Deliveries before a job is dead. With the default backoff ten of them outlast an outage of eight minutes."),
		duration("retry.min_backoff", "1s", time.Millisecond, day, "Wait after the first failure; doubled after each further one."),
		duration("retry.max_backoff", "1h", time.Millisecond, year, "Longest wait between two deliveries."),
		whole("breaker.failures", "10", 0, 1000, "Deliveries in a row that must find the upstream unavailable (no answer, 502, 504, 503 without Retry-After) for jobs to be held instead of sent; 0: never."),
		duration("breaker.delay", "10s", 100*time.Millisecond, time.Hour, "How long they are held before one of them tries the upstream; doubled up to a minute while that fails."),
		duration("breaker.slow_after", "0s", 0, time.Hour, "How long a delivery may be under way before it counts as one that found the upstream unavailable; at most the timeout. 0: half of the timeout."),
		{Key: "asynq.queue", Kind: Text, check: isQueue, Help: "Queue of an asynq fleet on the same Redis: at its departure a job becomes a task there, in the place of a delivery to url.",
			Rule: "must be 1 to 255 bytes, not blank"},
		toggle("asynq.reports", "Keep the job until the fleet's middleware reports its end; else it has succeeded once it is a task."),
		duration("asynq.report_within", "1h", time.Second, year, "With asynq.reports: how long to wait for a sign of the task before the job is handed off again. At least worker.lease."),
	}
}

// Short writes a duration without its zero parts: 1h, not 1h0m0s.
func Short(d time.Duration) string {
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

// bounded reports whether the setting's own bounds, if any, hold.
func (s Setting) bounded(v int64) bool {
	low, high := s.min, s.max
	if low == 0 && high == 0 {
		low, high = math.MinInt64, math.MaxInt64
	}
	return v >= low && v <= high
}
