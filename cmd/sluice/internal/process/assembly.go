package process

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/worker"
	"github.com/7509e464/sluice/worker/callback"
)

// authenticator finds the tenants of requests. It is nil without authentication and without the API
// role. It may wait a few seconds for the keys of an issuer.
func (p *Process) authenticator(ctx context.Context, keys auth.KeyStore, revocations auth.Revocations,
	guesses *auth.Guesses) (*auth.Authenticator, error) {
	modes := p.Config.Auth.Modes()
	if len(modes) == 0 || !p.Roles.API {
		return nil, nil
	}
	guest := p.Config.Auth.Guest
	return auth.New(ctx, auth.Config{
		Modes: modes, Keys: keys, Logger: p.Log, Guesses: guesses, Cert: p.Config.Auth.Cert.Tenant,
		Issuers: p.Config.Auth.Issuers(), Revocations: revocations,
		Guest: auth.GuestConfig{TrustedProxies: guest.TrustedProxies, Tier: guest.Tier},
	})
}

// callsOf returns how the upstreams of routes are called, for operators.
func callsOf(routes map[string]config.Route) *map[string]api.RouteCalls {
	calls := map[string]api.RouteCalls{}
	for name, r := range routes {
		if r.Asynq.Queue != "" {
			continue
		}
		calls[name] = api.RouteCalls{
			Method: r.Method, URL: r.Shown,
			Headers: slices.Sorted(maps.Keys(r.Headers)), Auth: r.Auth(), Proxy: publicProxy(r.Proxy), CertificateEnd: r.TLS.CertificateEnd(),
		}
	}
	return &calls
}

// publicProxy returns the setting of a proxy without user and password, empty for none.
func publicProxy(setting string) string {
	u, err := url.Parse(setting)
	switch {
	case setting == outbound.NoProxy:
		return ""
	case err == nil && u.Host != "":
		return u.Host
	}
	return setting
}

// apiConfig holds all but the authentication.
func (p *Process) apiConfig(shared parts) api.Config {
	routes := map[string]api.RouteInfo{}
	for name, r := range p.Config.Routes {
		info := api.RouteInfo{
			MaxAttempts: int(r.Retry.MaxAttempts), Paths: r.Paths, JobHeaders: r.JobHeaders, Estimated: r.CostsEstimated(),
		}
		if r.Forwards() {
			base, _ := url.Parse(r.Forward) // was validated
			info.Forward = &api.Forward{
				Path: base.EscapedPath(), Cost: r.Cost, Wait: r.Wait, OnWaitEnd: int(r.OnWaitEnd), Forwarded: r.Forwarded,
				Idle: r.IdleTimeout,
			}
		}
		routes[name] = info
	}
	pages := map[string]http.Handler{}
	if p.Config.Admin.Profiles {
		pages[profilesPath] = profiles()
	}
	return api.Config{
		Routes: routes,
		EraseTasks: func(ctx context.Context, tenant string) (int64, error) {
			return callback.EraseTasks(ctx, shared.engine.Client(), tenant)
		},
		MaxBody:       p.Config.API.MaxBody,
		DrainGrace:    p.Config.Worker.Grace,
		Headers:       api.HeaderMode(p.Config.Headers),
		AdminToken:    p.token,
		AdminSubmit:   p.Config.Admin.Submit,
		AdminNetworks: p.Config.Admin.Networks(),
		AdminURL:      p.Config.Admin.PublicURL,
		SignOn:        signOn(p.Config.Admin.OIDC),
		Version:       p.Version,
		Registerer:    shared.registry,
		Gatherer:      shared.registry,
		Logger:        p.Log,
		StatusTenants: p.gaugedTenants(),
		TopTenants:    p.Config.Metrics.Top(),
		MaxStreams:    int(p.Config.API.MaxStreams),
		LocalOnly:     config.IsLoopback(p.Config.API.Listen),
		Hosts:         p.Config.API.HostNames(),
		MaxRequests:   int(p.Config.API.MaxConnections),
		TenantShare:   api.Percent(p.Config.API.TenantShare),
		AddressShare:  api.Percent(p.Config.API.AddressShare),
		StatusRate:    p.Config.API.StatusRate,
		ReadRate:      p.Config.API.ReadRate,
		Horizon:       p.Config.Worker.Horizon,
		AdminPages:    pages,
		CheckCallback: p.checkCallback(shared.receivers),
		CheckEndpoint: shared.receivers.CheckEndpoint,
		Calls:         func() map[string]api.RouteCalls { return *p.calls.Load() },
		MaxDelay: func(who auth.Principal) (time.Duration, string) {
			return p.Config.MaxDelay(who.Tenant, who.Tier, who.Guest())
		},

		Guards:         p.guards(),
		Traces:         shared.traces.Provider(),
		Limits:         shared.queue.Limits(),
		TrustedProxies: p.Config.Auth.Guest.TrustedProxies,
		KeyMaxAge:      p.Config.Auth.Keys.MaxAge,
		Audit:          api.Audit{Retention: p.Config.Audit.Retention, MaxBytes: p.Config.Audit.MaxBytes},
	}
}

// guards returns the guards of the configuration by name, so that every process asks them in the
// same order. Without the API role they apply to the admin listener alone.
func (p *Process) guards() []guard.Intake {
	var guards []guard.Intake
	for _, name := range slices.Sorted(maps.Keys(p.Config.Guards)) {
		g := p.Config.Guards[name]
		guards = append(guards, guard.Intake{
			Rule: limiter.Rule{Name: name, Policy: g.Policy}, By: g.By, Endpoints: g.Endpoints,
			Routes: g.Routes, Types: g.Types, FailClosed: g.FailClosed, Shadow: g.Shadow,
		})
	}
	return guards
}

// gaugedTenants returns the named tenants that have gauges of their own at the start. It is nil if
// tenants have no gauges.
func (p *Process) gaugedTenants() []string {
	if p.Config.Metrics.Tenants == config.TenantsNone {
		return nil
	}
	return append([]string{}, statusTenants(p.Config.Tenants.Named)...)
}

// statusTenants returns the first maxTenants tenants of the file, by name.
func statusTenants(named map[string]shaper.Overrides) []string {
	names := slices.Sorted(maps.Keys(named))
	return names[:min(len(names), maxTenants)]
}

// WorkerRoute returns a route of the configuration for a worker.
func WorkerRoute(r config.Route) worker.Route {
	var fleet *worker.AsynqRoute
	if r.Asynq.Queue != "" {
		fleet = &worker.AsynqRoute{Queue: r.Asynq.Queue, Reports: r.Asynq.Reports,
			ReportWithin: r.Asynq.ReportWithin}
	}
	var forward *worker.Forward
	if r.Forwards() {
		forward = &worker.Forward{
			URL: r.Forward, MaxAnswer: r.MaxResponse, FailLarge: r.MaxResponseAction == "fail",
			Retention: r.Retention, RetryUnsafe: r.Retry.Unsafe, Stream: r.Stream, MaxDuration: r.MaxDuration,
		}
		for _, status := range r.Retry.On {
			forward.RetryOn = append(forward.RetryOn, int(status))
		}
	}
	var missing *int64
	if n, err := strconv.ParseInt(r.CostMissing, 10, 64); err == nil {
		missing = &n
	}
	route := worker.Route{
		CostMissing: missing,
		Forward:     forward,
		Asynq:       fleet, URL: r.URL, Timeout: r.Timeout, Connections: int(r.Connections),
		IdleTimeout: r.IdleTimeout, ConnectionMaxAge: r.ConnectionMaxAge, CostFrom: r.CostFrom, MinCost: &r.MinCost,
		Paths: r.Paths,
		Retry: worker.Retry{MaxAttempts: int(r.Retry.MaxAttempts), MinBackoff: r.Retry.MinBackoff,
			MaxBackoff: r.Retry.MaxBackoff},
		Breaker: worker.Breaker{Failures: int(r.Breaker.Failures), Share: int(r.Breaker.Share),
			Delay: r.Breaker.Delay, SlowAfter: r.Breaker.SlowAfter},
	}
	if r.Asynq.Queue == "" {
		setCalls(&route, r)
	}
	return route
}

// setCalls sets how the upstream of a route is called.
func setCalls(to *worker.Route, r config.Route) {
	to.Secrets, to.Method, to.Headers = r.Secrets, r.Method, r.Headers
	to.TLS, to.Proxy, to.HTTP1 = r.TLS.Config(), r.Proxy, !r.HTTP2
	to.Egress = r.Egress
	if o := r.OAuth2; o.TokenURL != "" {
		to.OAuth2 = &worker.OAuth2{
			TokenURL: o.TokenURL, ClientID: o.ClientID, ClientSecret: o.ClientSecret, Scopes: o.Scopes, Audience: o.Audience,
		}
	}
}

// checkCallback returns the check of callback URLs, nil where there are none.
func (p *Process) checkCallback(receivers *callback.Receivers) func(url string, endpoints []string) error {
	if p.Config.Callbacks.Mode == "off" {
		return nil
	}
	return receivers.Check
}

func (p *Process) workerConfig(shared parts) (worker.Config, error) {
	callbacks, err := callback.New(callback.Config{
		Sealer: shared.queue.Sealer(),
		Redis:  shared.engine.Client(), Receivers: shared.receivers, Secrets: p.Config.Callbacks.Secrets,
		Proxy: p.Config.Callbacks.Proxy, Of: shared.queue.Callbacks().CallbacksOf,
		Job: api.JobJSON, Timeout: p.Config.Callbacks.Timeout,
		MaxAttempts: int(p.Config.Callbacks.MaxAttempts), Registerer: shared.registry, Logger: p.Log,
	})
	if err != nil {
		return worker.Config{}, err
	}
	routes := map[string]worker.Route{}
	for name, r := range p.Config.Routes {
		routes[name] = WorkerRoute(r)
	}
	return worker.Config{
		Routes: routes, AsynqClient: shared.engine.Client(), Lease: p.Config.Worker.Lease,
		Sweep: p.Config.Worker.Sweep, Horizon: p.Config.Worker.Horizon,
		Concurrency: int(p.Config.Worker.Concurrency), Grace: p.Config.Worker.Grace, Callbacks: callbacks,
		Traces: shared.traces.Provider(), Registerer: shared.registry, Logger: p.Log,
	}, nil
}
