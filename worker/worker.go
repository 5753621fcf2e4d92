// Package worker drains the queue. It polls the shards that it owns, leases the jobs that are
// stamped to leave soon, and delivers each one to its route at its stamp.
//
// What it promises:
//
//   - A job leaves neither before its stamp, as exactly as the shard's clock is sampled, nor more
//     than a horizon after it. A job whose lease cannot be kept does not leave at all.
//   - At most Config.Concurrency jobs are held at once. Only polls that take Redis longer than
//     250 ms may bring more.
//   - A shard that does not answer delays no other.
//   - A delivery that has ended is settled even after an outage of Redis, as long as the process
//     lives.
//   - An idle worker costs one poll per shard in fifteen seconds.
//
// It changes nothing of the process (processors, scheduling, signals, global loggers) unless the
// program calls ReserveProcessor or ShortenSlices.
//
// What it leaves to others: the rate. The scripts stamp every departure, so any number of workers
// may poll one shard and the rate stays exact. Ownership only saves redundant polls.
//
// The way of a job through the package:
//
//	shard ──poll──► lease ──► pacer ──at its stamp──► deliverer ──► settler ──► Redis
//	(goroutine)               (one thread, sorted)    (goroutine)   (batches)
//	                            └─ too late, lease nearly over, stopping: released ─► settler
//
// A slot is reserved before the poll that may use it and is freed when the job is settled.
//
// A route is one of three things. An upstream receives an HTTP request. A Go handler, usually an
// asynq.ServeMux, is called in this process. An asynq queue receives the job as a task, for a fleet
// of asynq servers that exists already; package worker/handoff lets that fleet report how the tasks
// end.
//
// # Go handlers
//
// Handlers written for asynq run unchanged if they use their context, the task's type and its
// payload. A nil result, asynq.SkipRetry and Config.RetryDelay mean what they mean there. These
// differ:
//
//   - asynq.RevokeTask ends the job as succeeded and keeps the error. asynq, too, neither retries
//     nor archives a revoked task.
//   - asynq.ErrHandlerNotFound makes the job dead at once, where asynq would retry it.
//   - asynq.GetTaskID, GetRetryCount, GetMaxRetry and GetQueueName return false, because asynq's
//     server sets them. Use Delivery instead.
//   - asynq.Task.ResultWriter is nil. A handler that uses it panics, and the job's error says so.
//   - The retries, their number and their pauses are the route's, and each passes through the job's
//     bucket again.
//
// A handler that knows what its job cost reports it with SetCost.
//
// As in asynq, an attempt has failed when its timeout is over, whether or not the handler has
// returned. A handler should obey its context, and must allow for more than one delivery of a job.
package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/internal/spans"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

const (
	// settleTail is what Run adds to the grace so that the deliveries it cut off are still settled.
	settleTail = 500 * time.Millisecond
	// handover bounds how long a stopping worker still sends the jobs that it holds. After about
	// that time the others have noticed that it left, and poll its shards.
	handover = 50 * time.Millisecond
	// leaveWithin bounds the call that signs off. Without it the others take the shards a little
	// later.
	leaveWithin = 2 * time.Second
)

// broker is what the worker needs of the queue beside its consumers. Every method may be called
// again after an error; see queue.Queue for the contracts.
type broker interface {
	Shards() int
	OneNode() bool
	PoolOf(route string) string
	Heartbeat(ctx context.Context, worker string, ttl time.Duration) (queue.Heartbeat, error)
	Leave(ctx context.Context, worker string) error
	Wakes(ctx context.Context) <-chan queue.Wake
	Extend(ctx context.Context, leases []queue.LeaseRef, lease time.Duration) (lost []queue.LeaseRef, err error)
	Settle(ctx context.Context, batch []queue.Settlement) (results []queue.SettleResult, err error)
	ReportLateness(ctx context.Context, worker string, l reports.Lateness) error
	ReportRoutes(ctx context.Context, worker string, routes map[string]reports.RouteLoad) error
}

// queueBroker is the broker of a queue.
type queueBroker struct {
	*queue.Broker
	*reports.Reports
	queue *queue.Queue
}

// PoolOf implements broker.
func (b queueBroker) PoolOf(route string) string { return b.queue.PoolOf(route) }

// brokerOf returns the broker of a queue and its consumers.
func brokerOf(q *queue.Queue) (broker, func(worker string, shard int) consumer) {
	b := q.Broker()
	consumers := func(worker string, shard int) consumer { return b.Consumer(worker, shard) }
	return queueBroker{b, reports.New(store.Of(q)), q}, consumers
}

// consumer polls one shard. One goroutine uses it at a time, and after an error repeats the poll
// until it is answered.
type consumer interface {
	Tick(ctx context.Context, o queue.TickOptions) (queue.Tick, error)
	Clock(ctx context.Context) (queue.Reading, error)
	Resign(ctx context.Context) error
}

// deliverer delivers one job to its route and returns how that ended: with shaper.Succeed, Retry,
// Die or Hold, or without an event when the lease continues and another process settles it. It
// obeys the context, which ends when the worker's grace is over. It may leave the error's At to the
// worker. The lease's TraceParent is the delivery's own if there are traces. Many goroutines call
// it at once. A panic counts as a failed attempt.
type deliverer interface {
	Deliver(ctx context.Context, l *queue.Lease) queue.Settlement
}

// Worker delivers the jobs of one process. Make it with New and start it once with Run.
type Worker struct {
	// Many fields, because they are its parts: it owns each, and most of them call back into it.
	id         string
	cfg        Config
	traces     *spans.Tracer
	broker     broker
	consumers  func(worker string, shard int) consumer
	deliverers map[string]deliverer
	newWaiter  func() waiter

	watch    stopwatch
	log      *slog.Logger
	metrics  *metrics
	errors   *errorLog
	capacity *capacity
	window   *window
	pacer    *pacer
	settler  *settler
	lateness lateness
	loads    routeLoads
	outbox   *outbox // nil without Config.Callbacks
	started  atomic.Bool
	stopping atomic.Bool  // no further leases: Run is about to end
	cutOff   atomic.Int64 // deliveries that did not end within the grace
}

// New checks the configuration and prepares a worker; nothing runs before Run. Its error wraps
// shaper.Problems, which lists every setting that breaks a rule, or is that of registering the
// metrics. The caller closes q, after Run has returned.
func New(q *queue.Queue, cfg Config) (*Worker, error) {
	b, consumers := brokerOf(q)
	w, err := newWorker(b, consumers, newWaiter, cfg)
	if err == nil && cfg.Callbacks != nil {
		w.outbox = newOutbox(w.id, b.Shards(), q.Broker(), cfg.Callbacks, w.errors)
	}
	return w, err
}

func newWorker(
	b broker, consumers func(string, int) consumer, newWaiter func() waiter, cfg Config,
) (*Worker, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("worker: %w", err)
	}
	w := &Worker{
		traces:     spans.New(cfg.Traces),
		id:         rand.Text(),
		cfg:        cfg,
		broker:     b,
		consumers:  consumers,
		deliverers: make(map[string]deliverer, len(cfg.Routes)),
		newWaiter:  newWaiter,
		watch:      stopwatch{start: time.Now()},
		capacity:   newCapacity(cfg.Concurrency, slices.Sorted(maps.Keys(cfg.Routes))...),
		window:     newWindow(),
		loads:      make(routeLoads, len(cfg.Routes)),
	}
	w.log = cfg.Logger.With("worker", w.id)
	w.errors = newErrorLog(w.log, w.stopped)
	w.settler = newSettler(b, w.errors, w.settled)
	for name, route := range cfg.Routes {
		w.loads[name] = new(routeLoad)
		w.deliverers[name] = w.newDeliverer(name, route)
	}
	w.metrics = newMetrics(w)
	if cfg.Registerer != nil {
		if err := cfg.Registerer.Register(w.metrics.registry); err != nil {
			return nil, fmt.Errorf("worker: metrics: %w", err)
		}
	}
	return w, nil
}

func (w *Worker) newDeliverer(name string, route Route) deliverer {
	switch {
	case route.Handler:
		return newHandlerDeliverer(route, w.cfg, w.log, w.errors.panics)
	case route.Asynq != nil:
		// The client keeps only the names of its queues, so each route may have its own.
		client := asynq.NewClientFromRedisClient(w.cfg.AsynqClient)
		return &asynqDeliverer{route: route, lease: w.cfg.Lease, client: client, leases: w.broker}
	}
	load := w.loads[name]
	costs := answerCosts{
		pooled: func() bool { return w.broker.PoolOf(name) != "" },
		ignored: func(l *queue.Lease, why error) {
			load.costs.ignored.Add(1)
			w.errors.costs.Add(burstlog.Key{Route: name, Kind: why.Error()}, 1, "job", l.ID)
		},
	}
	var h deliverer
	if route.Forward != nil {
		f := newForwarder(route, costs)
		f.relays, _ = w.broker.(relays)
		h, load.upstream, load.streams = f, f.upstream, f.streams
	} else {
		d := newHTTPDeliverer(route, costs)
		h, load.upstream = d, d.upstream
	}
	if route.Breaker.Failures > 0 {
		return newBreaker(name, route, h, w.watch, load, w.log, w.errors.breakers)
	}
	return h
}

// Run blocks. It works until ctx ends, then stops gracefully and returns nil, at the latest about
// half a second after Config.Grace. It fails only when it is called a second time.
//
// It stops in this order, and for these reasons:
//
//  1. Polls lease no more. Jobs whose stamps are within the next 50 ms still leave: no other worker
//     could send them in time. Later ones are released at once. Polls that Redis has not answered
//     are repeated until they are, because they may have leased jobs.
//  2. The worker leaves the list of live workers, so that its shards have new owners while its last
//     deliveries still run. It does not wait for polls that a node leaves unanswered.
//  3. Running deliveries may end by themselves within Config.Grace; their leases are extended.
//     The others are cut off, and other workers deliver them again, which spends no attempt.
//     Forwarded requests that must not be sent again have failed.
//  4. Completions are handed over and callbacks sent until ctx ends. The rest is left to other
//     workers, or to the next start.
//  5. The settler goes on until nothing is left to settle, or half a second after the grace. Leases
//     left then expire.
func (w *Worker) Run(ctx context.Context) error {
	if w.started.Swap(true) {
		return errors.New("worker: Run was called twice")
	}
	// Redis calls and deliveries outlive ctx: they have their own ends.
	talk, hangUp := context.WithCancel(context.WithoutCancel(ctx))
	defer hangUp()
	work, cutOff := context.WithCancel(talk)
	defer cutOff()
	deliver, miss := func(j *job) { w.deliver(work, j) }, func(j *job) { w.giveBack(j, true) }
	w.pacer = newPacer(w.watch, w.newWaiter(), w.cfg.Horizon, w.cfg.margin(), deliver, miss)
	go w.pacer.run()
	var talking sync.WaitGroup
	w.talk(ctx, talk, &talking)
	d, dispatched := newDispatcher(w), make(chan struct{})
	go func() {
		defer close(dispatched)
		d.run(ctx, work)
	}()
	w.log.Info("worker started", "routes", len(w.deliverers), "concurrency", w.cfg.Concurrency)

	<-ctx.Done()
	w.stopping.Store(true)
	d.wakeAll()
	w.log.Info("worker is stopping", "leases", w.capacity.count(false))
	defer time.AfterFunc(w.cfg.Grace, cutOff).Stop()
	end := w.watch.now().add(w.cfg.Grace + settleTail)
	for _, j := range w.pacer.stop(min(handover, w.cfg.Horizon, w.cfg.Grace/2)) {
		w.giveBack(j, false)
	}
	select {
	case <-dispatched:
	case <-time.After(pollPatience): // a node hangs; the shards on others must not wait for it
	}
	err := bounded(work, leaveWithin, func(ctx context.Context) error { return w.broker.Leave(ctx, w.id) })
	if err != nil {
		w.log.Warn("the worker could not sign off; others take its shards when its last heartbeat is too old",
			"error", err)
	}
	<-dispatched
	for w.capacity.taken() > 0 && w.watch.now() < end {
		time.Sleep(time.Millisecond)
	}
	left := w.capacity.taken()
	hangUp()
	<-w.pacer.ended
	talking.Wait()
	w.errors.end()
	for _, load := range w.loads {
		if load.upstream != nil {
			load.upstream.Load().Close()
		}
	}
	if left > 0 {
		w.log.Warn("worker stopped with unsettled leases, which will expire", "leases", left)
		return nil
	}
	w.log.Info("worker stopped", "cut_off", w.cutOff.Load())
	return nil
}

// talk starts what calls Redis beside the dispatcher. Callbacks end with ctx, the others with talk.
func (w *Worker) talk(ctx, talk context.Context, g *sync.WaitGroup) {
	g.Go(func() { w.settler.run(talk) })
	g.Go(func() { w.keepLeases(talk) })
	g.Go(func() { w.report(talk) })
	if w.outbox == nil {
		return
	}
	g.Go(func() { w.outbox.run(ctx) })
	g.Go(func() {
		if err := w.cfg.Callbacks.Run(ctx); err != nil {
			w.log.Error("callbacks are not sent", "error", err)
		}
	})
}
