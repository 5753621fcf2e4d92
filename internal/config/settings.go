package config

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
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
	Fraction Kind = "number from 0 to 1"
	Size     Kind = "size"
)

// Setting describes one setting for the reader, the flags, the help and the reference page.
type Setting struct {
	Key     string // path in the file, such as "worker.lease"
	Kind    Kind
	Default string // as written in the file; empty: not set
	Rule    string // what the value must be
	Help    string // what it does
	Secret  bool   // its value is never shown, and may have references
	refers  bool   // its value may have references
	// protects: an empty text that somebody wrote is refused. It may be that of a template without
	// its variable, and would leave open what the setting protects.
	protects bool

	flag string
	// min and max bound a whole number or, in nanoseconds, a duration; both 0: checked elsewhere.
	min, max int64                   // also of a size, in bytes
	check    func(value string) bool // of a text
	numbers  bool                    // the text may be a number without quotes
	choices  []string                // of a text, if it is one of them
	words    []string                // of a text, if it is a list of them
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

func size(key, value string, low, high int64, help string) Setting {
	return Setting{Key: key, Kind: Size, Default: value, Help: help, min: low, max: high,
		Rule: fmt.Sprintf("must be bytes from %d to %d, such as 65536, 64KiB or 1MiB", low, high)}
}

func toggle(key, help string) Setting {
	return Setting{Key: key, Kind: Switch, Default: "false", Help: help, Rule: "must be true or false"}
}

func choice(key, value, help string, choices ...string) Setting {
	return Setting{Key: key, Kind: Text, Default: value, Help: help,
		Rule:    "must be one of " + strings.Join(choices, ", "),
		choices: choices,
		check:   func(v string) bool { return slices.Contains(choices, v) }}
}

func address(key, flag, value, help string) Setting {
	return Setting{Key: key, Kind: Text, Default: value, Help: help, flag: flag, check: isAddress,
		Rule: "must be HOST:PORT, such as 127.0.0.1:8080, HOST an IP address or localhost"}
}

// proxySetting returns a setting for outbound.ParseProxy. Its URL may have a password.
func proxySetting(key, help string) Setting {
	return Setting{Key: key, Kind: Text, Default: "none", check: isProxy, Help: help, Secret: true,
		Rule: "must be none, env or the http:// URL of a proxy, such as http://proxy.internal:3128"}
}

const (
	day  = 24 * time.Hour
	year = 366 * day
)

// Settings returns all scalar settings with a fixed key, in the order of the reference page.
func Settings() []Setting {
	settings := []Setting{
		{Key: "redis.url", Kind: Text, check: isRedisURL,
			Help: "Redis that stores the jobs. If not set, a private redis-server is started.",
			Rule: "must be redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://, such as " +
				"redis://127.0.0.1:6379/0", Secret: true},
		{Key: "redis.data_dir", Kind: Text, Default: "./data", check: notEmpty,
			Help: "Directory of the private redis-server.",
			Rule: "must be the path of a directory"},
		toggle("redis.allow_unsafe",
			"Accept a Redis that may lose jobs, because it evicts keys or has no append-only file."),
		whole("redis.durability.replicas", "0", 0, 100,
			"Replicas that must have a change before its client gets 202 or another success: all that a "+
				"failover may promote. 0: a failover may lose the latest changes."),
		toggle("redis.durability.fsync",
			"Those replicas, and the master, must have the change on disk (WAITAOF, Redis 7.2). With "+
				"appendfsync everysec each request takes up to a second."),
		duration("redis.durability.timeout", "1s", 10*time.Millisecond, 10*time.Second,
			"How long to wait for the replicas. After that the client gets 503 outcome-unknown."),
		address("api.listen", "api", "127.0.0.1:8080", "Address of the listener for clients."),
	}
	settings = append(settings, tlsSettings("api.")...)
	settings = append(settings,
		whole("api.max_body", "262144", 1024, 8<<20, "Maximum bytes of one submission."),
		whole("api.max_streams", "1000", 1, 100_000,
			"Maximum concurrent event streams of this process; more get 503."),
		whole("api.max_connections", "10000", 1, 1_000_000,
			"Maximum concurrent connections to this listener. At the maximum, a new connection replaces an "+
				"idle one; if none is idle, the new one is closed."),
		whole("api.tenant_share", "25", 1, 100,
			"Percent of api.max_connections (running requests), of api.max_streams and of the memory for "+
				"large bodies that one tenant may use at once."),
		whole("api.address_share", "50", 1, 100,
			"The same for one address, or /48 of IPv6: connections, running requests, event streams, memory. "+
				"Proxies of auth.guest.trusted_proxies may use all connections. All guests together may use as "+
				"much as one address, and at most half."),
		Setting{Key: "api.status_rate", Kind: Rate,
			Help: "Maximum rate at which one tenant may read jobs and lists and open event streams in this " +
				"process, such as 100/s, with a burst of one second. More get 429. Not set: api.read_rate alone " +
				"bounds them.",
			Rule: "must be LIMIT/PERIOD with the units ms, s, m, h, d, period from 1ms to 366d, at most " +
				"1000000 a second"},
		Setting{Key: "api.read_rate", Kind: Rate, Default: "2000/s",
			Help: "Work that reads, cancellations and replays of one tenant may make Redis do for this process, in reads of one job; " +
				"an address, or /48 of IPv6, has twice as many. A list costs 1, one more for each job on the page and for 20 " +
				"records looked at; a stored answer one more for each 16 KiB; a cancellation, a wait and an event stream 3, a replay 4. More get 429.",
			Rule: "must be LIMIT/PERIOD with the units ms, s, m, h, d, period from 1ms to 366d, at most " +
				"1000000 a second"},
		Setting{Key: "api.hosts", Kind: Text, check: isHosts,
			Help: "Host names, besides those of loopback, that the API accepts while it listens on " +
				"loopback without authentication, also as origins of web pages. For a proxy on this " +
				"machine that forwards its own host name.",
			Rule: "must be host names, optionally with a port, separated by commas, such as " +
				"jobs.example,jobs.example:8443"},
		toggle("api.allow_public", "Allow the API to listen beyond loopback without authentication."),
		address("admin.listen", "admin", "127.0.0.1:8081",
			"Address of the listener for operators: tenants, health, metrics."))
	settings = append(settings, tlsSettings("admin.")...)
	settings = append(settings,
		Setting{Key: "admin.token", Kind: Text, check: isToken, Secret: true,
			Help: "Bearer token of the admin listener. Without it, a listener on loopback needs no token, and for another one " +
				"the process makes a token.",
			Rule: "must be 16 to 255 visible ASCII characters without spaces"},
		Setting{Key: "admin.token_file", Kind: Text, check: unsetOr(notEmpty),
			Help: "File with the token that the process makes at its first start, and prints once on standard error, where " +
				"admin.token is not set. Not set: admin.token in redis.data_dir, and none for a listener on loopback.",
			Rule: "must not be empty"},
		Setting{Key: "admin.allow", Kind: Text, check: isNetworks,
			Help: "Networks of operators. Requests from other addresses get 403, whatever their credential; probes (/livez, " +
				"/readyz) are answered. Not set: all. In the file it may be a list.",
			Rule: "must be networks or addresses separated by commas, such as 10.1.0.0/16,192.0.2.7"},
		Setting{Key: "admin.public_url", Kind: Text, check: unsetOr(isPublicURL),
			Help: "URL of the dashboard in browsers, where a proxy ends TLS. If it is https, its cookies are for https alone.",
			Rule: "must be an http:// or https:// URL of a host alone, such as https://sluice.example"},
		Setting{Key: "admin.oidc.issuer", Kind: Text, check: unsetOr(isIssuer),
			Help: "Issuer of an OpenID Connect provider at which operators sign in to the dashboard, beside the sign-in with a " +
				"token. It needs admin.token, admin.public_url, and a group with a role. See operators.md.",
			Rule: "must be an https:// URL, or an http:// URL of this machine"},
		Setting{Key: "admin.oidc.client_id", Kind: Text, check: unsetOr(isName), Help: "Client id at that provider.",
			Rule: "must be 1 to 255 characters without control characters"},
		Setting{Key: "admin.oidc.client_secret", Kind: Text, Secret: true, check: unsetOr(notEmpty),
			Help: "Secret of the client. Not set: a public client, whose proof is PKCE alone.", Rule: "must not be empty"},
		Setting{Key: "admin.oidc.scopes", Kind: Text, Default: "email,profile", check: isScopes,
			Help: "Scopes beside openid; some providers need one for groups. In the file it may be a list.",
			Rule: "must be scopes of visible ASCII, separated by commas"},
		Setting{Key: "admin.oidc.name_claim", Kind: Text, Default: "email", check: isName,
			Help: "Claim whose value, after oidc:, is the name of the operator. An email that is not verified is refused.",
			Rule: "must be 1 to 255 characters without control characters"},
		Setting{Key: "admin.oidc.groups_claim", Kind: Text, Default: "groups", check: isName,
			Help: "Claim with the groups of the operator.", Rule: "must be 1 to 255 characters without control characters"},
		groupsWith("viewers", "viewer"), groupsWith("operators", "operator"), groupsWith("admins", "admin"),
		whole("admin.max_connections", "1000", 1, 1_000_000,
			"Maximum concurrent connections to this listener, as api.max_connections; "+
				"one address may use api.address_share of them."),
		toggle("admin.submit", "Admit jobs on the admin listener too (POST /v1/tenants/{tenant}/jobs), for "+
			"experiments. It is on in sluice dev."),
		toggle("admin.profiles", "Serve the runtime's profiles of this process on the admin listener at "+
			"/debug/pprof/, for go tool pprof."))
	settings = append(settings, authSettings()...)
	settings = append(settings, []Setting{
		choice("headers", "both", "Rate limit headers of answers: of the IETF draft, the legacy X- "+
			"headers, both or none.",
			"ietf", "legacy", "both", "none"),
		duration("worker.lease", "30s", time.Second, time.Hour,
			"How long a worker may be silent before other workers get its jobs."),
		duration("worker.sweep", "1s", 10*time.Millisecond, 15*time.Minute,
			"Interval of the search for expired leases; at most a quarter of the lease."),
		duration("worker.horizon", "20ms", time.Millisecond, time.Second,
			"How far ahead of its departure a job is leased; at most a quarter of the lease. Workers lease "+
				"earlier if Redis answers slowly."),
		whole("worker.concurrency", "256", 1, 100_000, "Maximum concurrent deliveries of this process."),
		duration("worker.grace", "20s", time.Second, time.Hour,
			"How long running deliveries and answers may take to end when the process stops. Then they are cut off; "+
				"what may be sent again is, later or by another process, and no attempt is spent. Allow 10 seconds more before a kill."),
		duration("retention.succeeded", "1h", time.Second, year,
			"How long succeeded, cancelled and expired jobs can be read."),
		duration("retention.dead", "168h", time.Second, year, "How long dead letters are kept."),
		duration("retention.idempotency", "24h", time.Second, year,
			"How long an idempotency key outlives its job."),
		whole("retention.dead_capacity", "10000", 1, 1_000_000,
			"Maximum dead letters of a flow. At the maximum no job leaves the flow until some are replayed "+
				"or purged."),
		whole("retention.dead_bytes", "67108864", 1, 1<<50,
			"Maximum bytes of the dead letters of a flow. At the maximum no job leaves the flow until some "+
				"are replayed or purged."),
		{Key: "store.environment", Kind: Text, check: func(text string) bool { return text == "" || isRoute(text) },
			Help: "Name of the deployment, such as production. The first process with a name marks the store with it; " +
				"a process with another one, or without, is then refused. See docs/configuration.md.",
			Rule: "must be 1 to 64 of the characters A-Z a-z 0-9 . _ -"},
		whole("store.shards", "0", 0, 1024,
			"Parts of the store, fixed at the first start. 0: as many as the store has, and 64 in a new one. "+
				"See docs/scaling.md."),
		whole("store.flow_share", "50", 1, 100,
			"Percent of the store that one flow may use while other flows store little; "+
				"more is refused with 429. The share shrinks as the store fills. 100 is no bound."),
		whole("store.reserve", "10", 0, 50,
			"Percent of the store's bytes and of store.max_tenants that only tenants with settings of their "+
				"own, or with an API key, may use, so that others never keep them out. 0: none."),
		whole("store.guest_share", "25", 1, 100,
			"Percent of the store's bytes that all guests together may use, so that they never keep others "+
				"out; their jobs beyond it are refused with 503."),
		whole("store.guest_tenants", "50", 1, 100,
			"Percent of store.max_tenants that may be guests."),
		whole("store.max_bytes", "0", 0, 1<<50,
			"Maximum bytes of all waiting, leased and dead jobs; more are refused with 503. 0: bounded by "+
				"the memory of Redis."),
		whole("store.compress_over", "0", 0, 8<<20,
			"Minimum bytes of a payload that is stored compressed; bounds count the compressed bytes. 0: "+
				"no compression. From 1024 bytes JSON shrinks by half. After an upgrade set it only when "+
				"all workers are upgraded."),
		{Key: "codec.key_file", Kind: Text, protects: true,
			Help: "File with the keys that [encrypt what clients wrote](encryption.md) before it is stored. The first encrypts, " +
				"all decrypt. A changed file is in force within five seconds. Not set: nothing is encrypted.",
			Rule: "must be the path of a file with a key on each line, as sluice codec new-key prints it, with mode 0600"},
		{Key: "codec.command", Kind: Text, protects: true,
			Help: "Program that prints such keys, for those of a key management service. It runs without arguments at the " +
				"start and every five minutes. Either this or codec.key_file.",
			Rule: "must be the path of a program that can be run"},
		toggle("codec.read_only",
			"Store new texts in clear, and decrypt those that are stored: to end encryption."),
		whole("store.max_tenants", "1000000", 0, 1_000_000_000,
			"Maximum tenants with jobs or activity in the last ten minutes; jobs of further tenants are "+
				"refused with 503. 0 is no bound."),
		Setting{Key: "egress.allow", Kind: Text, check: isNetworks,
			Help: "Link-local and metadata networks where upstreams may be. All others, such as 169.254.169.254, are refused " +
				"at start where a URL has the address, and otherwise when a name leads there. In the file it may be a list.",
			Rule: "must be networks or addresses separated by commas, such as 169.254.10.0/24"},
		choice("callbacks.mode", "public", "Which callback URLs are accepted: none (off), only those that callbacks.allow or "+
			"endpoints of the tenant list (registered), or also all that lead to public addresses (public).", "off", "registered", "public"),
		Setting{Key: "callbacks.deny", Kind: Text, check: isNetworks,
			Help: "Networks that no callback may lead to, whatever callbacks.allow and endpoints list. In the file it may be a list.",
			Rule: "must be networks or addresses separated by commas, such as 10.0.0.0/8,2001:db8::/32"},
		duration("callbacks.timeout", "10s", 100*time.Millisecond, 5*time.Minute,
			"Timeout of one attempt of a callback."),
		proxySetting("callbacks.proxy", "Proxy for callbacks: none; env, which obeys HTTPS_PROXY, HTTP_PROXY and NO_PROXY; or "+
			"its URL. The address of a target is then checked by resolving its name before the proxy is asked."),
		whole("callbacks.max_attempts", "15", 2, 100, "Maximum attempts of a callback; 15 take about a day."),
	}...)
	settings = append(settings, []Setting{
		{Key: "metrics.listen", Kind: Text, check: func(text string) bool {
			return text == "" ||
				isAddress(text)
		}, Help: "Address of a listener for /metrics alone, without a token, for a collector without " +
			"operator rights. Not set: /metrics is on the admin listener only.",
			Rule: "must be HOST:PORT, such as 127.0.0.1:9464, HOST an IP address or localhost"},
	}...)
	settings = append(settings, tlsSettings("metrics.")...)
	settings = append(settings, []Setting{
		{Key: "metrics.tenants", Kind: Text, Default: TenantsNamed, check: isTenantChoice,
			Help: "Tenants with gauges of their own: named (the first 100 of the file), top:N (the N with " +
				"the deepest queues) or none. The others share the label other.",
			Rule: "must be named, none or top:N, N from 1 to 100"},
	}...)
	for _, s := range TenantSettings() {
		s.Key = "tenants.defaults." + s.Key
		s.Help = "Default of tenants: " + strings.ToLower(s.Help[:1]) + s.Help[1:]
		settings = append(settings, s)
	}
	settings = append(settings,
		Setting{Key: "traces.endpoint", Kind: Text, check: isCollector,
			Help: "OpenTelemetry collector that receives spans by OTLP over HTTP. Not set: " +
				"OTEL_EXPORTER_OTLP_ENDPOINT decides; without it there are no traces.",
			Rule: "must be an http:// or https:// URL without user, query and fragment, such as " +
				"http://127.0.0.1:4318; without a path, /v1/traces is added"},
		Setting{Key: "traces.sample", Kind: Fraction,
			Help: "Share of sampled traces, unless the client's traceparent decides. Not set: " +
				"OTEL_TRACES_SAMPLER decides; without it all traces are sampled.",
			Rule: "must be a number from 0 to 1, such as 0.1"})
	settings = append(settings,
		duration("audit.retention", "8760h", time.Hour, 10*year,
			"How long an entry of the [audit](audit.md) is kept; 8760h is a year."),
		size("audit.max_bytes", "64MiB", 1<<20, 16<<30,
			"Maximum bytes of the audit in Redis. Beyond them the oldest entries are removed."),
		Setting{Key: "audit.log", Kind: Text, Default: "off", check: notEmpty,
			Help: "Where this process also writes each entry of the audit as one line of JSON: off, stdout or a file, " +
				"which is opened again after it was renamed.",
			Rule: "must be off, stdout or the path of a file"})
	return append(settings, choice("log.level", "info", "Lowest level that is logged.", "debug", "info",
		"warn", "error"))
}

// TierSettings returns the scalar settings that only a tier has.
func TierSettings() []Setting {
	return []Setting{
		whole("store_share", "100", 1, 100, "Percent of the store's bytes that the tenants which claim the tier may use together."),
		whole("tenant_share", "100", 1, 100, "Percent of store.max_tenants that may be tenants which claim the tier."),
		whole("pool_weight", "0", 0, shaper.MaxWeight, "Weight in each pool of all tenants together that claim the tier: they share "+
			"what one flow of that weight gets. 0: each counts for itself. The default of the tier of guests is 1."),
		duration("max_delay", "366d", 0, shaper.MaxPeriod, "Maximum delay of a job of a tenant of the tier; more is refused with 422."),
	}
}

// TenantSettings returns the scalar settings of tenants.defaults and of each tenant and tier, which
// have no defaults of their own. shaper.Policy checks their bounds together.
func TenantSettings() []Setting {
	return tableOf(shaper.SettingsOfTenants(), func(s shaper.Setting) (value, help string) { return s.Default, s.Help })
}

// PoolSettings returns the scalar settings of each pool.
func PoolSettings() []Setting {
	settings := tableOf(shaper.SettingsOfPools(), func(s shaper.Setting) (value, help string) { return s.PoolDefault, s.PoolHelp })
	return append(settings,
		choice("hold", "flow", "What an answer 429 or 503 with Retry-After holds. flow: its flow, and the pool "+
			"only once two tenants get one. pool: the whole pool at once.", "flow", "pool"),
		duration("max_hold", "60s", time.Second, time.Hour,
			"How long such answers hold the pool at most."))
}

// tableOf returns the scalars among settings of a policy.
func tableOf(of []shaper.Setting, texts func(shaper.Setting) (value, help string)) (settings []Setting) {
	kinds := map[shaper.Kind]Kind{shaper.KindRate: Rate, shaper.KindNumber: Whole, shaper.KindDuration: Duration,
		shaper.KindSwitch: Switch}
	for _, s := range of {
		if kind, scalar := kinds[s.Kind]; scalar {
			value, help := texts(s)
			setting := Setting{Key: s.Key(), Kind: kind, Default: value, Rule: s.FileRule(), Help: help}
			if kind == Whole && s.Low > 0 && s.High > 0 {
				setting.min, setting.max = s.Low, s.High // a policy takes 0 for not set
			}
			settings = append(settings, setting)
		}
	}
	return settings
}

// RouteSettings returns the scalar settings of each route.
func RouteSettings() []Setting {
	return []Setting{
		{Key: "url", Kind: Text, check: isUpstream, refers: true,
			Help: "URL that receives jobs. Required unless forward or asynq.queue is set. A user and password " +
				"in it become basic authentication.",
			Rule: "must be an absolute http:// or https:// URL without a fragment, percent-encoded and without the segments . and .."},
		{Key: "forward", Kind: Text, check: isForwardBase, refers: true,
			Help: "Instead of url: base URL of the upstream to which [requests are forwarded](forward.md) as they " +
				"are. A user and password in it become basic authentication where a request has none.",
			Rule: "must be an absolute http:// or https:// URL without query and fragment, percent-encoded and without the segments . and .."},
		duration("wait", "50s", 0, 300*time.Second,
			"With forward: how long a client waits for its answer, unless it prefers another wait. A proxy in front "+
				"must wait for longer; many give up after 60s."),
		{Key: "on_wait_end", Kind: Whole, Default: "504", min: 202, max: 504, Rule: onWaitEndRule,
			Help: "With forward: the status at the end of that wait, with Location for the answer. " +
				"A client that prefers how long it waits always gets 202."},
		choice("forwarded", "replace", "With forward: what happens to headers that say "+
			"[where a request came from](forward.md#where-a-request-came-from), such as X-Forwarded-For. replace: those of "+
			"the client are replaced by its address. append: the address of the peer is appended. pass: they stay.",
			"replace", "append", "pass"),
		size("max_response", "1MiB", 1, 8<<20, "With forward: bytes of an answer's body that are stored."),
		choice("max_response_action", "cut", "With forward: what happens to a larger answer. It is cut, and says "+
			"so, or its request fails.", "cut", "fail"),
		duration("retention", "10m", time.Second, year, "With forward: how long answers are stored."),
		toggle("retry.unsafe", "With forward: send a request again, too, that is not idempotent (POST, PATCH) and "+
			"has no Idempotency-Key."),
		duration("timeout", "10s", time.Millisecond, time.Hour, "Timeout of one delivery."),
		whole("connections", "256", 1, 100_000, "Maximum connections of this process to the upstream."),
		choice("stream", "auto", "With forward: which answers [reach their clients while they come](streaming.md). auto: events, and "+
			"those that are not complete 50 ms after their headers, or have no length or more than max_response. always: all. "+
			"never: none; they are read whole first.", "auto", "always", "never"),
		duration("max_duration", "15m", time.Second, day,
			"With forward: how long an answer may take that reaches its client while it comes. timeout ends with its headers."),
		duration("idle_timeout", "30s", time.Millisecond, time.Hour,
			"How long nothing may come on a connection to the upstream: one that is not used is closed then, and an answer that "+
				"reaches its client while it comes breaks off. A shorter time in the upstream's header Keep-Alive counts instead "+
				"for unused ones."),
		duration("connection_max_age", "5m", time.Second, year,
			"After how long a connection gets no further request, so that a new address of the upstream's name is used."),
		toggle("paths", "With url: a job may name a [path below it](http.md#raw-bodies-and-paths)."),
		{Key: "cost_from", Kind: Text, check: isCostSource,
			Help: "Where an answer has the [actual cost](tenants.md#costs-known-only-afterwards) of the delivery: " +
				"`none`; `header`, its header Sluice-Cost; or a JSON pointer into its first MiB. Not set: `header` for " +
				"a url, but `none` while the route is in a pool, and `none` with forward.",
			Rule: "must be none, header or a JSON pointer (RFC 6901) such as /usage/total_tokens"},
		whole("min_cost", "1", 0, 1_000_000,
			"Lower actual costs in answers count as this. 0: such a delivery costs nothing, and others may follow at "+
				"up to sixteen times the rate."),
		{Key: "cost_missing", Kind: Text, Default: "estimate", check: isMissingCost, numbers: true,
			Help: "What an answer below 300 costs that has nothing readable at `cost_from`, for example because it is " +
				"compressed or too long. estimate: what it was admitted with.",
			Rule: "must be estimate or a whole number from 0 to 1000000"},
		whole("cost", "1", 1, 1_000_000,
			"With forward: what a request costs until its answer says more, at least. A client can name a higher cost in "+
				"Sluice-Cost-Estimate."),
		choice("method", "POST", "With url: the method of deliveries. GET and DELETE have no body.",
			"POST", "PUT", "PATCH", "DELETE", "GET"),
		{Key: "oauth2.token_url", Kind: Text, check: isTokenURL, refers: true,
			Help: "Token endpoint of an authorization server. Each request gets a token of it (client credentials, " +
				"RFC 6749); see [how to call](upstreams.md).",
			Rule: "must be an absolute http:// or https:// URL without a fragment"},
		{Key: "oauth2.client_id", Kind: Text, check: isName, numbers: true, refers: true, Help: "Client id for that server. Required with oauth2.",
			Rule: "must be 1 to 255 bytes without control characters"},
		{Key: "oauth2.client_secret", Kind: Text, Secret: true, check: notEmpty,
			Help: "Secret of the client; a [reference](configuration.md#references) keeps it out of the file. Required with oauth2.",
			Rule: "must not be empty"},
		{Key: "oauth2.audience", Kind: Text, check: unsetOr(isName), refers: true, Help: "Parameter audience of the request for a token.",
			Rule: "must be at most 255 bytes without control characters"},
		{Key: "tls.ca", Kind: Text, check: notEmpty, Rule: "must be the path of a file with certificates in PEM",
			Help: "File with the certificates of authorities that are trusted beside those of the system."},
		{Key: "tls.cert", Kind: Text, check: notEmpty, Rule: "must be the path of a file with a certificate in PEM",
			Help: "File with the client certificate, and with those between it and its authority."},
		{Key: "tls.key", Kind: Text, check: notEmpty, Rule: "must be the path of a file with a private key in PEM",
			Help: "File with the key of the client certificate."},
		{Key: "tls.server_name", Kind: Text, check: unsetOr(isServerName), Rule: "must be the name of a host",
			Help: "Name that the upstream's certificate must have. Not set: that of the URL."},
		proxySetting("proxy", "Proxy for requests to the upstream: none; env, which obeys HTTPS_PROXY, HTTP_PROXY and NO_PROXY; "+
			"or its URL."),
		{Key: "http2", Kind: Switch, Default: "true", Help: "Use HTTP/2 where the upstream has it, over TLS. All deliveries of a " +
			"process then share a few connections.", Rule: "must be true or false"},
		{Key: "rate", Kind: Rate, Help: "Short form of a [pool](pools.md) of this route alone, with the name of the route: " +
			"departures of all its flows per period. Not set: only a pool that lists the route bounds their sum.",
			Rule: "must be LIMIT/PERIOD with the units ms, s, m, h, d, period from 1ms to 366d, at most " +
				"1000000 a second"},
		whole("retry.max_attempts", "10", 1, 1000,
			"Deliveries before a job is dead. With the default backoff, ten deliveries outlast an outage "+
				"of eight minutes."),
		duration("retry.min_backoff", "1s", time.Millisecond, day,
			"Wait after the first failure; it doubles with each further failure."),
		duration("retry.max_backoff", "1h", time.Millisecond, year, "Longest wait between two deliveries."),
		whole("breaker.failures", "10", 0, 1000,
			"Consecutive deliveries without an available upstream (no answer, 502, 504, 503 without "+
				"Retry-After) that open the circuit breaker; 0: never. An open breaker holds the jobs of "+
				"the route, or of a flow that fails beside others."),
		whole("breaker.share", "50", 1, 100,
			"Percentage of such deliveries, without answers 503, among at least 20 in 10 s that opens "+
				"the breaker, too."),
		duration("breaker.delay", "10s", 100*time.Millisecond, time.Hour,
			"How long an open breaker holds jobs before one of them probes the upstream; "+
				"it doubles up to a minute while probes fail."),
		duration("breaker.slow_after", "0s", 0, time.Hour,
			"Duration after which a running delivery counts among the consecutive ones of "+
				"breaker.failures, until it ends, while the last one that ended has failed; at most the "+
				"timeout. 0: half of the timeout."),
		{Key: "asynq.queue", Kind: Text, check: isQueue,
			Help: "Queue of an asynq fleet on the same Redis. At its departure a job becomes a task there, " +
				"instead of a delivery to url.",
			Rule: "must be 1 to 255 bytes, not blank"},
		toggle("asynq.reports", "Keep the job until the fleet's middleware reports its end. Otherwise the "+
			"job has succeeded when it becomes a task."),
		duration("asynq.report_within", "1h", time.Second, year,
			"With asynq.reports: how long to wait for a report of the task before the job is handed off "+
				"again. At least worker.lease."),
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
