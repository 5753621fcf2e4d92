// Package callback delivers a webhook to each ended job's callback URL.
//
// A completion that is handed over becomes an asynq task in a queue of its own, and asynq delivers
// it: after a failure again with growing pauses, for about a day. After the last failure asynq's
// archive keeps it. The way of a completion:
//
//	HandOver ──task with body and URL──► asynq in Redis ──► Guard ──► request, signed now ──► 2xx: delivered
//	                                       ▲                │          ├─ 410: archived
//	                                       └──── pause ◄────┼──────────┴─ anything else: retried, then archived
//	                                                        └─ not allowed: archived
//
// What it promises:
//
//   - A completion that was handed over is delivered at least once, or is in the archive. If it was
//     handed over twice within an hour of its delivery, it is delivered once.
//   - Every attempt carries the same webhook-id and body, and a timestamp and signatures (Standard
//     Webhooks) of its own.
//   - No request goes to an address that is not public, unless the operator listed the URL's prefix:
//     the address that is dialled is checked, no redirect is followed and no proxy is used.
//   - Of the answer only the status counts. Errors and log lines hold no URL, payload or secret.
//   - A receiver that answers slowly, or never, delays its own callbacks alone: see slots.
//
// What it does not promise: that a receiver gets an event once, or events in their order. The
// webhook-id identifies repetitions.
//
// An installation that never had a callback costs Redis one command a minute: asynq's server starts
// when there is a queue for it.
package callback

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/queue/burstlog"
	"github.com/7509e464/sluice/worker/internal/outbound"
)

// Queue is the asynq queue that the callbacks are in, for asynq's own tools.
const Queue = "sluice-callbacks"

// checkInterval is how often asynq's server polls while it has no tasks, give or take a half. A
// callback waits for it at most 0.75 s, an idle process sends two commands a second, and a stop takes
// at most 0.75 s more.
const checkInterval = 500 * time.Millisecond

// Service hands completions over to asynq and delivers them. Make it with New and start it once with
// Run. HandOver works without Run; then another process delivers.
type Service struct {
	cfg     Config
	client  *asynq.Client
	server  asynq.Config
	listed  *outbound.Client // for URLs under a listed prefix
	public  *outbound.Client // for all others
	slots   *slots
	metrics *metrics
	log     *slog.Logger
	given   *burstlog.Log // callbacks that were given up
	asynq   *burstlog.Log // lines of asynq
	wake    chan struct{} // filled when a task was made here
}

// New checks the configuration and prepares a service; nothing runs before Run. Its errors are
// shaper.Problems, which list every setting that breaks a rule, or those of registering the metrics.
func New(cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("callback: %w", err)
	}
	limits := newSlots(cfg.Concurrency)
	repeats := burstlog.New(cfg.Logger, slog.LevelWarn, "asynq", nil)
	s := &Service{
		cfg:    cfg,
		asynq:  repeats,
		client: asynq.NewClientFromRedisClient(cfg.Redis),
		server: asynq.Config{
			Queues:            map[string]int{Queue: 1},
			Concurrency:       limits.tasks(),
			RetryDelayFunc:    delay,
			IsFailure:         func(err error) bool { return !isPostponed(err) },
			TaskCheckInterval: checkInterval,
			ShutdownTimeout:   cfg.Grace,
			Logger:            asynqLogger{cfg.Logger, repeats},
			LogLevel:          asynq.DebugLevel, // the Logger decides
		},
		given: burstlog.New(cfg.Logger, slog.LevelWarn, "callbacks were given up; asynq's archive keeps them", nil),
		log:   cfg.Logger,
		wake:  make(chan struct{}, 1),
		slots: limits,
	}
	for _, c := range []**outbound.Client{&s.listed, &s.public} {
		var err error
		if *c, err = outbound.New(cfg.Timeout, cfg.Concurrency, cfg.Secrets); err != nil {
			return nil, fmt.Errorf("callback: %w", err)
		}
		tr := (*c).Transport
		tr.MaxIdleConns, tr.MaxIdleConnsPerHost, tr.IdleConnTimeout = cfg.Concurrency, 4, 30*time.Second
	}
	s.public.Dialer.Control = cfg.Guard.control
	var err error
	if s.metrics, err = newMetrics(cfg.Registerer, cfg.Redis, limits); err != nil {
		return nil, fmt.Errorf("callback: metrics: %w", err)
	}
	return s, nil
}

// Run delivers callbacks until the context ends. Then it takes no more of them, gives those that are
// running Config.Grace to end, puts the rest back for another process and returns nil.
func (s *Service) Run(ctx context.Context) error {
	if !s.await(ctx) {
		return nil
	}
	server := asynq.NewServerFromRedisClient(calm{s.cfg.Redis}, s.server)
	if err := server.Start(asynq.HandlerFunc(s.deliver)); err != nil {
		return fmt.Errorf("callback: %w", err)
	}
	<-ctx.Done()
	// Senders stop before receivers: what takes tasks, then the attempts, then asynq's parts that record
	// their ends (all in Shutdown), and the connections last.
	s.slots.stop()
	server.Shutdown()
	s.given.Flush()
	s.asynq.Flush()
	s.listed.Transport.CloseIdleConnections()
	s.public.Transport.CloseIdleConnections()
	return nil
}

// awaitEvery is how often a process without an asynq server polls for tasks of other processes.
const awaitEvery = time.Minute

// await waits until there is, or was, a callback to deliver. It is false when the context ends first.
func (s *Service) await(ctx context.Context) bool {
	inspector := asynq.NewInspectorFromRedisClient(s.cfg.Redis)
	for {
		// One command. The queue exists from its first task on. It may be empty: asynq's server must
		// also remove the tasks that it keeps after their delivery.
		queues, err := inspector.Queues()
		switch {
		case err != nil:
			s.log.Warn("callbacks of other processes cannot be looked for", "error", err)
		case slices.Contains(queues, Queue):
			return true
		}
		select {
		case <-s.wake:
			return true
		case <-time.After(awaitEvery*3/4 + rand.N(awaitEvery/2)):
		case <-ctx.Done():
			return false
		}
	}
}
