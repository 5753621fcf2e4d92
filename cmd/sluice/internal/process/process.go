// Package process runs Sluice: it wires listeners, queue and worker, and starts and stops them.
package process

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/audit"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
	"github.com/7509e464/sluice/worker/callback"
)

const (
	preflightWait = 2 * time.Second // for a store that does not answer
	// hangUpAfter follows the grace: then the connections to Redis are closed under calls that
	// still wait. go-redis ends a read with its context only where the context has a deadline, so a
	// frozen Redis would delay the end by seconds.
	hangUpAfter = 750 * time.Millisecond
	// answersTail follows the grace, too. By then clients know what became of requests that were
	// cut off.
	answersTail = 2 * time.Second
	auditGrace  = 2 * time.Second // for the last entries of the audit
	logPause    = 5 * time.Second // between two log lines while Redis is unreachable at the start
	maxTenants  = 100             // of the file that get gauges of their own, to bound the metrics
)

// Process is one running sluice: listeners, queue, worker.
//
// It starts in this order. A store that would refuse the process ends it at once. The listeners
// come next and answer 503 until all is ready, so a port in use ends the process before it changes
// anything. The engine and the queue follow; the process waits for Redis without limit. Then the
// worker starts, and the listeners get their handlers.
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
	Config   config.Config       // checked
	Roles    Roles               // at least one
	Version  api.VersionInfo     // for GET /version and the metrics
	Embedded bool                // keep jobs in memory
	Log      *slog.Logger        // required
	Ready    func(Running)       // called once, when the process admits jobs; nil: not called
	Reloader *Reloader           // nil: there is no file to read again
	Getenv   func(string) string // reads OpenTelemetry's own variables; nil: there are none

	// Stderr gets a token that the process makes, once; nil: nobody does.
	Stderr io.Writer

	token string                                    // of the first admin; empty: none
	calls atomic.Pointer[map[string]api.RouteCalls] // how upstreams are called now
}

// Running holds the addresses of a ready process.
type Running struct {
	Admin   net.Addr   // always set
	API     net.Addr   // nil without the role
	Metrics net.Addr   // nil without metrics.listen
	Forward []net.Addr // of forwarded requests, as configured
}

// parts are what the intake and the worker of a process share.
type parts struct {
	registry  *prometheus.Registry
	traces    *tracing
	engine    *queue.Engine
	queue     *queue.Queue
	receivers *callback.Receivers
}

// Run blocks until ctx ends and the process has stopped in order, which is no error, or until
// something fails.
func (p *Process) Run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	ballast()
	if !p.Embedded {
		p.checkDescriptors(descriptorsMost())
	}
	worker.ShortenSlices()
	// By default each of these would end the process at once, without a stop in order: a reader of
	// the log that has gone, and the reload of a service that has no file.
	ignorePipes()
	reread := make(chan os.Signal, 1)
	signal.Notify(reread, syscall.SIGHUP)
	defer signal.Stop(reread)
	if err := p.refused(ctx); err != nil {
		return err
	}
	var err error
	if p.token, err = p.adminToken(); err != nil {
		return err
	}
	listeners, err := p.listenAll(fail)
	if err != nil {
		return err
	}
	defer listeners.close()
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	listeners.register(registry)
	traces, err := openTraces(ctx, tracesConfig{
		Endpoint: p.Config.Traces.Endpoint, Sample: p.Config.Traces.Sample, Version: p.Version.Version,
		Getenv: p.Getenv, Registerer: registry, Logger: p.Log,
	})
	if err != nil {
		return err
	}
	defer traces.Close() // for the failures below
	engine, q, err := p.open(ctx, registry)
	if err != nil {
		if ctx.Err() != nil {
			return cause(ctx)
		}
		return err
	}
	defer p.closeStore(engine, q)
	go p.watch(ctx, engine, fail)
	receivers, err := callback.NewReceivers(p.Config.Callbacks.Allow, p.Config.Callbacks.Denied()...)
	if err != nil {
		return err
	}
	if p.Config.Callbacks.Mode == "registered" {
		receivers = receivers.Registered()
	}
	shared := parts{registry: registry, traces: traces, engine: engine, queue: q, receivers: receivers}
	return p.serve(ctx, fail, listeners, shared, reread)
}

// serve starts the handlers and the worker, waits for the end of ctx and stops them.
func (p *Process) serve(
	ctx context.Context, fail context.CancelCauseFunc, listeners listeners, shared parts,
	reread <-chan os.Signal,
) error {
	p.calls.Store(callsOf(p.Config.Routes))
	lines, err := audit.OpenLines(p.Config.Audit.Log)
	if err != nil {
		return shaper.Problems{{Field: "audit.log", Value: p.Config.Audit.Log, Rule: err.Error()}}
	}
	if lines != nil {
		defer func() { _ = lines.Close() }()
	}
	server, err := p.server(ctx, shared, lines)
	if err != nil {
		return err
	}
	defer func() { // after the last request
		within, cancel := context.WithTimeout(context.Background(), auditGrace)
		defer cancel()
		server.EndAudit(within)
	}()
	work, err := p.startWorker(shared, fail)
	if err != nil {
		return err
	}
	defer work.stop()
	server.Remember()
	p.reportReady(listeners.serve(server, p.Config.Forward), shared.engine)
	defer p.reload(ctx, shared, server, work, listeners, reread)()

	<-ctx.Done()
	p.Log.Info("stopping")
	server.Drain()
	grace := p.Config.Worker.Grace
	within, cancel := context.WithTimeout(context.Background(), grace+answersTail)
	defer cancel()
	err = work.end(shared.engine, grace+hangUpAfter)
	server.AwaitAnswers(within) // other processes may deliver
	listeners.shutdown(server)
	shared.traces.Close()
	if failed := cause(ctx); failed != nil {
		return failed
	}
	if err != nil {
		return fmt.Errorf("stop the worker: %w", err)
	}
	p.Log.Info("stopped")
	return nil
}

// descriptorsElse are the file descriptors that the process needs beside connections to clients and
// upstreams, about: of Redis, of files and of the runtime.
const descriptorsElse = 200

// checkDescriptors warns if the process may have fewer file descriptors than its settings allow
// connections: clients that are idle could take those of the deliveries. most 0 is unknown.
func (p *Process) checkDescriptors(most int64) {
	need := p.Config.Admin.MaxConnections + descriptorsElse
	if p.Roles.API {
		need += p.Config.API.MaxConnections * int64(1+len(p.Config.Forward))
	}
	if p.Roles.Worker {
		for _, r := range p.Config.Routes {
			need += min(r.Connections, p.Config.Worker.Concurrency)
		}
	}
	if most > 0 && most < need {
		p.Log.Warn("the process may run out of file descriptors: raise the limit (ulimit -n), or lower "+
			"api.max_connections", "limit", most, "needed", need)
	}
}

func (p *Process) closeStore(engine *queue.Engine, q *queue.Queue) {
	if err := errors.Join(q.Close(), engine.Close()); err != nil {
		p.Log.Warn("the store was not closed cleanly", "error", err)
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

func (p *Process) server(ctx context.Context, shared parts, lines io.Writer) (*api.Server, error) {
	guesses := auth.NewGuesses()
	authenticator, err := p.authenticator(ctx, shared.queue.Keys(), shared.queue.Tokens(), guesses)
	if err != nil {
		return nil, err
	}
	cfg := p.apiConfig(shared)
	cfg.Auth, cfg.Guesses, cfg.Audit.Lines = authenticator, guesses, lines
	return api.New(shared.queue, cfg)
}

// work is a running worker.
type work struct {
	worker *worker.Worker          // nil without the role
	routes map[string]config.Route // as its upstreams are called
	tls    map[string]*tls.Config  // of them
	stop   context.CancelFunc
	ended  chan error
}

// startWorker starts the worker. Without the role it returns one that has ended.
func (p *Process) startWorker(shared parts, fail context.CancelCauseFunc) (*work, error) {
	ctx, stop := context.WithCancel(context.Background())
	out := &work{stop: stop, ended: make(chan error, 1)}
	if !p.Roles.Worker {
		out.ended <- nil
		return out, nil
	}
	cfg, err := p.workerConfig(shared)
	if err != nil {
		stop()
		return nil, err
	}
	worker.ReserveProcessor()
	w, err := worker.New(shared.queue, cfg)
	if err != nil {
		stop()
		return nil, err
	}
	out.worker, out.routes, out.tls = w, maps.Clone(p.Config.Routes), map[string]*tls.Config{}
	for name := range cfg.Routes {
		out.tls[name] = cfg.Routes[name].TLS
	}
	go func() {
		err := w.Run(ctx)
		if ctx.Err() == nil {
			fail(fmt.Errorf("the worker ended before the process: %w", cmp.Or(err, errEnded)))
		}
		out.ended <- err
	}()
	return out, nil
}

// errEnded replaces a missing reason.
var errEnded = errors.New("no reason given")

// end stops the worker and waits for its end. It closes the engine after a time.
func (w *work) end(engine *queue.Engine, after time.Duration) error {
	w.stop()
	hangUp := time.AfterFunc(after, func() { _ = engine.Close() })
	defer hangUp.Stop()
	return <-w.ended
}

// setUpstream changes how the worker calls the upstream of a route.
func (w *work) setUpstream(name string, r config.Route) error {
	if w.worker == nil {
		return nil
	}
	var route worker.Route
	setCalls(&route, r)
	if w.routes[name].TLS == r.TLS {
		route.TLS = w.tls[name] // so that the worker keeps its connections
	}
	err := w.worker.SetUpstream(name, route)
	if err == nil {
		w.routes[name], w.tls[name] = r, route.TLS
	}
	return err
}

// reportReady logs that the process admits jobs, and calls Ready.
func (p *Process) reportReady(now Running, engine *queue.Engine) {
	attributes := []any{"admin", now.Admin.String(), "store", engine.String(), "worker", p.Roles.Worker}
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

// reload runs the reloader until ctx ends. The returned function waits for its end.
func (p *Process) reload(ctx context.Context, shared parts, server *api.Server, work *work,
	listeners listeners, reread <-chan os.Signal) func() {
	if p.Reloader == nil {
		var ignoring sync.WaitGroup
		ignoring.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case <-reread:
					p.Log.Info("SIGHUP changes nothing: the process has no configuration file")
				}
			}
		})
		return ignoring.Wait
	}
	p.Reloader.set = func(ctx context.Context, b shaper.Baseline, tenants map[string]shaper.Overrides) error {
		server.SetStatusTenants(statusTenants(tenants))
		return shared.queue.SetPolicies(ctx, b, tenants)
	}
	p.Reloader.call, p.Reloader.secure = work.setUpstream, listeners.secure
	p.Reloader.record = func(e FileEntry) {
		server.RecordFile(ctx, e.Action, e.File, e.Outcome, e.Before, e.After, e.Detail)
	}
	p.Reloader.called = func(routes map[string]config.Route) { p.calls.Store(callsOf(routes)) }
	shared.registry.MustRegister(p.Reloader.good, p.Reloader.at)
	var reloading sync.WaitGroup
	reloading.Go(func() { p.Reloader.run(ctx, reread) })
	return reloading.Wait
}

// cause returns why ctx ended, nil if the process was asked to stop.
func cause(ctx context.Context) error {
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// open connects to the engine and opens the queue. It retries while Redis is unreachable, so that
// both can be started at once. Any other error ends it.
func (p *Process) open(ctx context.Context, registry *prometheus.Registry) (*queue.Engine, *queue.Queue,
	error) {
	var logged time.Time
	pause := 100 * time.Millisecond
	for {
		engine, q, err := p.tryOpen(ctx, registry)
		if err == nil || !errors.Is(err, queue.ErrUnavailable) || ctx.Err() != nil {
			return engine, q, err
		}
		if now := time.Now(); now.Sub(logged) >= logPause {
			text, attributes := "redis does not answer; retrying", []any{"error", err}
			if errors.Is(err, queue.ErrState) {
				text = "redis answers, but cannot serve now; retrying"
			}
			if advice := queue.Advice(err); advice != "" {
				attributes = append(attributes, "advice", advice)
			}
			p.Log.Warn(text, attributes...)
			logged = now
		}
		select {
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-time.After(pause):
			pause = min(2*pause, time.Second)
		}
	}
}

func (p *Process) tryOpen(ctx context.Context, registry *prometheus.Registry) (*queue.Engine, *queue.Queue,
	error) {
	engine, err := queue.OpenEngine(ctx, p.engineOptions(p.Log))
	if err != nil {
		return nil, nil, fmt.Errorf("open the store: %w", err)
	}
	// Metrics go into a registry of their own first: an attempt that fails must leave nothing
	// behind in the real one.
	attempt := prometheus.NewRegistry()
	options := p.queueOptions()
	options.Registerer = attempt
	q, err := queue.Open(ctx, engine, options)
	if errors.Is(err, queue.ErrEnvironment) {
		return nil, nil, errors.Join(p.foreign(err), engine.Close())
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the queue: %w", err), engine.Close())
	}
	if err := registry.Register(attempt); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("open the queue: metrics: %w", err), q.Close(),
			engine.Close())
	}
	return engine, q, nil
}

// foreign returns the problem with store.environment for this error.
func (p *Process) foreign(err error) error {
	return shaper.Problems{{Field: "store.environment", Value: cmp.Or(p.Config.Store.Environment, "not set"), Rule: err.Error()}}
}

// Preflight returns why the store of the configuration would refuse this process, and otherwise
// what it has found. It writes nothing there. Errors: those of queue.OpenEngine and
// queue.Preflight.
func (p *Process) Preflight(ctx context.Context) (found queue.Found, err error) {
	engine, err := queue.OpenEngine(ctx, p.engineOptions(slog.New(slog.DiscardHandler)))
	if err != nil {
		return found, fmt.Errorf("open the store: %w", err)
	}
	defer func() { _ = engine.Close() }()
	return queue.Preflight(ctx, engine, p.queueOptions())
}

// refused returns the error of a store that would refuse this process, so that it opens no listener
// first. Any other failure is left to open, which tries again.
func (p *Process) refused(ctx context.Context) error {
	if p.Config.Redis.URL == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, preflightWait)
	defer cancel()
	_, err := p.Preflight(ctx)
	switch {
	case errors.Is(err, queue.ErrEnvironment):
		return p.foreign(err)
	case errors.Is(err, queue.ErrSchema):
		return fmt.Errorf("open the queue: %w", err)
	}
	return nil
}

func (p *Process) engineOptions(log *slog.Logger) queue.EngineOptions {
	return queue.EngineOptions{
		URL:         p.Config.Redis.URL,
		DataDir:     p.Config.Redis.DataDir,
		Embedded:    p.Embedded,
		NoChild:     p.Roles.Split(),
		AllowUnsafe: p.Config.Redis.AllowUnsafe,
		Durability: queue.Durability{Replicas: int(p.Config.Redis.Durability.Replicas),
			Fsync: p.Config.Redis.Durability.Fsync, Timeout: p.Config.Redis.Durability.Timeout},
		Logger: log,
	}
}

func (p *Process) queueOptions() queue.Options {
	return queue.Options{
		Environment: p.Config.Store.Environment,
		Shards:      int(p.Config.Store.Shards),
		Defaults:    p.Config.Tenants.Defaults,
		Routes:      p.Config.Tenants.Routes,
		Tiers:       p.Config.Tenants.Tiers,
		PoolWeights: p.Config.Tenants.Weights,
		Tenants:     p.Config.Tenants.Named,
		Pools:       p.Config.Tenants.Pools,
		Retention: queue.Retention{
			Succeeded: p.Config.Retention.Succeeded, Dead: p.Config.Retention.Dead,
			Idempotency:  p.Config.Retention.Idempotency,
			DeadCapacity: p.Config.Retention.DeadCapacity, DeadBytes: p.Config.Retention.DeadBytes,
		},
		Store: queue.StoreBounds{Bytes: p.Config.Store.MaxBytes, Tenants: p.Config.Store.MaxTenants,
			FlowShare: p.Config.Store.FlowShare, Reserve: p.Config.Store.Reserve,
			Classes: classesOf(p.Config)},
		CompressOver: int(p.Config.Store.CompressOver),
		Encryption:   EncryptionOf(p.Config),
		Horizon:      p.Config.Worker.Horizon,
		Logger:       p.Log,
	}
}

// EncryptionOf returns the encryption that a configuration sets.
func EncryptionOf(c config.Config) queue.Encryption {
	return queue.Encryption{KeyFile: c.Codec.KeyFile, KeyCommand: c.Codec.Command, ReadOnly: c.Codec.ReadOnly}
}

// classesOf returns what guests, and the tenants of each tier that says so, may use of the store.
func classesOf(c config.Config) map[string]queue.ClassBound {
	classes := map[string]queue.ClassBound{}
	for name, b := range c.Tenants.Bounds {
		if b.StoreShare < 100 || b.TenantShare < 100 {
			classes[queue.ClassOfTier(name)] = queue.ClassBound{Bytes: b.StoreShare, Tenants: b.TenantShare}
		}
	}
	if slices.Contains(c.Auth.Modes(), auth.Guest) {
		classes[queue.ClassGuests] = queue.ClassBound{Bytes: c.Store.GuestShare, Tenants: c.Store.GuestTenants}
	}
	return classes
}
