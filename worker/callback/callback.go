// Package callback delivers a webhook to each ended job's callback URL.
//
// A completion that is handed over becomes an asynq task in a queue of its own, and asynq delivers
// it: after a failure again with growing pauses, for about a day. After the last failure asynq's
// archive keeps it. The way of a completion:
//
//	HandOver ──task with body and URL──► asynq in Redis ──► Receivers ──► request, signed now ──► 2xx:
//	delivered
//	                                       ▲                │          ├─ 410: archived
//	                                       └──── pause ◄────┼──────────┴─ anything else: retried,
//	                                       then archived
//	                                                        └─ not allowed: archived
//
// What it promises:
//
//   - A completion that was handed over is delivered at least once, or is in the archive. If it was
//     handed over twice within an hour of its delivery, it is delivered once.
//   - Every attempt carries the same webhook-id and body, and a timestamp and signatures (Standard
//     Webhooks) of its own.
//   - No request goes to an address that is not public, unless the operator listed the URL's
//     prefix, or registered it for the tenant: the address that is dialled is checked, no redirect
//     is followed and no proxy is used. Of the answer only the status counts. Errors and log lines
//     hold no URL, payload or secret. A receiver that answers slowly, or never, delays its own
//     callbacks alone: see slots.
//
// What it does not promise: that a receiver gets an event once, or events in their order. The
// webhook-id identifies repetitions.
//
// In a Redis Cluster the tasks are in several queues, each with a server of its own, so a node that
// hangs delays the callbacks of its own queues alone: see queues.
//
// Each queue without callbacks costs Redis one command a minute: asynq's server of a queue starts
// when there are tasks in it.
package callback

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// checkInterval is how often asynq's server polls while it has no tasks, give or take a half. A
// callback waits for it at most 0.75 s, an idle server sends two commands a second, and a stop
// takes at most 0.75 s more.
const checkInterval = 500 * time.Millisecond

// Service hands completions over to asynq and delivers them. Make it with New and start it once
// with Run. HandOver works without Run; then another process delivers.
type Service struct {
	cfg     Config
	client  *asynq.Client
	server  asynq.Config // of each queue, but for its name
	queues  []*asynqQueue
	listed  *outbound.Client // without a proxy, for URLs under a listed prefix
	own     *outbound.Client // without a proxy, for URLs under an endpoint of the tenant
	public  *outbound.Client // without a proxy, for all others
	proxied *outbound.Client // for URLs that Config.Proxy has a proxy for
	slots   *slots
	metrics *metrics
	log     *slog.Logger
	failing *burstlog.Log // attempts that failed, of callbacks that are tried again
	given   *burstlog.Log // callbacks that were given up
	deleted *burstlog.Log // those that the archive has not
	archive *archive
	asynq   *burstlog.Log    // lines of asynq
	wake    chan *asynqQueue // queues that got their first task here
	started atomic.Bool
}

// New checks the configuration and prepares a service; nothing runs before Run. Its error wraps
// shaper.Problems, which lists every setting that breaks a rule, or is that of registering the
// metrics.
func New(cfg Config) (*Service, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("callback: %w", err)
	}
	limits := newSlots(cfg.Concurrency)
	client := func(proxy string) *outbound.Client {
		c := outbound.New("process", "receiver", outbound.Options{
			Timeout: cfg.Timeout, Connections: cfg.Concurrency, IdleTimeout: 30 * time.Second,
			MaxAge: 5 * time.Minute, Secrets: cfg.Secrets, Proxy: proxy,
		})
		c.Transport.MaxIdleConns, c.Transport.MaxIdleConnsPerHost = cfg.Concurrency, 4
		return c
	}
	repeats := burstlog.New(cfg.Logger, slog.LevelWarn, "asynq", nil)
	s := &Service{
		cfg:    cfg,
		asynq:  repeats,
		client: asynq.NewClientFromRedisClient(unlisted{cfg.Redis}),
		server: asynq.Config{
			Concurrency:       limits.most + limits.line,
			RetryDelayFunc:    delay,
			IsFailure:         isFailure,
			TaskCheckInterval: checkInterval,
			ShutdownTimeout:   cfg.Grace,
			Logger:            asynqLogger{cfg.Logger, repeats},
			LogLevel:          asynq.DebugLevel, // the Logger decides
		},
		listed:  client(outbound.NoProxy),
		own:     client(outbound.NoProxy),
		public:  client(outbound.NoProxy),
		proxied: client(cfg.Proxy),
		failing: burstlog.New(cfg.Logger, slog.LevelWarn, "attempts at callbacks failed; they are tried again", nil),
		given: burstlog.New(cfg.Logger, slog.LevelWarn, "callbacks were given up; asynq's archive keeps them",
			nil),
		deleted: burstlog.New(cfg.Logger, slog.LevelWarn, "callbacks were given up and deleted: their tenant has its part of "+
			"asynq's archive", nil),
		archive: newArchive(),
		log:     cfg.Logger,
		queues:  queuesOf(cfg.Redis),
		slots:   limits,
	}
	s.wake = make(chan *asynqQueue, len(s.queues))
	for why, direct := range map[trust]*outbound.Client{listed: s.listed, registered: s.own, anybody: s.public} {
		direct.Dialer.Control = cfg.Receivers.control(why)
	}
	s.proxied.Dialer.Control = nil // it dials the proxy, which the operator names
	var err error
	if s.metrics, err = newMetrics(cfg.Registerer, cfg.Redis, limits); err != nil {
		return nil, fmt.Errorf("callback: metrics: %w", err)
	}
	return s, nil
}

// Run delivers callbacks until ctx ends. Then it starts no more of them, gives the running ones
// Config.Grace to end, puts the rest back for another process and returns nil. It fails if asynq's
// server cannot start, or if it is called a second time.
func (s *Service) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errors.New("callback: Run was called twice")
	}
	servers, err := s.serve(ctx)
	// Senders stop before receivers: what takes tasks, then the attempts, then asynq's parts that
	// record their ends (all in Shutdown), and the connections last.
	s.slots.stop()
	var stopping sync.WaitGroup
	for _, server := range servers {
		stopping.Go(server.Shutdown)
	}
	stopping.Wait()
	s.failing.Flush()
	s.given.Flush()
	s.deleted.Flush()
	s.asynq.Flush()
	for _, client := range []*outbound.Client{s.listed, s.own, s.public, s.proxied} {
		client.Close()
	}
	return err
}

// Config is the settings of a Service. Redis, Receivers and Job must be set. The zero value of any
// other field means its default.
type Config struct {
	Redis     redis.UniversalClient // where asynq keeps the tasks; the caller closes it
	Receivers *Receivers            // decides which URLs may be called
	// Secrets are Standard Webhooks secrets, "whsec_" and base64, the newest first. A request is
	// signed with each of them, so that receivers may move from one to the next; without any it is
	// not signed.
	Secrets []string
	// Of returns the secrets and endpoints that a tenant has of its own, for each attempt: its
	// secrets sign in place of Secrets. nil: no tenant has any.
	Of func(ctx context.Context, tenant string) (queue.TenantCallbacks, error)
	// Proxy is "none", which is the default; "env", for HTTPS_PROXY, HTTP_PROXY and NO_PROXY; or an
	// http URL. A proxy connects to the target itself, so the address of a target that is not
	// listed is checked by resolving its name before the proxy is asked for it.
	Proxy       string
	Job         func(queue.Job) ([]byte, error) // the job as JSON, as clients see it
	Sealer      queue.Sealer                    // encrypts the tasks; the zero value does not
	Timeout     time.Duration                   // of one attempt; default 10s
	MaxAttempts int                             // at least 2; default 15, which take about a day
	Concurrency int                             // attempts at once; default 64
	// Grace is how long running attempts may take to end after the stop; default 10s.
	Grace      time.Duration
	Registerer prometheus.Registerer // nil: metrics are not registered
	Logger     *slog.Logger          // default slog.Default()
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 15)
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate lists every setting that breaks a rule; the defaults are filled in by then.
func (c Config) validate() error {
	var ps shaper.Problems
	ps.Check(c.Redis != nil, "redis", nil, "must be set")
	ps.Check(c.Receivers != nil, "receivers", nil, "must be set")
	ps.Check(c.Job != nil, "job", nil, "must be set")
	for i, secret := range c.Secrets {
		ps.Check(outbound.ValidSecret(secret), fmt.Sprintf("secrets[%d]", i), "(hidden)",
			"must be whsec_ and base64")
	}
	_, err := outbound.ParseProxy(c.Proxy)
	ps.Check(err == nil, "proxy", "(hidden)", fmt.Sprint(err))
	ps.Check(c.Timeout > 0, "timeout", c.Timeout, "must be positive")
	// asynq archives a task without retries when its server crashes.
	ps.Check(c.MaxAttempts >= 2, "max_attempts", c.MaxAttempts, "must be at least 2")
	ps.Check(c.Concurrency > 0, "concurrency", c.Concurrency, "must be positive")
	ps.Check(c.Grace > 0, "grace", c.Grace, "must be positive")
	return ps.Err()
}

// asynqLogger passes asynq's log lines on, repeated ones once a minute. They name tasks by their
// ids and hold neither payloads nor URLs. Errors and fatal errors of asynq are warnings here: Redis
// did not answer, and asynq retries.
type asynqLogger struct {
	log     *slog.Logger
	repeats *burstlog.Log
}

var _ asynq.Logger = asynqLogger{}

func (l asynqLogger) Debug(args ...any) { l.log.Debug("asynq: " + fmt.Sprint(args...)) }
func (l asynqLogger) Info(args ...any)  { l.Debug(args...) }
func (l asynqLogger) Warn(args ...any) {
	// Those about a task would each be a kind of their own, and hide others.
	kind, _, _ := strings.Cut(fmt.Sprint(args...), "task id=")
	l.repeats.Add(burstlog.Key{Kind: strings.TrimSpace(kind)}, 1)
}
func (l asynqLogger) Error(args ...any) { l.Warn(args...) }
func (l asynqLogger) Fatal(args ...any) { l.Warn(args...) }
