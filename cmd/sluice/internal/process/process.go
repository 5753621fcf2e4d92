// Package process runs Sluice: it wires listeners, queue and worker, and starts and stops them.
package process

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
	// After so long the connections to Redis are closed under whatever still waits for an answer:
	// go-redis ends a read with its context only where that has a deadline, and a frozen Redis
	// would keep the process for some seconds more.
	storeGrace = deliveryGrace + 750*time.Millisecond
	patience   = 5 * time.Second // between two log lines while Redis is away at the start
	maxTenants = 100             // of the file that get gauges of their own, for the sake of the metrics' size
)

// Process is one running sluice: listeners, queue, worker.
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
type Process struct {
	Config    config.Config
	Roles     Roles
	Version   api.VersionInfo
	Embedded  bool
	APIFlag   string // what to change when the address is taken
	AdminFlag string
	Log       *slog.Logger
	Ready     func(Running)       // called once, when jobs are taken
	Reloader  *reloader           // nil: there is no file
	Getenv    func(string) string // of OpenTelemetry's own variables; nil: there are none
}

// Running is what a ready process tells about itself.
type Running struct {
	API, Admin net.Addr // api is nil without the role
	Metrics    net.Addr // nil without metrics.listen
	engine     string
	kind       queue.EngineKind
}

// Run blocks until ctx ends and the process has stopped in order, which is no error, or until
// something fails.
func (p *Process) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	loadBallast()
	worker.ShortenTurns()
	reread := make(chan os.Signal, 1)
	if p.Reloader != nil { // before Redis is there: otherwise the signal would end the process
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
		Endpoint: p.Config.Traces.Endpoint, Sample: p.Config.Traces.Sample, Version: p.Version.Version, Getenv: p.Getenv, Registerer: registry, Logger: p.Log,
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

	guard, err := callback.NewGuard(p.Config.Callbacks.Allow)
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
	p.Log.Info("stopping")
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
	p.Log.Info("stopped")
	return nil
}

func (p *Process) closeStore(engine *queue.Engine, q *queue.Queue) {
	if err := errors.Join(q.Close(), engine.Close()); err != nil {
		p.Log.Warn("closing the store", "error", err)
	}
}

// watch ends the process if its engine fails.
func (p *Process) watch(ctx context.Context, engine *queue.Engine, fail context.CancelCauseFunc) {
	select {
	case err := <-engine.Failed():
		fail(fmt.Errorf("the store: %w: see redis.log in %s", err, p.Config.Redis.DataDir))
	case <-ctx.Done():
	}
}

func (p *Process) server(ctx context.Context, registry *prometheus.Registry, engine *queue.Engine, q *queue.Queue,
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
func (p *Process) startWorker(registry *prometheus.Registry, engine *queue.Engine, q *queue.Queue,
	guard *callback.Guard, traces *tracing.Tracing, fail context.CancelCauseFunc,
) (*work, error) {
	ctx, stop := context.WithCancel(context.Background())
	out := &work{stop: stop, ended: make(chan error, 1)}
	if !p.Roles.Worker {
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
func (p *Process) tellReady(now Running, engine *queue.Engine) {
	now.engine, now.kind = engine.String(), engine.Kind()
	attributes := []any{"admin", now.Admin.String(), "store", now.engine, "worker", p.Roles.Worker}
	if now.Metrics != nil {
		attributes = append(attributes, "metrics", now.Metrics.String())
	}
	if now.API != nil {
		attributes = append(attributes, "api", now.API.String())
	}
	p.Log.Info("ready", attributes...)
	if p.Ready != nil {
		p.Ready(now)
	}
}

// reload has the reloader follow the signals until ctx ends. The returned function waits for that.
func (p *Process) reload(
	ctx context.Context, registry *prometheus.Registry, server *api.Server, q *queue.Queue, reread <-chan os.Signal,
) func() {
	if p.Reloader == nil {
		return func() {}
	}
	p.Reloader.set = func(ctx context.Context, b shaper.Baseline, tenants map[string]shaper.Overrides) error {
		server.SetStatusTenants(statusTenants(tenants))
		return q.SetPolicies(ctx, b, tenants)
	}
	registry.MustRegister(p.Reloader.good, p.Reloader.at)
	var reloading sync.WaitGroup
	reloading.Go(func() { p.Reloader.run(ctx, reread) })
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
func (p *Process) open(ctx context.Context, registry *prometheus.Registry) (*queue.Engine, *queue.Queue, error) {
	var told time.Time
	pause := 100 * time.Millisecond
	for {
		engine, q, err := p.tryOpen(ctx, registry)
		if err == nil || !errors.Is(err, queue.ErrUnavailable) || ctx.Err() != nil {
			return engine, q, err
		}
		if now := time.Now(); now.Sub(told) >= patience {
			p.Log.Warn("redis does not answer, trying on", "error", err)
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

func (p *Process) tryOpen(ctx context.Context, registry *prometheus.Registry) (*queue.Engine, *queue.Queue, error) {
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{
		URL:         p.Config.Redis.URL,
		DataDir:     p.Config.Redis.DataDir,
		Embedded:    p.Embedded,
		NoChild:     p.Roles.Split(),
		AllowUnsafe: p.Config.Redis.AllowUnsafe,
		Logger:      p.Log,
	})
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	// Metrics go into a registry of their own first: an attempt that fails must leave nothing
	// behind in the real one.
	attempt := prometheus.NewRegistry()
	q, err := queue.Open(ctx, engine, queue.Options{
		Defaults: p.Config.Tenants.Defaults,
		Routes:   p.Config.Tenants.Routes,
		Tiers:    p.Config.Tenants.Tiers,
		Tenants:  p.Config.Tenants.Named,
		Retention: queue.Retention{
			Succeeded: p.Config.Retention.Succeeded, Dead: p.Config.Retention.Dead, Idempotency: p.Config.Retention.Idempotency,
			DeadCapacity: p.Config.Retention.DeadCapacity, DeadBytes: p.Config.Retention.DeadBytes,
		},
		Store:        queue.StoreLimits{Bytes: p.Config.Store.MaxBytes, Tenants: p.Config.Store.MaxTenants, FlowShare: p.Config.Store.FlowShare},
		CompressOver: int(p.Config.Store.CompressOver),
		Horizon:      p.Config.Worker.Horizon,
		Registerer:   attempt,
		Logger:       p.Log,
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
func (p *Process) authenticator(ctx context.Context, keys auth.KeyStore, guesses *auth.Guesses) (*auth.Authenticator, error) {
	modes := p.Config.Auth.Modes()
	if len(modes) == 0 || !p.Roles.API {
		return nil, nil
	}
	jwt, guest := p.Config.Auth.JWT, p.Config.Auth.Guest
	return auth.New(ctx, auth.Config{
		Modes: modes, Keys: keys, Logger: p.Log, Guesses: guesses,
		JWT: auth.JWTConfig{
			Issuer: jwt.Issuer, Audience: jwt.Audience, Leeway: jwt.Leeway, TenantClaim: jwt.TenantClaim, TierClaim: jwt.TierClaim,
			Keys: jwt.Keys, JWKS: jwt.JWKS,
		},
		Guest: auth.GuestConfig{TrustedProxies: guest.TrustedProxies, Tier: guest.Tier},
	})
}

func (p *Process) apiConfig(
	registry *prometheus.Registry, engine *queue.Engine, limits limiter.Store, guard *callback.Guard, authenticator *auth.Authenticator,
) api.Config {
	routes := map[string]api.RouteInfo{}
	for name, r := range p.Config.Routes {
		routes[name] = api.RouteInfo{MaxAttempts: int(r.Retry.MaxAttempts)}
	}
	pages := map[string]http.Handler{}
	if p.Config.Admin.Asynqmon {
		// It is never closed: the connections are the engine's.
		pages[asynqmonPath] = asynqmon.New(asynqmon.Options{RootPath: asynqmonPath, RedisConnOpt: shared{engine.Client()}})
	}
	if p.Config.Admin.Profiles {
		pages[profilesPath] = profiles()
	}
	return api.Config{
		Routes:        routes,
		MaxBody:       p.Config.API.MaxBody,
		Auth:          authenticator,
		Headers:       api.HeaderMode(p.Config.Headers),
		AdminToken:    p.Config.Admin.Token,
		AdminSubmit:   p.Config.Admin.Submit,
		Version:       p.Version,
		Registerer:    registry,
		Gatherer:      registry,
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
		Horizon:       p.Config.Worker.Horizon,
		AdminPages:    pages,
		CheckCallback: guard.Check,

		Guards: p.guards(), Limits: limits, TrustedProxies: p.Config.Auth.Guest.TrustedProxies,
	}
}

// guards are those of the configuration by their names, so that every process asks them in the same
// order. Where there is no intake they are for the admin listener alone.
func (p *Process) guards() []api.IntakeGuard {
	var guards []api.IntakeGuard
	for _, name := range slices.Sorted(maps.Keys(p.Config.Guards)) {
		g := p.Config.Guards[name]
		guards = append(guards, api.IntakeGuard{
			Rule: limiter.Rule{Name: name, Policy: g.Policy}, By: g.By, Endpoints: g.Endpoints, Routes: g.Routes, Types: g.Types, FailClosed: g.FailClosed, Shadow: g.Shadow,
		})
	}
	return guards
}

// gaugedTenants are the named tenants that have gauges of their own at the start; nil where there
// are no gauges of tenants.
func (p *Process) gaugedTenants() []string {
	if p.Config.Metrics.Tenants == config.TenantsNone {
		return nil
	}
	return append([]string{}, statusTenants(p.Config.Tenants.Named)...)
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

func (p *Process) workerConfig(registry *prometheus.Registry, engine *queue.Engine, guard *callback.Guard) (worker.Config, error) {
	callbacks, err := callback.New(callback.Config{
		Redis: engine.Client(), Guard: guard, Secrets: p.Config.Callbacks.Secrets, Job: api.JobJSON, Timeout: p.Config.Callbacks.Timeout,
		MaxAttempts: int(p.Config.Callbacks.MaxAttempts), Registerer: registry, Logger: p.Log,
	})
	if err != nil {
		return worker.Config{}, err
	}
	routes := map[string]worker.Route{}
	for name, r := range p.Config.Routes {
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
		Routes: routes, AsynqClient: engine.Client(), Lease: p.Config.Worker.Lease, Sweep: p.Config.Worker.Sweep, Horizon: p.Config.Worker.Horizon,
		Concurrency: int(p.Config.Worker.Concurrency), Grace: deliveryGrace, Callbacks: callbacks, Registerer: registry, Logger: p.Log,
	}, nil
}
