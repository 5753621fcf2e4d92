// Package engine connects to a Redis, or starts one: a given Redis, a private redis-server, or
// miniredis in this process.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// Errors of an engine; package queue exports and describes them.
var (
	ErrUnsafe   = errors.New("queue: this redis is not safe for a queue")
	ErrNoEngine = errors.New("queue: no redis")
)

// Engine is a running Redis with two clients.
type Engine struct {
	Fast, Patient redis.UniversalClient // fails fast; waits and retries longer
	Durable       redis.UniversalClient // waits for replicas, as Durability says; else Fast
	Durability    Durability
	Histories     *Histories // that Patient has met
	Version       string     // of Redis at the start; empty: the embedded engine
	Describe      string     // kind, version and address, for logs
	Server        *Server    // of the private engine; nil without one

	scheme string // of the URL; empty without one
	stop   func() error
}

// Options holds the settings of an engine.
type Options struct {
	Durability  Durability
	AllowUnsafe bool         // log settings that are unsafe for a queue instead of ErrUnsafe
	Logger      *slog.Logger // required
}

// Close closes the connections, also those in use, and stops what this process started.
func (e *Engine) Close() error {
	err := errors.Join(e.Fast.Close(), e.Patient.Close())
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
	histories := &Histories{}
	patient := longTimed
	patient.connected = histories.connected
	e := &Engine{Fast: client(failFast), Patient: client(patient), Histories: histories}
	e.Durable = e.Fast
	return e
}

// OpenURL connects to the Redis of the URL and checks its settings. Errors: ErrNoEngine, ErrUnsafe.
func OpenURL(ctx context.Context, redisURL string, o Options) (*Engine, error) {
	client, err := Parse(redisURL)
	if err != nil {
		return nil, err
	}
	e := newEngine(client)
	if o.Durability.On() {
		e.Durability, e.Durable = o.Durability, o.Durability.durable(client)
	}
	e.scheme, _, _ = strings.Cut(redisURL, "://")
	return e.accept(ctx, o, "redis", " at "+address(redisURL))
}

// accept checks the Redis of the engine, describes it, and closes the engine on an error.
func (e *Engine) accept(ctx context.Context, o Options, name, where string) (_ *Engine, err error) {
	if e.Version, err = e.check(ctx, o); err != nil {
		return nil, errors.Join(e.Advise(err), e.Close())
	}
	e.Describe = name + " " + e.Version + where
	return e, nil
}

// patience is how long a client waits before it gives up.
type patience struct {
	dial, answer time.Duration
	wait         time.Duration                            // for replicas, beside answer
	retries      int                                      // -1: none
	connected    func(context.Context, *redis.Conn) error // nil, or called for each connection
	pool         int
}

var (
	failFast  = patience{dial: 500 * time.Millisecond, answer: 500 * time.Millisecond, retries: 1, pool: 64}
	longTimed = patience{dial: time.Second, answer: 3 * time.Second, retries: 3, pool: 96}
)

// protocol is RESP2. With RESP3 go-redis looks for push messages before every answer and in every
// connection that it takes from the pool.
const protocol = 2

// noNotifications keeps go-redis from looking an address up in DNS whenever a client is made.
var noNotifications = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

// Parse checks a URL and returns a function that makes a client. Parsing has no effect.
func Parse(redisURL string) (func(patience) redis.UniversalClient, error) {
	scheme, rest, _ := strings.Cut(redisURL, "://")
	switch scheme {
	case "redis", "rediss", "unix":
		opt, err := redis.ParseURL(redisURL)
		if err != nil {
			return nil, hideURL(err)
		}
		if opt.Addr == "" {
			return nil, errors.New("a Redis URL needs a host")
		}
		return func(p patience) redis.UniversalClient { return oneRedis(*opt, p, plain(p, opt.TLSConfig)) }, nil
	case "redis+cluster", "rediss+cluster":
		opt, err := redis.ParseClusterURL(strings.TrimSuffix(scheme, "+cluster") + "://" + rest)
		if err != nil {
			return nil, hideURL(err)
		}
		return func(p patience) redis.UniversalClient { return newClusterClient(*opt, p) }, nil
	case "redis+sentinel", "rediss+sentinel":
		opt, err := redis.ParseFailoverURL(strings.TrimSuffix(scheme, "+sentinel") + "://" + rest)
		if err != nil {
			return nil, hideURL(err)
		}
		return func(p patience) redis.UniversalClient {
			o := *opt
			o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = p.dial, p.answer+p.wait, p.answer, p.answer
			o.PoolSize, o.ContextTimeoutEnabled, o.DisableIdentity, o.Protocol = p.pool, true, true, protocol
			o.OnConnect = p.connected
			o.MaxRetries, o.Dialer = p.retries, plain(p, o.TLSConfig).orUnconnected()
			return redis.NewFailoverClient(&o)
		}, nil
	}
	return nil, errors.New("a Redis URL starts with redis://, rediss://, unix://, redis+cluster:// or " +
		"redis+sentinel://")
}

// oneRedis returns a client of one Redis, whose address and credentials are in the options.
func oneRedis(opt redis.Options, p patience, d dial) *redis.Client {
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = p.dial, p.answer+p.wait, p.answer, p.answer
	opt.PoolSize, opt.ContextTimeoutEnabled, opt.DisableIdentity, opt.Protocol = p.pool, true, true, protocol
	opt.MaxRetries, opt.MaxRetryBackoff, opt.Dialer = p.retries, 100*time.Millisecond, d.orUnconnected()
	opt.MaintNotificationsConfig, opt.OnConnect = noNotifications, p.connected
	return redis.NewClient(&opt)
}

// hideURL keeps a password in a URL that cannot be parsed out of messages.
func hideURL(err error) error {
	var quoted *url.Error // which repeats the whole URL
	if errors.As(err, &quoted) || strings.Contains(err.Error(), "@") {
		return errors.New("not a Redis URL (not shown, for it may hold a password)")
	}
	return fmt.Errorf("not a Redis URL: %w", err)
}

// address is a parsable URL without its user, password and options.
func address(redisURL string) string {
	u, err := url.Parse(redisURL)
	if err != nil {
		return "an unknown address"
	}
	return u.Host + u.Path
}
