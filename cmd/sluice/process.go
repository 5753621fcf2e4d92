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
	"github.com/7509e464/sluice/api/guard"
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
	// After so long the connections to Redis are closed under whatever still waits for an answer:
	// go-redis ends a read with its context only where that has a deadline, and a frozen Redis
	// would keep the process for some seconds more.
	storeGrace = deliveryGrace + 750*time.Millisecond
	patience   = 5 * time.Second // between two log lines while Redis is away at the start
	maxTenants = 100             // of the file that get gauges of their own, for the sake of the metrics' size
)

// process is one running sluice: listeners, queue, worker.
//
// It starts in this order: listeners, which answer 503 until all is ready, so that a port that is
// taken ends it before anything else happens; the engine and the queue, waited for as long as it
// takes; the worker; then the real handlers.
//
// It stops in this order, each step because of the next:
//
//  1. Intake: readiness returns 503 and new jobs are refused.
//  2. The worker releases jobs that have not departed and finishes the others, while clients still
//     read their jobs.
//  3. The event streams, which have shown the worker's last results, and then the listeners.
//  4. Traces: the remaining spans are exported, for a bounded time.
//  5. The queue, then its engine: everything above needs them.
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

// run blocks until ctx ends and the process has stopped in order, which is no error, or until
// something fails.
func (p *process) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	loadBallast()
	worker.ShortenTurns()
	reread := make(chan os.Signal, 1)
	if p.reloader != nil { // before Redis is there: otherwise the signal would end the process
		signal.Notify(reread, syscall.SIGHUP)
		defer signal.Stop(reread)
	}
	listeners, err := p.listenAll(fail)
	if err != nil {
		return err
	}
	defer listeners.close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	listeners.register(registry)
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
	defer p.closeStore(engine, q)
	go p.watch(ctx, engine, fail)

	guard, err := callback.NewGuard(p.cfg.Callbacks.Allow)
	if err != nil {
		return err
	}
	server, err := p.server(ctx, registry, engine, q, guard, traces)
	if err != nil {
		return err
	}
	work, err := p.startWorker(registry, engine, q, guard, traces, fail)
	if err != nil {
		return err
	}
	defer work.stop()
	server.Remember()
	p.tellReady(listeners.serve(server), engine)
	defer p.reload(ctx, registry, server, q, reread)()

	<-ctx.Done()
	p.log.Info("stopping")
	server.Drain()
	err = work.end(engine)
	listeners.shutdown(server)
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

func (p *process) closeStore(engine *queue.Engine, q *queue.Queue) {
	if err := errors.Join(q.Close(), engine.Close()); err != nil {
		p.log.Warn("closing the store", "error", err)
	}
}

// watch ends the process if its engine fails.
func (p *process) watch(ctx context.Context, engine *queue.Engine, fail context.CancelCauseFunc) {
	select {
	case err := <-engine.Failed():
		fail(fmt.Errorf("the store: %w: see redis.log in %s", err, p.cfg.Redis.DataDir))
	case <-ctx.Done():
	}
}

func (p *process) server(ctx context.Context, registry *prometheus.Registry, engine *queue.Engine, q *queue.Queue,
	guard *callback.Guard, traces *tracing.Tracing,
) (*api.Server, error) {
	guesses := auth.NewGuesses()
	authenticator, err := p.authenticator(ctx, q, guesses)
	if err != nil {
		return nil, err
	}
	cfg := p.apiConfig(registry, engine, q.Limits(), guard, authenticator)
	cfg.Guesses, cfg.Traces = guesses, traces.Tracer()
	return api.New(q, cfg)
}

// work is the worker of a process while it runs.
type work struct {
	stop  context.CancelFunc
	ended chan error
}

// startWorker starts the worker. Without the role it returns one that has ended.
func (p *process) startWorker(registry *prometheus.Registry, engine *queue.Engine, q *queue.Queue,
	guard *callback.Guard, traces *tracing.Tracing, fail context.CancelCauseFunc,
) (*work, error) {
	ctx, stop := context.WithCancel(context.Background())
	out := &work{stop: stop, ended: make(chan error, 1)}
	if !p.roles.worker {
		out.ended <- nil
		return out, nil
	}
	cfg, err := p.workerConfig(registry, engine, guard)
	if err != nil {
		stop()
		return nil, err
	}
	cfg.Traces = traces.Tracer()
	worker.ReserveProcessor()
	w, err := worker.New(q, cfg)
	if err != nil {
		stop()
		return nil, err
	}
	go func() {
		err := w.Run(ctx)
		if ctx.Err() == nil {
			fail(fmt.Errorf("the worker ended by itself: %w", orNil(err)))
		}
		out.ended <- err
	}()
	return out, nil
}

// end stops the worker and waits for its end. It closes the engine after storeGrace.
func (w *work) end(engine *queue.Engine) error {
	w.stop()
	hangUp := time.AfterFunc(storeGrace, func() { _ = engine.Close() })
	defer hangUp.Stop()
	return <-w.ended
}

// tellReady reports that the process takes jobs.
func (p *process) tellReady(now running, engine *queue.Engine) {
	now.engine, now.kind = engine.String(), engine.Kind()
	attributes := []any{"admin", now.admin.String(), "store", now.engine, "worker", p.roles.worker}
	if now.metrics != nil {
		attributes = append(attributes, "metrics", now.metrics.String())
	}
	if now.api != nil {
		attributes = append(attributes, "api", now.api.String())
	}
	p.log.Info("ready", attributes...)
	if p.ready != nil {
		p.ready(now)
	}
}

// reload has the reloader follow the signals until ctx ends. The returned function waits for that.
func (p *process) reload(
	ctx context.Context, registry *prometheus.Registry, server *api.Server, q *queue.Queue, reread <-chan os.Signal,
) func() {
	if p.reloader == nil {
		return func() {}
	}
	p.reloader.set = func(ctx context.Context, b shaper.Baseline, tenants map[string]shaper.Overrides) error {
		server.SetStatusTenants(statusTenants(tenants))
		return q.SetPolicies(ctx, b, tenants)
	}
	registry.MustRegister(p.reloader.good, p.reloader.at)
	var reloading sync.WaitGroup
	reloading.Go(func() { p.reloader.run(ctx, reread) })
	return reloading.Wait
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

// open connects to the engine and opens the queue. While Redis is away it keeps trying: whoever
// starts both at once must not have to put them in order. Any other error ends it.
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
	// Metrics go into a registry of their own first: an attempt that fails must leave nothing
	// behind in the real one.
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

// authenticator tells whose requests are whose; nil where nobody is asked. It is needed by the API
// alone, and may wait a few seconds for the keys of an issuer.
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

// guards are those of the configuration by their names, so that every process asks them in the same
// order. Where there is no intake they are for the admin listener alone.
func (p *process) guards() []guard.Intake {
	var guards []guard.Intake
	for _, name := range slices.Sorted(maps.Keys(p.cfg.Guards)) {
		g := p.cfg.Guards[name]
		guards = append(guards, guard.Intake{
			Rule: limiter.Rule{Name: name, Policy: g.Policy}, By: g.By, Endpoints: g.Endpoints, Routes: g.Routes, Types: g.Types, FailClosed: g.FailClosed, Shadow: g.Shadow,
		})
	}
	return guards
}

// gaugedTenants are the named tenants that have gauges of their own at the start; nil where there
// are no gauges of tenants.
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
