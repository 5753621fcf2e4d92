package config_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// route is the least that a file must hold.
const route = "routes: { default: { url: \"http://127.0.0.1:9000/\" } }\n"

// breaker is that of a route which says nothing of it.
var breaker = config.Breaker{Failures: 10, Share: 50, Delay: 10 * time.Second}

// audit is that of a file which says nothing of it.
var audit = config.Audit{Retention: 365 * 24 * time.Hour, MaxBytes: 64 << 20, Log: "off"}

// prefixes compares networks.
var prefixes = cmpopts.EquateComparable(netip.Prefix{})

func write(t *testing.T, yaml string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func problems(t *testing.T, err error) shaper.Problems {
	t.Helper()
	var ps shaper.Problems
	if err != nil && !errors.As(err, &ps) {
		t.Fatalf("error of type %T: %v", err, err)
	}
	return ps
}

func mustLoad(t *testing.T, from config.Sources) config.Config {
	t.Helper()
	c, err := config.Load(from)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A file with one route and nothing else has these settings.
func TestDefaults(t *testing.T) {
	got := mustLoad(t, config.Sources{File: write(t, route)})
	want := config.Config{
		Redis: config.Redis{DataDir: "./data", Durability: config.Durability{Timeout: time.Second}},
		API: config.API{
			Listen: "127.0.0.1:8080", MaxBody: 262144, MaxStreams: 1000, MaxConnections: 10000,
			TenantShare: 25, AddressShare: 50, ReadRate: shaper.Rate{Limit: 2000, Period: time.Second},
		},
		Admin: config.Admin{OIDC: config.OIDC{Scopes: "email,profile", NameClaim: "email", GroupsClaim: "groups"}, Listen: "127.0.0.1:8081", MaxConnections: 1000},
		Auth: config.Auth{Mode: "none", Cert: config.Cert{Tenant: "san-uri"}, JWT: config.JWT{Leeway: 30 * time.Second, TenantClaim: "sub", Prefix: "member:"},
			Guest: config.Guest{MaxDelay: 10 * time.Minute}},
		Headers: "both",
		Worker: config.Worker{
			Lease: 30 * time.Second, Sweep: time.Second, Horizon: 20 * time.Millisecond, Concurrency: 256, Grace: 20 * time.Second,
		},
		Retention: config.Retention{
			Succeeded: time.Hour, Dead: 168 * time.Hour, Idempotency: 24 * time.Hour, DeadCapacity: 10000,
			DeadBytes: 64 << 20,
		},
		Store:     config.Store{MaxTenants: 1_000_000, FlowShare: 50, Reserve: 10, GuestShare: 25, GuestTenants: 50},
		Callbacks: config.Callbacks{Mode: "public", Timeout: 10 * time.Second, MaxAttempts: 15, Proxy: "none"},
		Routes: map[string]config.Route{"default": {URL: "http://127.0.0.1:9000/", Shown: "http://127.0.0.1:9000/", Timeout: 10 * time.Second,
			Connections: 256, IdleTimeout: 30 * time.Second, ConnectionMaxAge: 5 * time.Minute, CostMissing: "estimate", MinCost: 1, Calls: calls,
			Retry:   config.Retry{MaxAttempts: 10, MinBackoff: time.Second, MaxBackoff: time.Hour},
			Breaker: breaker}},
		Tenants: config.Tenants{
			Defaults: shaper.DefaultPolicy(), Tiers: map[string]shaper.Overrides{},
			Named: map[string]shaper.Overrides{}, Pools: map[string]shaper.PoolSettings{},
		},
		Guards:  map[string]config.Guard{},
		Metrics: config.Metrics{Tenants: "named"},
		Audit:   audit,
		Log:     config.Log{Level: "info"},
	}
	want.Tenants.Defaults.Weight = 1
	if diff := cmp.Diff(want, got, prefixes); diff != "" {
		t.Error(diff)
	}
}

// A rate without a default may be unset. A rate with a default must be set.
func TestEmptyRate(t *testing.T) {
	got := mustLoad(t, config.Sources{
		File: write(t, route+"api: { status_rate: 5/m }\n"), Flags: map[string]string{"api.status_rate": ""},
	})
	queuetest.Compare(t, "api.status_rate", got.API.StatusRate, shaper.Rate{})
	for _, yaml := range []string{
		"api: { status_rate: 5 }\n", "api: { status_rate: 0/s }\n", "tenants: { defaults: { rate: \"\" } }\n",
		"api: { max_connections: 0 }\n",
	} {
		_, err := config.Load(config.Sources{File: write(t, route+yaml)})
		if len(problems(t, err)) != 1 {
			t.Errorf("%s: %v", yaml, err)
		}
	}
}

// A share may be a whole number, and an empty flag unsets it.
func TestShare(t *testing.T) {
	for _, c := range []struct {
		yaml, variable, flag string
		want                 *float64
	}{
		{"", "", "absent", nil},
		{"traces: { sample: 1 }\n", "", "absent", new(1.0)},
		{"traces: { sample: 0 }\n", "", "absent", new(0.0)},
		{"traces: { sample: 1 }\n", "SLUICE_TRACES_SAMPLE=0.125", "absent", new(0.125)},
		{"traces: { sample: 1 }\n", "SLUICE_TRACES_SAMPLE=0.125", "1e-3", new(0.001)},
		{"traces: { sample: 1 }\n", "", "", nil},
	} {
		from := config.Sources{
			File: write(t, route+c.yaml), Environ: []string{c.variable},
			Flags: map[string]string{"traces.sample": c.flag},
		}
		if c.flag == "absent" {
			from.Flags = nil
		}
		if diff := cmp.Diff(c.want, mustLoad(t, from).Traces.Sample); diff != "" {
			t.Errorf("%+v: %s", c, diff)
		}
	}
	for _, text := range []string{"NaN", "half", "2"} {
		_, err := config.Load(config.Sources{
			File: write(t, route), Environ: []string{"SLUICE_TRACES_SAMPLE=" + text},
		})
		if len(problems(t, err)) != 1 {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Every section of the file reaches the configuration.
func TestEverySection(t *testing.T) {
	got := mustLoad(t, config.Sources{File: write(t, `
redis:   { url: "redis://:pw@127.0.0.1:6379/3", data_dir: /var/lib/sluice, allow_unsafe: true, durability: { replicas: 2, fsync: true, timeout: 2s } }
api:     { listen: "0.0.0.0:80", tls: off, max_body: 4096, allow_public: true, max_streams: 9, max_connections: 10, tenant_share: 20, address_share: 30, status_rate: 100/s, read_rate: 500/s }
admin:   { listen: ":8081", tls: off, token: "0123456789abcdef", allow: [10.0.0.0/8, 192.0.2.7], public_url: "https://sluice.example", profiles: true, submit: true, max_connections: 11,
  oidc: { issuer: "https://id.example/", client_id: sluice, scopes: [groups], viewers: ["*"], admins: [root, leads] } }
auth:
  mode: none
  jwt: { issuer: "https://issuer.example/", audience: sluice, leeway: 1m, tenant_claim: org, tier_claim: plan, jwks: "https://issuer.example/jwks.json" }
  guest: { tier: free }
headers: ietf
worker:  { lease: 4s, sweep: 1s, horizon: 5ms, concurrency: 8, grace: 5m }
retention: { succeeded: 2h, dead: 3h, idempotency: 4h, dead_capacity: 5, dead_bytes: 6 }
store:   { max_bytes: 1000000000, max_tenants: 5, flow_share: 20, guest_share: 10 }
callbacks:
  allow: ["https://partner.example/hooks/", "http://10.0.0.7:8080"]
  secrets: ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="]
  timeout: 3s
  max_attempts: 4
routes:
  default: { url: "http://127.0.0.1:9000/orders?x=1", timeout: 2s, connections: 7, cost_from: /usage/total_tokens, min_cost: 0 }
  mail:
    url: https://mail.example/
    secrets: ["whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="]
    retry: { max_attempts: 2, min_backoff: 100ms, max_backoff: 200ms }
    breaker: { failures: 0, delay: 3s }
tiers:
  pro: { rate: 50/s, routes: { mail: { burst: 9 } } }
  free: {}
tenants:
  defaults:
    { rate: 7/3s, burst: 2, capacity: 10, concurrency: 0, max_wait: 1m, rates: [ { rate: 1000/24h, burst: 100 } ], routes: { mail: { rate: 1/s, rates: [] } } }
  acme: { rate: 200/s, capacity: 5000, rates: [], types: [] }
  shop.example: { paused: true, capacity_bytes: 1000, max_wait: 250ms, burst: 5, concurrency: 3, rates: [ { rate: 5/m, by: jobs }, { rate: 9/m, by: cost } ] }
  12: { tier: pro, routes: { mail: { rate: 5/m, paused: true, max_wait: 2s } } }
  nothing:
guards:
  readers: { rate: 50/s, by: [tenant] }
metrics: { listen: "127.0.0.1:9464", tenants: top:20 }
traces: { endpoint: "https://collector.example:4318/otlp", sample: 0.25 }
log: { level: warn }
`)})
	n := func(v int64) *int64 { return &v }
	on := true
	want := config.Config{
		Redis: config.Redis{URL: "redis://:pw@127.0.0.1:6379/3", DataDir: "/var/lib/sluice", AllowUnsafe: true,
			Durability: config.Durability{Replicas: 2, Fsync: true, Timeout: 2 * time.Second}},
		API: config.API{
			Listen: "0.0.0.0:80", TLS: config.ListenerTLS{Off: true}, MaxBody: 4096, AllowPublic: true, MaxStreams: 9, MaxConnections: 10,
			TenantShare: 20, AddressShare: 30, StatusRate: shaper.Rate{Limit: 100, Period: time.Second},
			ReadRate: shaper.Rate{Limit: 500, Period: time.Second},
		},
		Admin: config.Admin{
			Listen: ":8081", TLS: config.ListenerTLS{Off: true}, Token: "0123456789abcdef", Allow: "10.0.0.0/8,192.0.2.7",
			PublicURL: "https://sluice.example",
			OIDC: config.OIDC{
				Issuer: "https://id.example/", ClientID: "sluice", Scopes: "groups", NameClaim: "email", GroupsClaim: "groups",
				Viewers: "*", Admins: "root,leads",
			},
			Profiles: true, Submit: true,
			MaxConnections: 11,
		},
		Auth: config.Auth{
			Mode: "none", Cert: config.Cert{Tenant: "san-uri"},
			JWT: config.JWT{Issuer: "https://issuer.example/", Audience: "sluice", Leeway: time.Minute,
				TenantClaim: "org", Prefix: "member:", TierClaim: "plan",
				JWKS: "https://issuer.example/jwks.json"},
			Guest: config.Guest{Tier: "free", MaxDelay: 10 * time.Minute},
		},
		Headers: "ietf",
		Worker: config.Worker{
			Lease: 4 * time.Second, Sweep: time.Second, Horizon: 5 * time.Millisecond, Concurrency: 8, Grace: 5 * time.Minute,
		},
		Retention: config.Retention{
			Succeeded: 2 * time.Hour, Dead: 3 * time.Hour, Idempotency: 4 * time.Hour, DeadCapacity: 5,
			DeadBytes: 6,
		},
		Store: config.Store{MaxBytes: 1_000_000_000, MaxTenants: 5, FlowShare: 20, Reserve: 10, GuestShare: 10, GuestTenants: 50},
		Callbacks: config.Callbacks{
			Mode:    "public",
			Allow:   []string{"https://partner.example/hooks/", "http://10.0.0.7:8080"},
			Timeout: 3 * time.Second, MaxAttempts: 4, Proxy: "none",
			Secrets: []string{"whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="},
		},
		Routes: map[string]config.Route{
			"default": {URL: "http://127.0.0.1:9000/orders?x=1", Shown: "http://127.0.0.1:9000/orders", Timeout: 2 * time.Second, Connections: 7, IdleTimeout: 30 * time.Second, ConnectionMaxAge: 5 * time.Minute, CostFrom: "/usage/total_tokens", CostMissing: "estimate", MinCost: 0, Calls: calls,
				Retry: config.Retry{MaxAttempts: 10, MinBackoff: time.Second, MaxBackoff: time.Hour}, Breaker: breaker},
			"mail": {URL: "https://mail.example/", Shown: "https://mail.example/", Timeout: 10 * time.Second, Connections: 256, IdleTimeout: 30 * time.Second, ConnectionMaxAge: 5 * time.Minute, CostMissing: "estimate", MinCost: 1, Calls: calls,
				Secrets: []string{"whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="},
				Retry: config.Retry{MaxAttempts: 2, MinBackoff: 100 * time.Millisecond,
					MaxBackoff: 200 * time.Millisecond}, Breaker: config.Breaker{Share: 50, Delay: 3 * time.Second}},
		},
		Tenants: config.Tenants{
			Defaults: shaper.Policy{Rate: shaper.Rate{Limit: 7, Period: 3 * time.Second}, Burst: 2,
				Capacity: 10, MaxWait: time.Minute, Weight: 1,
				Rates: []shaper.Pace{{Rate: shaper.Rate{Limit: 1000, Period: 24 * time.Hour}, Burst: 100}}},
			Routes: map[string]shaper.Overrides{"mail": {
				Rate: &shaper.Rate{Limit: 1, Period: time.Second}, Rates: &[]shaper.PaceJSON{},
			}},
			Tiers: map[string]shaper.Overrides{
				"pro": {
					Rate:   &shaper.Rate{Limit: 50, Period: time.Second},
					Routes: map[string]shaper.Overrides{"mail": {Burst: n(9)}},
				},
				"free": {},
			},
			Pools: map[string]shaper.PoolSettings{}, Named: map[string]shaper.Overrides{
				"acme": {
					Rate: &shaper.Rate{Limit: 200, Period: time.Second}, Capacity: n(5000),
					Rates: &[]shaper.PaceJSON{}, Types: &[]string{},
				},
				"shop.example": {Paused: &on, CapacityBytes: n(1000), MaxWaitMS: n(250), Burst: n(5), Concurrency: n(3),
					Rates: &[]shaper.PaceJSON{{Limit: 5, PeriodMS: 60000, Burst: 1, By: shaper.ByJobs}, {Limit: 9, PeriodMS: 60000, Burst: 1}}},
				"12": {Tier: new("pro"), Routes: map[string]shaper.Overrides{
					"mail": {Rate: &shaper.Rate{Limit: 5, Period: time.Minute}, Paused: &on, MaxWaitMS: n(2000)},
				}},
				"nothing": {},
			},
		},
		Guards: map[string]config.Guard{"readers": {
			Policy: limiter.Policy{
				Algorithm: limiter.TokenBucket, Rate: shaper.Rate{Limit: 50, Period: time.Second},
			},
			By: []guard.By{guard.ByTenant},
		}},
		Metrics: config.Metrics{Listen: "127.0.0.1:9464", Tenants: "top:20"},
		Traces:  config.Traces{Endpoint: "https://collector.example:4318/otlp", Sample: new(0.25)},
		Audit:   audit,
		Log:     config.Log{Level: "warn"},
	}
	got.Notes = nil // the settings of the route outrank some of these
	if diff := cmp.Diff(want, got, prefixes); diff != "" {
		t.Error(diff)
	}
}

// TestProblems has one case for every kind of mistake; the wanted line is the whole of what is
// reported.
func TestProblems(t *testing.T) {
	const token = "admin: { token: \"0123456789abcdef\" }\n"
	for _, c := range []struct{ name, yaml, want string }{
		{"redis url", "redis: { url: nonsense }",
			`redis.url: "nonsense": must be redis://, rediss://, unix://,` +
				` redis+cluster:// or redis+sentinel://, such as redis://127.0.0.1:6379/0`},
		{"redis url that the client would not take",
			"redis: { url: \"redis://127.0.0.1:1?addr=127.0.0.1:2\" }",
			`redis.url: (hidden): must be redis://`},
		{"redis url without the name of the master", "redis: { url: \"redis+sentinel://:hunter2@x\" }",
			`such as redis://127.0.0.1:6379/0; a Sentinel URL needs the name of the master: ?master_name=NAME`},
		{"redis url with a password", "redis: { url: \"http://:hunter2@x\" }",
			`redis.url: (hidden): must be redis://`},
		{"data dir", "redis: { data_dir: \"\" }", `redis.data_dir: "": must be the path of a directory`},
		{"collector", "traces: { endpoint: \"127.0.0.1:4318\" }",
			`traces.endpoint: "127.0.0.1:4318": must be an http:// or https:// URL without user,` +
				` query and fragment`},
		{"collector with a user", "traces: { endpoint: \"http://me:hunter2@127.0.0.1:4318\" }",
			`traces.endpoint: (hidden): must be an http:// or https:// URL`},
		{"collector with a query", "traces: { endpoint: \"http://127.0.0.1:4318/?a=b\" }",
			`traces.endpoint: "http://127.0.0.1:4318/?a=b": must be an http:// or https:// URL`},
		{"share of everything and more", "traces: { sample: 1.01 }",
			`traces.sample: 1.01: must be a number from 0 to 1`},
		{"share below nothing", "traces: { sample: -0.5 }", `traces.sample: -0.5: must be a number from 0 to 1`},
		{"share that is a text", "traces: { sample: \"0.5\" }",
			`traces.sample: "0.5": must be a number from 0 to 1`},
		{"switch", "redis: { allow_unsafe: maybe }", `redis.allow_unsafe: "maybe": must be true or false`},
		{"fsync of no replica", "redis: { durability: { fsync: true } }",
			`redis.durability.fsync: true: must be false unless redis.durability.replicas is at least 1`},
		{"replicas of a private redis-server", "redis: { durability: { replicas: 1 } }",
			`redis.durability.replicas: 1: must be 0 unless redis.url names a Redis with replicas`},
		{"address without port", "api: { listen: localhost }", `api.listen: "localhost": must be HOST:PORT`},
		{"address with a bad port", "api: { listen: \"127.0.0.1:70000\" }",
			`api.listen: "127.0.0.1:70000": must be HOST:PORT`},
		{"address with a name", "api: { listen: \"example.org:80\" }",
			`api.listen: "example.org:80": must be HOST:PORT`},
		{"public api", "api: { listen: \"0.0.0.0:8080\", tls: off }",
			`api.listen: "0.0.0.0:8080": must be a loopback address without authentication`},
		{"public api, every interface", "api: { listen: \":8080\", tls: off }",
			`api.listen: ":8080": must be a loopback address`},
		{"one address twice", "api: { listen: \"127.0.0.1:8081\" }",
			`admin.listen: "127.0.0.1:8081": must differ from api.listen`},
		{"short token", "admin: { token: geheim }",
			`admin.token: (hidden): must be 16 to 255 visible ASCII characters`},
		{"token of another type", "admin: { token: 12345678901234567 }",
			`admin.token: (hidden): must be 16 to 255`},
		{"body too small", "api: { max_body: 10 }",
			`api.max_body: 10: must be a whole number from 1024 to 8388608`},
		{"fraction", "worker: { concurrency: 1.5 }",
			`worker.concurrency: 1.5: must be a whole number from 1 to 100000`},
		{"float that looks whole", "worker: { concurrency: 2.0 }",
			`worker.concurrency: 2.0: must be a whole number`},
		{"text for a number", "worker: { concurrency: \"5\" }", `worker.concurrency: "5": must be a whole number`},
		{"too large for int64", "worker: { concurrency: 99999999999999999999 }",
			`worker.concurrency: 1e+20: must be a whole number`},
		{"list for a number", "worker: { concurrency: [1] }", `worker.concurrency: a list: must be a whole number`},
		{"null for a number", "worker: { concurrency: null }",
			`worker.concurrency: nothing: must be a whole number`},
		{"duration without unit", "worker: { lease: 30 }", `worker.lease: 30: must be a duration from 1s to 1h`},
		{"lease too short", "worker: { lease: 999ms, sweep: 100ms }",
			`worker.lease: "999ms": must be a duration from 1s to 1h`},
		{"sweep too slow", "worker: { lease: 4s, sweep: 1001ms }",
			`worker.sweep: 1.001s: must be at most a quarter of worker.lease, here 1s`},
		{"horizon of a short lease", "worker: { lease: 1s, sweep: 250ms, horizon: 251ms }",
			`worker.horizon: 251ms: must be at most a quarter of worker.lease, here 250ms`},
		{"horizon", "worker: { horizon: 2s }", `worker.horizon: "2s": must be a duration from 1ms to 1s`},
		{"retention", "retention: { dead: 0s }", `retention.dead: "0s": must be a duration from 1s to 8784h`},
		{"headers", "headers: some", `headers: "some": must be one of ietf, legacy, both, none`},
		{"auth", "auth: { mode: password }",
			`auth.mode: "password": must be none, or some of keys, jwt, cert and guest, each once`},
		{"tenants of metrics", "metrics: { tenants: top:0 }",
			`metrics.tenants: "top:0": must be named, none or top:N, N from 1 to 100`},
		{"tenants of metrics with a sign", "metrics: { tenants: top:+5 }",
			`metrics.tenants: "top:+5": must be named, none or top:N, N from 1 to 100`},
		{"listener of metrics", "metrics: { listen: here }",
			`metrics.listen: "here": must be HOST:PORT, such as 127.0.0.1:9464,` +
				` HOST an IP address or localhost`},
		{"two listeners at one address", "metrics: { listen: \"127.0.0.1:8081\" }",
			`metrics.listen: "127.0.0.1:8081": must differ from api.listen and admin.listen`},
		{"log level", "log: { level: loud }", `log.level: "loud": must be one of debug, info, warn, error`},
		{"unknown section", "gates: { pro: { rate: 50/s } }",
			`gates: unknown key: must be a setting of this section`},
		{"unknown key", "worker: { leese: 3s }",
			`worker.leese: unknown key: must be a setting of this section; is worker.lease meant?`},
		{"unknown key of the wrong case", "worker: { Lease: 3s }",
			`worker.Lease: unknown key: must be a setting of this section; is worker.lease meant?`},
		{"unknown key of the defaults", "tenants: { defaults: { rat: 3/s } }",
			`tenants.defaults.rat: unknown key: must be a setting of this section; is ` +
				`tenants.defaults.rate meant?`},
		{"tier of the defaults", "tenants: { defaults: { tier: gold } }",
			`tenants.defaults.tier: unknown key: must be a setting of this section; it is a setting of tenants`},
		{"reserve of a pool", "pools: { erp: { rate: 9/s, routes: [default], reserve: 1/s } }",
			`pools.erp.reserve: unknown key: must be a setting of this section; it is a setting of tenants and tiers`},
		{"lease of the intake", "api: { lease: 3s }",
			`api.lease: unknown key: must be a setting of this section; is worker.lease meant?`},
		{"section that is a text", "redis: \"redis://:hunter2@x\"", `redis: a text: must be a section`},
		{"defaults that are a list", "tenants: { defaults: [] }", `tenants.defaults: a list: must be a section`},
		{"not YAML", "a: b: c", `.yaml: must be YAML: mapping values are not allowed in this context`},
		{"a key twice", "headers: both\nheaders: none", `.yaml: must be YAML: line 2: the key "headers" is there already, at line 1`},
		{"two documents", "headers: both\n---\nheaders: none",
			`.yaml: has more than one YAML document: must be one document`},
		{"rate", "tenants: { defaults: { rate: fast } }",
			`tenants.defaults.rate: "fast": not a rate: want LIMIT/PERIOD, such as 10/s or 5/24h`},
		{"rate beyond all bounds", "tenants: { defaults: { rate: 2000/ms } }",
			`tenants.defaults.rate: "2000/ms": not a rate: at most 1000000 departures a second`},
		{"rate as a number", "tenants: { a: { rate: 10 } }", `tenants.a.rate: 10: must be LIMIT/PERIOD`},
		{"capacity", "tenants: { defaults: { capacity: -4 } }",
			`tenants.defaults.capacity: -4: must be a whole number from 0 to 1000000000`},
		{"fractional capacity", "tenants: { a: { capacity: 1.5 } }",
			`tenants.a.capacity: 1.5: must be a whole number from 0 to 1000000000`},
		{"burst", "tenants: { a: { burst: 0 } }", `tenants.a.burst: 0: must be a whole number of at least 1`},
		{"burst of the defaults with the rate of a tenant",
			"tenants: { defaults: { burst: 1000 }, a: { rate: 1/366d } }",
			`tenants.defaults.burst: 1000: burst × period`},
		{"max wait", "tenants: { a: { max_wait: 100us } }",
			`tenants.a.max_wait: 100µs: must be in whole milliseconds`},
		{"paused", "tenants: { a: { paused: yes } }", `tenants.a.paused: "yes": must be true or false`},
		{"tenant that is a text", "tenants: { a: fast }", `tenants.a: a text: must be a section`},
		{"tenant with a control character", "tenants: { \"a\\tb\": { } }",
			`tenants."a\tb": the name: must be 1 to 255 bytes without control characters`},
		{"tenant with a long name", "tenants: { " + strings.Repeat("n", 256) + ": { } }",
			`must be 1 to 255 bytes without control characters`},
		{"route that is none", "tenants: { shop: { routes: { login: { rate: 5/m } } } }",
			`tenants.shop.routes.login: the name: must be one of the routes: default`},
		{"routes that are no section", "tenants: { shop: { routes: [] } }",
			`tenants.shop.routes: a list: must be a section`},
		{"route that is no section", "tenants: { shop: { routes: { default: 5/m } } }",
			`tenants.shop.routes.default: a text: must be a section`},
		{"route with a bad rate", "tenants: { shop: { routes: { default: { rate: 5 } } } }",
			`tenants.shop.routes.default.rate: 5: must be LIMIT/PERIOD`},
		{"route of a route", "tenants: { shop: { routes: { default: { routes: {} } } } }",
			`tenants.shop.routes.default.routes: unknown key: must be a setting of this section`},
		{"route with a policy out of bounds",
			"tenants: { shop: { routes: { default: { rate: 1/366d, burst: 500 } } } }",
			`tenants.shop.routes.default.burst: 500: burst × period`},
		{"guests in a tier that is none", "auth: { mode: guest, guest: { tier: free } }\ntiers: { pro: {} }",
			`auth.guest.tier: "free": must be one of the tiers: pro`},
		{"tier that is none", "tenants: { shop: { tier: pro } }",
			`tenants.shop.tier: "pro": must be a tier of the configuration file, which has none`},
		{"tier that is none of those", "tiers: { free: {} }\ntenants: { shop: { tier: pro } }",
			`tenants.shop.tier: "pro": must be one of free`},
		{"tier that is no text", "tenants: { shop: { tier: [pro] } }",
			`tenants.shop.tier: a list: must be the name of a tier`},
		{"tier of a tier", "tiers: { free: { tier: pro } }",
			`tiers.free.tier: unknown key: must be a setting of this section`},
		{"tier that is no section", "tiers: { free: 5/s }", `tiers.free: a text: must be a section`},
		{"tier with a bad name", "tiers: { 'a b': {} }", `must be 1 to 64 of the characters`},
		{"tier with a policy out of bounds", "tiers: { free: { capacity: -1 } }",
			`tiers.free.capacity: -1: must be a whole number from 0`},
		{"reserve of the defaults above the rate of a tier",
			"tenants: { defaults: { rate: 20/s, reserve: 10/s } }\ntiers: { free: { rate: 2/s } }",
			`tenants.defaults.reserve: 10/s: must be at most the rate, 2/s, in the policy of tiers.free`},
		{"reserve of a tenant above the rate of its route",
			"tenants: { acme: { rate: 20/s, reserve: 10/s, routes: { default: { rate: 2/s } } } }",
			`tenants.acme.reserve: 10/s: must be at most the rate, 2/s, in the policy of tenants.acme.routes.default`},
		{"reserve of a route of the defaults above the rate of a tenant",
			"tenants: { defaults: { routes: { default: { reserve: 10/s } } }, acme: { rate: 2/s } }",
			`tenants.defaults.routes.default.reserve: 10/s: must be at most the rate, 2/s, in the policy of tenants.acme.routes.default`},
		{"burst of a tier too large for a tenant",
			"tiers: { pro: { rates: [ { rate: 1000000/s } ], burst: 1000000000000 } }\ntenants: { acme: { tier: pro, rate: 1/366d } }",
			`tiers.pro.burst: 1000000000000: burst`},
		{"an empty reserve", "tenants: { acme: { reserve: '' } }", `tenants.acme.reserve: "": must be LIMIT/PERIOD`},
		{"an empty reserve of the defaults", "tenants: { defaults: { reserve: '' } }", `tenants.defaults.reserve: "": must be LIMIT/PERIOD`},
		{"max wait of a fraction", "tiers: { free: { max_wait: 1500us } }",
			`tiers.free.max_wait: 1.5ms: must be in whole milliseconds`},
		{"types that are no list", "tenants: { a: { types: pay } }", `tenants.a.types: a text: must be a list of types of jobs; [] is all`},
		{"no types", "tenants: { defaults: { types: } }", `tenants.defaults.types: nothing: must be a list`},
		{"a type of nothing", "tiers: { a: { types: [ '' ] } }", `tiers.a.types[0]: "": must be a text of 1 to 255 bytes`},
		{"a type twice", "tenants: { a: { routes: { default: { types: [ pay, pay ] } } } }", `types[1]: "pay": must not be repeated`},
		{"too many types", "tenants: { a: { types: [" + "a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q ] } }", `tenants.a.types[16]: "q": must be a list of at most 16 types`},
		{"rates that are no list", "tenants: { a: { rates: 5/m } }", `tenants.a.rates: a text: must be a list`},
		{"a rate without a rate", "tenants: { a: { rates: [ { burst: 2 } ] } }", `tenants.a.rates[0].rate: nothing: must be set`},
		{"a rate with a bad burst", "tenants: { a: { rates: [ { rate: 5/m, burst: 0 } ] } }", `tenants.a.rates[0].burst: 0: must be a whole number of at least 1`},
		{"a bad rate among the rates", "tenants: { defaults: { rates: [ { rate: 5/w } ] } }", `tenants.defaults.rates[0].rate: "5/w": not a rate`},
		{"a rate by something else", "tenants: { a: { rates: [ { rate: 5/m, by: job } ] } }", `tenants.a.rates[0].by: "job": must be one of cost, jobs`},
		{"a rate by nothing", "tenants: { a: { rates: [ { rate: 5/m, by: } ] } }", `tenants.a.rates[0].by: nothing: must be one of cost, jobs`},
		{"too many rates", "tenants: { a: { rates: [" + strings.Repeat("{ rate: 5/m },", 8) + "] } }", `tenants.a.rates: 8 rates: must be at most 7`},
		{"dead bytes", "retention: { dead_bytes: 0 }", `retention.dead_bytes: 0: must be a whole number from 1 to 1125899906842624`},
		{"share of a tier", "tiers: { trial: { store_share: 0 } }", `tiers.trial.store_share: 0: must be a whole number from 1 to 100`},
		{"weight of a tier in pools", "tiers: { trial: { pool_weight: 1001 } }", `tiers.trial.pool_weight: 1001: must be a whole number from 0 to 1000`},
		{"a reserve of a class", "tiers: { trial: { rate: 50/s, pool_weight: 2, reserve: 1/s } }",
			`tiers.trial.reserve: 1/s: must be absent: all tenants of the tier together have its pool_weight`},
		{"a reserve of guests", "auth: { mode: guest, guest: { tier: trial } }\ntiers: { trial: { rate: 50/s, reserve: 1/s } }",
			`tiers.trial.reserve: 1/s: must be absent: all tenants`},
		{"a reserve of a class on a route", "tiers: { trial: { rate: 50/s, pool_weight: 2, routes: { default: { reserve: 1/s } } } }",
			`tiers.trial.routes.default.reserve: 1/s: must be absent: all tenants`},
		{"flow share", "store: { flow_share: 101 }", `store.flow_share: 101: must be a whole number from 1 to 100`},
		{"dead capacity", "retention: { dead_capacity: 0 }",
			`retention.dead_capacity: 0: must be a whole number from 1 to 1000000`},
		{"hosts", "api: { hosts: \"a/b\" }",
			`api.hosts: "a/b": must be host names, optionally with a port, separated by commas,` +
				` such as jobs.example,jobs.example:8443`},
		{"share", "api: { tenant_share: 101 }", `api.tenant_share: 101: must be a whole number from 1 to 100`},
		{"streams", "api: { max_streams: 0 }", `api.max_streams: 0: must be a whole number from 1 to 100000`},
		{"profiles", "admin: { profiles: 1 }", `admin.profiles: 1: must be true or false`},
		{"callbacks that are a list", "callbacks: [hunter2]", `callbacks: a list: must be a section`},
		{"unknown key of the callbacks", "callbacks: { alow: [] }",
			`callbacks.alow: unknown key: must be a setting of this section; is callbacks.allow meant?`},
		{"allow that is no list", "callbacks: { allow: \"https://hunter2/\" }",
			`callbacks.allow: a text: must be a list`},
		{"allow that is nothing", "callbacks: { allow: }", `callbacks.allow: nothing: must be a list`},
		{"a prefix that is none", "callbacks: { allow: [\"https://ok.example/\", hunter2] }",
			`callbacks.allow[1]: (hidden): must be an http or https URL with a host`},
		{"a prefix with a password", "callbacks: { allow: [\"https://u:hunter2@x.example/\"] }",
			`callbacks.allow[0]: (hidden): must not have user information`},
		{"a prefix that is a number", "callbacks: { allow: [7] }", `callbacks.allow[0]: (hidden): must be`},
		{"callback secrets that are no list", "callbacks: { secrets: whsec_hunter2 }",
			`callbacks.secrets: a text: must be a list`},
		{"a bad callback secret", "callbacks: { secrets: [whsec_hunter2] }",
			`callbacks.secrets[0]: (hidden): must be whsec_ and the base64 of 24 to 64 bytes`},
		{"a mode of callbacks", "callbacks: { mode: all }", `callbacks.mode: "all": must be one of off, registered, public`},
		{"denied networks", "callbacks: { deny: [nowhere] }", `callbacks.deny: "nowhere": must be networks`},
		{"callback timeout", "callbacks: { timeout: 10ms }",
			`callbacks.timeout: "10ms": must be a duration from 100ms to 5m`},
		{"callback attempts", "callbacks: { max_attempts: 1 }",
			`callbacks.max_attempts: 1: must be a whole number from 2 to 100`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := config.Load(config.Sources{File: write(t, c.yaml+"\n"+route)})
			ps := problems(t, err)
			if len(ps) != 1 || !strings.Contains(ps[0].String(), c.want) {
				t.Errorf("problems:\n  %s\nwant:\n  %s", strings.ReplaceAll(ps.Error(), "; ", "\n  "), c.want)
			}
			for _, secret := range []string{"hunter2", "geheim", "12345678901234567", "sekret"} {
				if strings.Contains(ps.Error(), secret) {
					t.Errorf("a secret is shown: %s", ps.Error())
				}
			}
		})
	}
	for _, c := range []struct{ name, yaml, want string }{
		{"none", "headers: both", `routes: nothing: must name at least one route`},
		{"empty", "routes:", `routes: nothing: must name at least one route`},
		{"no mapping", "hunter2", `.yaml: must be YAML, a mapping of sections`},
		{"no section", "routes: x", `routes: a text: must be a section`},
		{"no url", "routes: { a: { timeout: 3s } }", `routes.a.url: nothing: must be set, unless forward or asynq is set`},
		{"route without a section", "routes: { a: \"http://x/\" }",
			`routes.a: a text: must be a section with a url`},
		{"relative url", "routes: { a: { url: /orders } }",
			`routes.a.url: "/orders": must be an absolute http:// or https:// URL`},
		{"ftp", "routes: { a: { url: \"ftp://x/\" } }", `routes.a.url: "ftp://x/": must be an absolute`},
		{"url with a password and a mistake", "routes: { a: { url: \"http://u:hunter2@x/#y\" } }", `routes.a.url: (hidden): must be an absolute`},
		{"name", "routes: { \"a b\": { url: \"http://x/\" } }", `routes."a b": the name: must be 1 to 64 of the characters`},
		{"timeout", "routes: { a: { url: \"http://x/\", timeout: 2h } }", `routes.a.timeout: "2h": must be a duration from 1ms to 1h`},
		{"attempts", "routes: { a: { url: \"http://x/\", retry: { max_attempts: 0 } } }", `routes.a.retry.max_attempts: 0: must be a whole number from 1 to 1000`},
		{"backoff", "routes: { a: { url: \"http://x/\", retry: { max_backoff: 500ms } } }", `routes.a.retry.min_backoff: 1s: must be at most retry.max_backoff, here 500ms`},
		{"breaker failures", "routes: { a: { url: \"http://x/\", breaker: { failures: -1 } } }", `routes.a.breaker.failures: -1: must be a whole number from 0 to 1000`},
		{"breaker share", "routes: { a: { url: \"http://x/\", breaker: { share: 0 } } }", `routes.a.breaker.share: 0: must be a whole number from 1 to 100`},
		{"breaker delay", "routes: { a: { url: \"http://x/\", breaker: { delay: 2h } } }", `routes.a.breaker.delay: "2h": must be a duration from 100ms to 1h`},
		{"cost from no pointer", "routes: { a: { url: \"http://x/\", cost_from: usage.total_tokens } }", `routes.a.cost_from: "usage.total_tokens": must be none, header or a JSON pointer (RFC 6901) such as /usage/total_tokens`},
		{"cost from a bad escape", "routes: { a: { url: \"http://x/\", cost_from: /a~2b } }", `routes.a.cost_from: "/a~2b": must be none, header or a JSON pointer`},
		{"asynq with a cost", "routes: { a: { asynq: { queue: q }, cost_from: /used } }", `routes.a.cost_from: "/used": must not be set together with asynq: it concerns answers of a url or forward`},
		{"asynq with a least cost", "routes: { a: { asynq: { queue: q }, min_cost: 2 } }", `routes.a.min_cost: 2: must not be set together with asynq`},
		{"least cost beyond", "routes: { a: { url: \"http://x/\", min_cost: 1000001 } }", `routes.a.min_cost: 1000001: must be a whole number from 0 to 1000000`},
		{"asynq with a breaker", "routes: { a: { asynq: { queue: q }, breaker: { failures: 3 } } }", `routes.a.breaker: a section: must not be set together with asynq: a breaker guards deliveries to a url`},
		{"unknown retry key", "routes: { a: { url: \"http://x/\", retry: { attempts: 2 } } }", `routes.a.retry.attempts: unknown key`},
		{"retry that is a number", "routes: { a: { url: \"http://x/\", retry: 3 } }", `routes.a.retry: a number: must be a section`},
		{"asynq beside url", "routes: { a: { url: \"http://x/\", asynq: { queue: q } } }", `routes.a.url: set: must not be set together with asynq: a route has one destination`},
		{"asynq without a queue", "routes: { a: { asynq: { reports: true } } }", `routes.a.asynq.queue: nothing: must be set`},
		{"asynq with a blank queue", "routes: { a: { asynq: { queue: \" \" } } }", `routes.a.asynq.queue: " ": must be 1 to 255 bytes, not blank`},
		{"asynq with secrets", "routes: { a: { asynq: { queue: q }, secrets: [] } }", `routes.a.secrets: (hidden): must not be set together with asynq: secrets sign deliveries to a url`},
		{"asynq reports too soon", "routes: { a: { asynq: { queue: q, reports: true, report_within: 5s } } }", `routes.a.asynq.report_within: 5s: must be at least worker.lease, here 30s`},
		{"secrets that are no list", "routes: { a: { url: \"http://x/\", secrets: whsec_hunter2 } }", `routes.a.secrets: a text: must be a list`},
		{"a bad secret", "routes: { a: { url: \"http://x/\", secrets: [whsec_hunter2] } }", `routes.a.secrets[0]: (hidden): must be whsec_ and the base64`},
	} {
		t.Run("route "+c.name, func(t *testing.T) {
			if c.name != "no mapping" {
				c.yaml = token + c.yaml
			}
			_, err := config.Load(config.Sources{File: write(t, c.yaml)})
			ps := problems(t, err)
			if c.name == "no section" || c.name == "no mapping" {
				ps = ps[:1]
			}
			if strings.Contains(ps.Error(), "hunter2") {
				t.Errorf("the problems reveal a secret: %v", ps)
			}
			if len(ps) != 1 || !strings.Contains(ps[0].String(), c.want) {
				t.Errorf("problems:\n  %s\nwant:\n  %s", strings.ReplaceAll(ps.Error(), "; ", "\n  "), c.want)
			}
		})
	}
}

// The problems of file, variables and flags are reported together.
func TestAllProblemsAtOnce(t *testing.T) {
	_, err := config.Load(config.Sources{
		File: write(t, "redis: { url: nonsense }\nworker: { lease: 1, typo: 2 }\ntenants:\n"+
			"  defaults: { rate: fast, capacity: -4 }\n  acme: { burst: 0 }\n"),
		Environ: []string{"SLUICE_WORKER_CONCURRENCY=many", "SLUICE_SERVICE_HOST=10.0.0.1", "HOME=/"},
		Flags:   map[string]string{"headers": "all"},
	})
	ps := problems(t, err)
	var fields []string
	for _, p := range ps {
		fields = append(fields, p.Field)
	}
	want := []string{"worker.typo", "redis.url", "headers (--headers)", "worker.lease",
		"worker.concurrency (SLUICE_WORKER_CONCURRENCY)",
		"tenants.defaults.rate", "routes", "tenants.defaults.capacity", "tenants.acme.burst"}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("%s\n%v", diff, ps)
	}
}

// A flag outranks a variable, a variable the file, the file a preset. An empty variable is unset.
func TestPrecedence(t *testing.T) {
	from := config.Sources{Preset: map[string]any{"worker": map[string]any{"concurrency": 2}}}
	from.File = write(t, route)
	check := func(step string, want int64) {
		t.Helper()
		if got := mustLoad(t, from).Worker.Concurrency; got != want {
			t.Errorf("%s: concurrency %d, want %d", step, got, want)
		}
	}
	check("preset over default", 2)
	from.File = write(t, route+"worker: { concurrency: 3 }\n")
	check("file over preset", 3)
	from.Environ = []string{"SLUICE_WORKER_CONCURRENCY=4"}
	check("environment over file", 4)
	from.Environ = append(from.Environ, "SLUICE_ADMIN_TOKEN=", "SLUICE_WORKER_LEASE=") // empty is not set
	check("empty variables", 4)
	from.Flags = map[string]string{"worker.concurrency": "5"}
	check("flag over environment", 5)
}

// TestEverySettingEverySource sets each setting by its variable and by its flag to another legal
// value.
func TestEverySettingEverySource(t *testing.T) {
	values := map[string]string{
		"redis.url": "redis://127.0.0.1:1/2", "redis.data_dir": "x", "redis.allow_unsafe": "true",
		"redis.durability.replicas": "2", "redis.durability.fsync": "true", "redis.durability.timeout": "2s",
		"api.listen":   "127.0.0.1:1",
		"api.max_body": "5000", "api.allow_public": "true", "admin.listen": "[::1]:2",
		"admin.token": "0123456789abcdefgh", "admin.token_file": "token.txt", "admin.allow": "10.0.0.0/8", "admin.public_url": "https://x",
		"admin.oidc.issuer": "https://id.example", "admin.oidc.client_id": "sluice", "admin.oidc.client_secret": "s", "admin.oidc.scopes": "groups",
		"admin.oidc.name_claim": "sub", "admin.oidc.groups_claim": "roles", "admin.oidc.viewers": "*", "admin.oidc.operators": "sre",
		"admin.oidc.admins": "root,leads",
		"api.tls.off":       "true", "admin.tls.off": "true", "metrics.tls.off": "true", "auth.cert.tenant": "cn",
		"auth.mode": "keys,guest", "auth.jwt.issuer": "i", "auth.jwt.audience": "a", "auth.jwt.leeway": "0s",
		"auth.jwt.tenant_claim": "org", "auth.jwt.prefix": "org:", "auth.jwt.shared_tenants": "true",
		"auth.jwt.require_scope": "true", "auth.jwt.discovery": "true",
		"auth.jwt.tier_claim": "plan", "auth.jwt.jwks": "jwks.json", "auth.guest.tier": "free", "auth.guest.max_delay": "5m", "auth.keys.max_age": "24h",
		"headers": "legacy", "worker.lease": "40s", "worker.sweep": "2s", "worker.horizon": "7ms",
		"api.max_streams": "7", "api.max_connections": "12", "api.hosts": "jobs.example, jobs.example:8443",
		"api.tenant_share": "13", "api.address_share": "14", "api.status_rate": "5/m", "api.read_rate": "6/m",
		"admin.max_connections": "13", "admin.profiles": "true",
		"admin.submit": "true", "retention.dead_capacity": "8", "callbacks.timeout": "9s", "callbacks.mode": "registered", "callbacks.deny": "10.0.0.0/8",
		"egress.allow":           "169.254.1.0/24",
		"callbacks.max_attempts": "3", "callbacks.proxy": "http://p.test:3128",
		"worker.concurrency": "9", "worker.grace": "2m", "retention.succeeded": "2s", "retention.dead": "3s",
		"retention.idempotency": "4s",
		"tenants.defaults.rate": "5/24h", "tenants.defaults.burst": "2", "tenants.defaults.capacity": "3",
		"tenants.defaults.concurrency": "4", "tenants.defaults.capacity_bytes": "5", "store.max_bytes": "6",
		"store.flow_share": "9", "store.guest_share": "8", "store.reserve": "11", "store.guest_tenants": "12", "store.shards": "128", "store.environment": "staging", "retention.dead_bytes": "10", "store.max_tenants": "7",
		"store.compress_over": "8", "tenants.defaults.max_wait": "5s", "tenants.defaults.paused": "true", "tenants.defaults.denied": "true",
		"tenants.defaults.weight": "6", "tenants.defaults.reserve": "2/s", "tenants.defaults.max_cost": "7",
		"metrics.listen": "127.0.0.1:1", "metrics.tenants": "none", "log.level": "error",
		"traces.endpoint": "http://127.0.0.1:4318", "traces.sample": "0.5",
		"audit.retention": "48h", "audit.max_bytes": "2MiB", "audit.log": "stdout",
	}
	keys := secrets(t, map[string]string{"codec.key": strings.Repeat("A", 42) + "E=\n", "other.key": strings.Repeat("A", 42) + "I=\n"})
	values["codec.key_file"], values["codec.read_only"] = filepath.Join(filepath.Dir(keys), "other.key"), "true"
	values["codec.command"] = filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(values["codec.command"], []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	signOn := []string{
		"SLUICE_ADMIN_TOKEN=0123456789abcdef", "SLUICE_ADMIN_PUBLIC_URL=https://x", "SLUICE_ADMIN_OIDC_ADMINS=root",
		"SLUICE_ADMIN_OIDC_ISSUER=https://before", "SLUICE_ADMIN_OIDC_CLIENT_ID=before",
	}
	needed := map[string][]string{ // what a setting takes for granted
		"codec.read_only":   {"SLUICE_CODEC_KEY_FILE=" + filepath.Join(filepath.Dir(keys), "codec.key")},
		"admin.oidc.issuer": signOn, "admin.oidc.client_id": signOn,
	}
	file := write(t, "redis: { url: \"redis://127.0.0.1:1/1\", durability: { replicas: 1 } }\n"+route)
	plain := mustLoad(t, config.Sources{File: file})
	for _, s := range config.Settings() {
		value, ok := values[s.Key]
		var others []string
		plain := plain
		if section, name, is := strings.Cut(s.Key, ".tls."); is && name != "off" {
			environ, of := tlsFiles(t, section)
			others = environ
			value, ok = of[name]
			plain = mustLoad(t, config.Sources{File: file, Environ: others})
		}
		if !ok {
			t.Errorf("no value for %s", s.Key)
			continue
		}
		if variables, needs := needed[s.Key]; needs {
			others = variables
			plain = mustLoad(t, config.Sources{File: file, Environ: others})
		}
		byEnv := mustLoad(t, config.Sources{File: file, Environ: append(others, s.Env()+"="+value)})
		byFlag := mustLoad(t, config.Sources{File: file, Environ: others, Flags: map[string]string{s.Key: value}})
		if diff := cmp.Diff(byEnv, byFlag, prefixes); diff != "" {
			t.Errorf("%s: variable and flag differ: %s", s.Key, diff)
		}
		if cmp.Equal(plain, byEnv, prefixes) {
			t.Errorf("%s=%s changes nothing", s.Env(), value)
		}
	}
}

// The problem of a file that cannot be read names it.
func TestMissingFile(t *testing.T) {
	_, err := config.Load(config.Sources{File: filepath.Join(t.TempDir(), "absent.yaml")})
	ps := problems(t, err)
	if len(ps) == 0 || !strings.Contains(ps[0].String(), "absent.yaml: cannot be read: no such file") {
		t.Errorf("problems: %v", err)
	}
}

// FuzzLoad feeds arbitrary files. Whatever they hold, Load returns; what it accepts keeps the rules
// that the rest of the program relies on, and what it refuses is listed with path, value and rule.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{route, "", "redis: { url: x }",
		"tenants: { a: { rates: [ { rate: 1/s, burst: 9223372036854775807 } ] } }",
		"a: &a [*a]", "? [1]\n: 2", "worker: { lease: 1e9, sweep: .nan, concurrency: 0x10 }",
		"routes: { a: { url: !!binary aGk= } }",
		"callbacks: { allow: [~, 1, \"https://x/%2f\"], secrets: [[]] }",
		"1: 2\ntrue: x", "tenants: { ~: { rate: 1/s }, 2001-01-01: {} }", "--- \n...\n---",
		"redis:\n  url: !!timestamp 2001-01-01"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, yaml []byte) {
		path := filepath.Join(t.TempDir(), "sluice.yaml")
		if err := os.WriteFile(path, yaml, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := config.Load(config.Sources{File: path})
		if err != nil {
			for _, p := range problems(t, err) {
				for part, text := range map[string]string{"field": p.Field, "value": p.Value, "rule": p.Rule} {
					if text == "" {
						t.Errorf("a problem has no %s: %+v", part, p)
					}
				}
			}
			return
		}
		if len(c.Routes) == 0 {
			t.Error("accepted without a route")
		}
		if w := c.Worker; w.Lease < time.Second || w.Sweep > w.Lease/4 {
			t.Errorf("accepted a lease of %v, want at least 1s, with a sweep of %v, want at most a quarter "+
				"of it", w.Lease, w.Sweep)
		}
		if n := c.Worker.Concurrency; n < 1 {
			t.Errorf("accepted a concurrency of %d, want at least 1", n)
		}
		for name, o := range c.Tenants.Named {
			if err := o.Over(c.Tenants.Defaults).Validate(); err != nil {
				t.Errorf("accepted tenant %q: %v", name, err)
			}
		}
	})
}

// If the file cannot be read, settings that it may hold are not reported as missing.
func TestUnreadFile(t *testing.T) {
	for name, file := range map[string]string{
		"absent": filepath.Join(t.TempDir(), "absent.yaml"), "torn": write(t, "routes: {"),
		"no mapping": write(t, "- a"),
	} {
		_, err := config.Load(config.Sources{File: file, Environ: []string{"SLUICE_LOG_LEVEL=loud"}})
		var fields []string
		for _, p := range problems(t, err) {
			fields = append(fields, p.Field)
		}
		queuetest.Compare(t, "the fields with problems, the file being "+name, fields,
			[]string{"--config", "log.level (SLUICE_LOG_LEVEL)"})
	}
}

// A default of the environment that contradicts a tier is named by its variable, with the tier.
func TestVariableThatContradictsATier(t *testing.T) {
	_, err := config.Load(config.Sources{
		File:    write(t, route+"tiers: { free: { rate: 2/s } }\ntenants: { defaults: { rate: 20/s } }\n"),
		Environ: []string{"SLUICE_TENANTS_DEFAULTS_RESERVE=10/s"},
	})
	const want = "tenants.defaults.reserve (SLUICE_TENANTS_DEFAULTS_RESERVE): 10/s: must be at most the rate, 2/s, " +
		"in the policy of tiers.free"
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

// calls is how upstreams are called by default.
var calls = config.Calls{Method: "POST", Proxy: "none", HTTP2: true}

// TestEgressOfRoutes: no URL of a route has a link-local or metadata address, unless it is allowed.
func TestEgressOfRoutes(t *testing.T) {
	for route, want := range map[string]string{
		`url: "http://169.254.169.254/latest"`:                                    `routes.m.url: "169.254.169.254": must not be link-local`,
		`forward: "http://[fd00:ec2::254]/"`:                                      `routes.m.forward: "fd00:ec2::254": must not be`,
		`url: "http://a.example/", proxy: "http://[::ffff:169.254.169.254]:3128"`: `routes.m.proxy: "::ffff:169.254.169.254": must not be`,
		`url: "http://10.0.0.1/"`:                                                 "", `url: "http://169.254.1.1/"`: "",
	} {
		_, err := config.Load(config.Sources{File: write(t, "egress: { allow: [169.254.1.0/24] }\nroutes: { m: { "+route+" } }")})
		if want == "" && err == nil {
			continue
		}
		if ps := problems(t, err); len(ps) != 1 || want == "" || !strings.Contains(ps[0].String(), want) {
			t.Errorf("%s: %v, want %s", route, ps, want)
		}
	}
}
