package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/hibiken/asynqmon"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/cmd/sluice/config"
	"github.com/7509e464/sluice/cmd/sluice/tracing"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/worker"
	"github.com/7509e464/sluice/worker/callback"
)

const (
	deliveryGrace = 20 * time.Second // running deliveries may take so long to end after the stop
	// After so long the connections to Redis are closed under whatever still waits for an answer: go-redis ends a read with its context only
	// where that has a deadline, and a frozen Redis would keep the process for some seconds more.
	storeGrace    = deliveryGrace + 750*time.Millisecond
	listenerGrace = 3 * time.Second // requests may take so long to end once the worker has ended
	patience      = 5 * time.Second // between two log lines while Redis is away at the start
	maxTenants    = 100             // of the file that get gauges of their own, for the sake of the metrics' size

	scrapeConnections = 100 // to the listener of metrics
)

// process is one running sluice: listeners, queue, worker.
//
// It starts in this order: listeners, which answer 503 until all is ready, so that a port that is taken ends it before
// anything else happens; the engine and the queue, waited for as long as it takes; the worker; then the real handlers.
//
// It stops in this order, each step because of the next:
//
//  1. drain: readiness turns 503 and new jobs are refused, so that no client sends what nobody would take;
//  2. the worker: it gives back what has not departed and finishes what has, while clients still read their jobs;
//  3. the streams of figures, which have shown the rest of it, and the listeners: nothing changes any more, so the last answers are final;
//  4. the traces: what tells of all that is sent, for a bounded time;
//  5. the queue, then its engine: everything above needs them to the end.
type process struct {
	cfg       config.Config
	roles     roles
	embedded  bool
	apiFlag   string // what to change when the address is taken
	adminFlag string
	log       *slog.Logger
	ready     func(running)       // called once, when jobs are taken
	reloader  *reloader           // nil: there is no file
	getenv    func(string) string // of OpenTelemetry's own variables; nil: there are none
}

// running is what a ready process tells about itself.
type running struct {
	api, admin net.Addr // api is nil without the role
	metrics    net.Addr // nil without metrics.listen
	engine     string
	kind       queue.EngineKind
}

// run blocks until ctx ends and the process has stopped in order, which is no error, or until something fails.
func (p *process) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	loadBallast()
	worker.ShortenTurns()
	reread := make(chan os.Signal, 1)
	if p.reloader != nil { // from here on: the signal would end a process that waits for Redis, and is kept for the reloader instead
		signal.Notify(reread, syscall.SIGHUP)
		defer signal.Stop(reread)
	}

	admin, err := p.listen("admin", p.adminFlag, p.cfg.Admin.Listen, p.cfg.Admin.MaxConnections, fail)
	if err != nil {
		return err
	}
	defer admin.close()
	var intake *listener
	if p.roles.api {
		if intake, err = p.listen("api", p.apiFlag, p.cfg.API.Listen, p.cfg.API.MaxConnections, fail); err != nil {
			return err
		}
		defer intake.close()
	}

	var scrape *listener
	if p.cfg.Metrics.Listen != "" {
		if scrape, err = p.listen("metrics", "--metrics-listen", p.cfg.Metrics.Listen, scrapeConnections, fail); err != nil {
			return err
		}
		defer scrape.close()
	}

	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), admin.socket)
	if intake != nil {
		registry.MustRegister(intake.socket)
	}
	if scrape != nil {
		registry.MustRegister(scrape.socket)
	}
	traces, err := tracing.Open(ctx, tracing.Config{
		Endpoint: p.cfg.Traces.Endpoint, Sample: p.cfg.Traces.Sample, Version: build().Version, Getenv: p.getenv, Registerer: registry, Logger: p.log,
	})
	if err != nil {
		return err
	}
	defer traces.Close() // where something below fails
	engine, q, err := p.open(ctx, registry)
	if err != nil {
		if ctx.Err() != nil {
			return cause(ctx)
		}
		return err
	}
	defer func() {
		if err := errors.Join(q.Close(), engine.Close()); err != nil {
			p.log.Warn("closing the store", "error", err)
		}
	}()

	go func() {
		select {
		case err := <-engine.Failed():
			fail(fmt.Errorf("the store: %w: see redis.log in %s", err, p.cfg.Redis.DataDir))
		case <-ctx.Done():
		}
	}()

	guard, err := callback.NewGuard(p.cfg.Callbacks.Allow)
	if err != nil {
		return err
	}
	guesses := auth.NewGuesses()
	authenticator, err := p.authenticator(ctx, q, guesses)
	if err != nil {
		return err
	}
	apiConfig := p.apiConfig(registry, engine, q.Limits(), guard, authenticator)
	apiConfig.Guesses, apiConfig.Traces = guesses, traces.Tracer()
	server, err := api.New(q, apiConfig)
	if err != nil {
		return err
	}
	worked := make(chan error, 1)
	workCtx, stopWorker := context.WithCancel(context.Background())
	defer stopWorker()
	if p.roles.worker {
		cfg, err := p.workerConfig(registry, engine, guard)
		if err != nil {
			return err
		}
		cfg.Traces = traces.Tracer()
		worker.ReserveProcessor()
		w, err := worker.New(q, cfg)
		if err != nil {
			return err
		}
		go func() {
			err := w.Run(workCtx)
			if workCtx.Err() == nil {
				fail(fmt.Errorf("the worker ended by itself: %w", orNil(err)))
			}
			worked <- err
		}()
	} else {
		worked <- nil
	}

	server.Remember()
	admin.gate.open(server.Admin())
	now := running{admin: admin.addr(), engine: engine.String(), kind: engine.Kind()}
	attributes := []any{"admin", admin.addr().String(), "store", engine.String(), "worker", p.roles.worker}
	if scrape != nil {
		scrape.gate.open(server.Metrics())
		now.metrics = scrape.addr()
		attributes = append(attributes, "metrics", scrape.addr().String())
	}
	if intake != nil {
		intake.gate.open(server.Intake())
		now.api = intake.addr()
		attributes = append(attributes, "api", intake.addr().String())
	}
	p.log.Info("ready", attributes...)
	if p.ready != nil {
		p.ready(now)
	}

	if p.reloader != nil {
		p.reloader.set = func(ctx context.Context, b shaper.Baseline, tenants map[string]shaper.Overrides) error {
			server.SetStatusTenants(statusTenants(tenants))
			return q.SetPolicies(ctx, b, tenants)
		}
		registry.MustRegister(p.reloader.good, p.reloader.at)
		var reloading sync.WaitGroup
		defer reloading.Wait()
		reloading.Go(func() { p.reloader.run(ctx, reread) })
	}

	<-ctx.Done()
	p.log.Info("stopping")
	server.Drain()
	stopWorker()
	hangUp := time.AfterFunc(storeGrace, func() { _ = engine.Close() })
	err = <-worked
	hangUp.Stop()
	if intake != nil {
		intake.shutdown()
	}
	server.End()
	admin.shutdown()
	if scrape != nil {
		scrape.shutdown()
	}
	traces.Close()
	if failed := cause(ctx); failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("stop the worker: %w", err)
	}
	p.log.Info("stopped")
	return nil
}

// cause is why ctx ended; being asked to stop is no error.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// errEnded stands for the reason of what ended without giving one.
var errEnded = errors.New("no reason given")

func orNil(err error) error {
	if err == nil {
		return errEnded
	}
	return err
}

// open connects to the engine and opens the queue. While Redis is away it keeps trying: whoever starts both at once must
// not have to put them in order. Any other error ends it.
func (p *process) open(ctx context.Context, registry *prometheus.Registry) (*queue.Engine, *queue.Queue, error) {
	var told time.Time
	pause := 100 * time.Millisecond
	for {
		engine, q, err := p.tryOpen(ctx, registry)
		if err == nil || !errors.Is(err, queue.ErrUnavailable) || ctx.Err() != nil {
			return engine, q, err
		}
		if now := time.Now(); now.Sub(told) >= patience {
			p.log.Warn("redis does not answer, trying on", "error", err)
			told = now
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		}
	}
}

func (p *process) tryOpen(ctx context.Context, registry *prometheus.Registry) (*queue.Engine, *queue.Queue, error) {
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{
		URL:         p.cfg.Redis.URL,
		DataDir:     p.cfg.Redis.DataDir,
		Embedded:    p.embedded,
		NoChild:     p.roles.split(),
		AllowUnsafe: p.cfg.Redis.AllowUnsafe,
		Logger:      p.log,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	// Metrics go into a registry of their own first: an attempt that fails must leave nothing behind in the real one.
	attempt := prometheus.NewRegistry()
	q, err := queue.Open(ctx, engine, queue.Options{
		Defaults: p.cfg.Tenants.Defaults,
		Routes:   p.cfg.Tenants.Routes,
		Tiers:    p.cfg.Tenants.Tiers,
		Tenants:  p.cfg.Tenants.Named,
		Retention: queue.Retention{
			Succeeded: p.cfg.Retention.Succeeded, Dead: p.cfg.Retention.Dead, Idempotency: p.cfg.Retention.Idempotency,
			DeadCapacity: p.cfg.Retention.DeadCapacity, DeadBytes: p.cfg.Retention.DeadBytes,
		},
		Store:        queue.StoreLimits{Bytes: p.cfg.Store.MaxBytes, Tenants: p.cfg.Store.MaxTenants, FlowShare: p.cfg.Store.FlowShare},
		CompressOver: int(p.cfg.Store.CompressOver),
		Horizon:      p.cfg.Worker.Horizon,
		Registerer:   attempt,
		Logger:       p.log,
	})
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the queue: %w", err), engine.Close())
	}
	if err := registry.Register(attempt); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the queue: metrics: %w", err), q.Close(), engine.Close())
	}
	return engine, q, nil
}

// authenticator tells whose requests are whose; nil where nobody is asked. It is needed by the API alone, and may wait a few seconds for the
// keys of an issuer.
func (p *process) authenticator(ctx context.Context, keys auth.KeyStore, guesses *auth.Guesses) (*auth.Authenticator, error) {
	modes := p.cfg.Auth.Modes()
	if len(modes) == 0 || !p.roles.api {
		return nil, nil
	}
	jwt, guest := p.cfg.Auth.JWT, p.cfg.Auth.Guest
	return auth.New(ctx, auth.Config{
		Modes: modes, Keys: keys, Logger: p.log, Guesses: guesses,
		JWT: auth.JWTConfig{
			Issuer: jwt.Issuer, Audience: jwt.Audience, Leeway: jwt.Leeway, TenantClaim: jwt.TenantClaim, TierClaim: jwt.TierClaim,
			Keys: jwt.Keys, JWKS: jwt.JWKS,
		},
		Guest: auth.GuestConfig{TrustedProxies: guest.TrustedProxies, Tier: guest.Tier},
	})
}

func (p *process) apiConfig(
	registry *prometheus.Registry, engine *queue.Engine, limits limiter.Store, guard *callback.Guard, authenticator *auth.Authenticator,
) api.Config {
	routes := map[string]api.RouteInfo{}
	for name, r := range p.cfg.Routes {
		routes[name] = api.RouteInfo{MaxAttempts: int(r.Retry.MaxAttempts)}
	}
	pages := map[string]http.Handler{}
	if p.cfg.Admin.Asynqmon {
		// It is never closed: the connections are the engine's.
		pages[asynqmonPath] = asynqmon.New(asynqmon.Options{RootPath: asynqmonPath, RedisConnOpt: shared{engine.Client()}})
	}
	if p.cfg.Admin.Profiles {
		pages[profilesPath] = profiles()
	}
	return api.Config{
		Routes:        routes,
		MaxBody:       p.cfg.API.MaxBody,
		Auth:          authenticator,
		Headers:       api.HeaderMode(p.cfg.Headers),
		AdminToken:    p.cfg.Admin.Token,
		AdminSubmit:   p.cfg.Admin.Submit,
		Version:       build(),
		Registerer:    registry,
		Gatherer:      registry,
		Logger:        p.log,
		StatusTenants: p.gaugedTenants(),
		TopTenants:    p.cfg.Metrics.Top(),
		MaxStreams:    int(p.cfg.API.MaxStreams),
		LocalOnly:     config.IsLoopback(p.cfg.API.Listen),
		Hosts:         p.cfg.API.HostNames(),
		MaxRequests:   int(p.cfg.API.MaxConnections),
		TenantShare:   api.Percent(p.cfg.API.TenantShare),
		AddressShare:  api.Percent(p.cfg.API.AddressShare),
		StatusRate:    p.cfg.API.StatusRate,
		Horizon:       p.cfg.Worker.Horizon,
		AdminPages:    pages,
		CheckCallback: guard.Check,

		Guards: p.guards(), Limits: limits, TrustedProxies: p.cfg.Auth.Guest.TrustedProxies,
	}
}

// guards are those of the configuration by their names, so that every process asks them in the same order. Where there is no intake they are
// for the admin listener alone.
func (p *process) guards() []api.IntakeGuard {
	var guards []api.IntakeGuard
	for _, name := range slices.Sorted(maps.Keys(p.cfg.Guards)) {
		g := p.cfg.Guards[name]
		guards = append(guards, api.IntakeGuard{
			Rule: limiter.Rule{Name: name, Policy: g.Policy}, By: g.By, Endpoints: g.Endpoints, Routes: g.Routes, Types: g.Types, FailClosed: g.FailClosed, Shadow: g.Shadow,
		})
	}
	return guards
}

// gaugedTenants are the named tenants that have gauges of their own at the start; nil where there are no gauges of tenants.
func (p *process) gaugedTenants() []string {
	if p.cfg.Metrics.Tenants == config.TenantsNone {
		return nil
	}
	return append([]string{}, statusTenants(p.cfg.Tenants.Named)...)
}

// statusTenants are the first of the tenants that the file names, by name.
func statusTenants(named map[string]shaper.Overrides) []string {
	names := slices.Sorted(maps.Keys(named))
	return names[:min(len(names), maxTenants)]
}

const asynqmonPath = "/asynqmon"

// shared gives asynq's tools a client that is there already.
type shared struct{ client redis.UniversalClient }

// MakeRedisClient implements asynq.RedisConnOpt.
func (s shared) MakeRedisClient() any { return s.client }

func (p *process) workerConfig(registry *prometheus.Registry, engine *queue.Engine, guard *callback.Guard) (worker.Config, error) {
	callbacks, err := callback.New(callback.Config{
		Redis: engine.Client(), Guard: guard, Secrets: p.cfg.Callbacks.Secrets, Job: api.JobJSON, Timeout: p.cfg.Callbacks.Timeout,
		MaxAttempts: int(p.cfg.Callbacks.MaxAttempts), Registerer: registry, Logger: p.log,
	})
	if err != nil {
		return worker.Config{}, err
	}
	routes := map[string]worker.Route{}
	for name, r := range p.cfg.Routes {
		var fleet *worker.AsynqRoute
		if r.Asynq.Queue != "" {
			fleet = &worker.AsynqRoute{Queue: r.Asynq.Queue, Reports: r.Asynq.Reports, ReportWithin: r.Asynq.ReportWithin}
		}
		routes[name] = worker.Route{
			Asynq: fleet, URL: r.URL, Timeout: r.Timeout, Connections: int(r.Connections), Secrets: r.Secrets,
			Retry:   worker.Retry{MaxAttempts: int(r.Retry.MaxAttempts), MinBackoff: r.Retry.MinBackoff, MaxBackoff: r.Retry.MaxBackoff},
			Breaker: worker.Breaker{Failures: int(r.Breaker.Failures), Delay: r.Breaker.Delay, SlowAfter: r.Breaker.SlowAfter},
		}
	}
	return worker.Config{
		Routes: routes, AsynqClient: engine.Client(), Lease: p.cfg.Worker.Lease, Sweep: p.cfg.Worker.Sweep, Horizon: p.cfg.Worker.Horizon,
		Concurrency: int(p.cfg.Worker.Concurrency), Grace: deliveryGrace, Callbacks: callbacks, Registerer: registry, Logger: p.log,
	}, nil
}

// listener is one address with its server; its gate is shut until the process is ready.
type listener struct {
	gate   *gate
	socket *api.Listener
	server *http.Server
	log    *slog.Logger
}

// listen opens the address of the section of the configuration, and serves on it at once. What ends the serving ends the process through fail.
func (p *process) listen(section, flag, address string, most int64, fail context.CancelCauseFunc) (*listener, error) {
	key := section + ".listen"
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot listen on %s: %w (change it with %s)", key, address, rootOf(err), flag)
	}
	l := &listener{gate: newGate(), log: p.log}
	l.socket = api.Limit(socket, section, api.Limits{
		Connections: int(most), PerAddress: int(api.Percent(p.cfg.API.AddressShare).Of(most)), Proxies: p.cfg.Auth.Guest.TrustedProxies,
	})
	l.server = api.HTTPServer(address, l.gate, p.log)
	l.socket.Attend(l.server)
	p.log.Info("listening", "for", key, "address", socket.Addr().String())
	go func() {
		if err := l.server.Serve(l.socket); !errors.Is(err, http.ErrServerClosed) {
			fail(fmt.Errorf("%s: %w", key, err))
		}
	}()
	return l, nil
}

// rootOf is the reason under the layers of the net package, which repeat the address.
func rootOf(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

func (l *listener) addr() net.Addr { return l.socket.Addr() }

// shutdown takes no more connections, lets running requests end within the grace, and cuts off the rest.
func (l *listener) shutdown() {
	ctx, cancel := context.WithTimeout(context.Background(), listenerGrace)
	defer cancel()
	if err := l.server.Shutdown(ctx); err != nil {
		l.log.Warn("requests were cut off", "address", l.addr().String(), "error", err)
	}
}

func (l *listener) close() { _ = l.server.Close() }
