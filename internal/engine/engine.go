// Package engine connects to a Redis, or starts one: a given Redis, a private redis-server, or
// miniredis in this process.
package engine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/7509e464/sluice/internal/store"
)

// Errors of an engine; package queue exports and describes them.
var (
	ErrUnsafe   = errors.New("queue: this redis is not safe for a queue")
	ErrNoEngine = errors.New("queue: no redis")
)

// Engine is a running Redis with its clients. Each has a connection pool of its own.
type Engine struct {
	Fast, Patient redis.UniversalClient // fails fast; waits and retries longer
	Reads         redis.UniversalClient // fails fast; for what clients and operators read
	Durable       redis.UniversalClient // waits for replicas, as Durability says; else Fast
	Durability    Durability
	Version       string  // of Redis at the start; empty: the embedded engine
	Describe      string  // kind, version and address, for logs
	Server        *Server // of the private engine; nil without one

	product string                      // redis or valkey
	unsafe  string                      // why it may lose jobs, as found at the start
	scheme  string                      // of the URL; empty without one
	address string                      // of the URL, without credentials
	refusal func(context.Context) error // see target; nil without a URL
	stop    func() error

	way *distance // of Durable

	cancel     context.CancelFunc // ends recheck; nil where none runs
	rechecking sync.WaitGroup
}

// Options holds the settings of an engine.
type Options struct {
	Durability  Durability
	AllowUnsafe bool         // log settings that are unsafe for a queue instead of ErrUnsafe
	Logger      *slog.Logger // required
}

// Close closes the connections, also those in use, and stops what this process started.
func (e *Engine) Close() error {
	if e.cancel != nil {
		e.cancel()
	}
	err := errors.Join(e.Fast.Close(), e.Reads.Close(), e.Patient.Close())
	e.rechecking.Wait()
	if e.Durability.On() {
		err = errors.Join(err, e.Durable.Close())
	}
	if e.stop != nil {
		err = errors.Join(err, e.stop())
	}
	return err
}

// newEngine returns an engine without durability whose clients the function makes.
func newEngine(client func(patience) redis.UniversalClient) *Engine {
	e := &Engine{Reads: client(reading), Patient: client(longTimed), way: &distance{}}
	fast := failFast
	fast.way = e.way
	e.Fast = client(fast)
	e.Durable = e.Fast
	return e
}

// Near reports whether Redis answers Durable soon.
func (e *Engine) Near() bool { return e.way.near() }

// Way is what the shortest exchange with Durable of late took; 0 if there was none.
func (e *Engine) Way() time.Duration { return e.way.least() }

// OpenURL connects to the Redis of the URL and checks its settings. Errors: ErrNoEngine, ErrUnsafe.
func OpenURL(ctx context.Context, redisURL string, o Options) (*Engine, error) {
	t, err := locate(redisURL)
	if err != nil {
		return nil, err
	}
	e := newEngine(t.client)
	if o.Durability.On() {
		e.Durability, e.way = o.Durability, &distance{}
		e.Durable = o.Durability.durable(t.client, e.way)
	}
	e.scheme, _, _ = strings.Cut(redisURL, "://")
	e.address, e.refusal = address(redisURL), t.refusal
	return e.accept(ctx, o, "redis", " at "+e.address)
}

// accept checks the Redis of the engine, describes it, and closes the engine on an error.
func (e *Engine) accept(ctx context.Context, o Options, name, where string) (_ *Engine, err error) {
	if e.Version, err = e.check(ctx, o); err != nil {
		if e.refusal != nil && store.FaultOf(err) == store.FaultTransport {
			if why := e.refusal(ctx); why != nil && store.Advice("", why) != "" {
				err = why
			}
		}
		return nil, errors.Join(e.Advise(err), e.Close())
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	e.cancel = cancel
	e.rechecking.Go(func() { e.recheck(ctx, o) })
	e.Describe = strings.Replace(name, "redis", e.product, 1) + " " + e.Version + where
	return e, nil
}

// patience is how long a client waits before it gives up.
type patience struct {
	dial, answer time.Duration
	wait         time.Duration // for replicas, beside answer
	retries      int           // -1: none
	pool         int
	way          *distance // to Redis, of all its nodes; nil: each has its own
}

var (
	failFast  = patience{dial: 500 * time.Millisecond, answer: 500 * time.Millisecond, retries: 1, pool: 64}
	longTimed = patience{dial: time.Second, answer: 3 * time.Second, retries: 3, pool: 96}
	// The pool of reads is small. Redis serves its connections in turns, so a write waits for at
	// most one exchange of each.
	reading = patience{dial: failFast.dial, answer: failFast.answer, retries: failFast.retries, pool: 24}
)

// protocol is RESP2. With RESP3 go-redis looks for push messages before every answer and in every
// connection that it takes from the pool.
const protocol = 2

// noNotifications keeps go-redis from looking an address up in DNS whenever a client is made.
var noNotifications = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

// oneRedis returns a client of one Redis, whose address and credentials are in the options.
func oneRedis(opt redis.Options, p patience, d dial) *redis.Client {
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = p.dial, p.answer+p.wait, p.answer, p.answer
	opt.PoolSize, opt.ContextTimeoutEnabled, opt.DisableIdentity, opt.Protocol = p.pool, true, true, protocol
	opt.MaxRetries, opt.MaxRetryBackoff, opt.Dialer = p.retries, 100*time.Millisecond, d.orUnconnected()
	opt.MaintNotificationsConfig = noNotifications
	c := redis.NewClient(&opt)
	c.AddHook(newBulk(p))
	return c
}
