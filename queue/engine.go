package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// EngineOptions say where Redis is.
type EngineOptions struct {
	URL         string // as ParseURL reads it; empty: a private redis-server, or the embedded engine
	DataDir     string // of the private redis-server
	Embedded    bool   // in-process miniredis: jobs are lost on exit
	NoChild     bool   // refuse a private redis-server: the roles are split over processes
	AllowUnsafe bool   // accept a Redis that evicts or has no append-only file
	Logger      *slog.Logger
}

// EngineKind is where the data lives.
type EngineKind string

// The engines.
const (
	EngineRedis    EngineKind = "redis"    // a given Redis
	EnginePrivate  EngineKind = "private"  // a redis-server child of this process
	EngineEmbedded EngineKind = "embedded" // miniredis in this process
)

// ErrUnsafe means that the Redis there cannot keep the promises; the message says what to set.
var ErrUnsafe = errors.New("queue: this redis is not safe for a queue")

// ErrNoEngine means that no engine can be had with these options; the message says what to do.
var ErrNoEngine = errors.New("queue: no redis")

// Engine is a running Redis with the clients to reach it. Intake fails fast, because a client waits for it; workers are patient,
// because they have nothing better to do than to try again.
type Engine struct {
	kind     EngineKind
	describe string
	scheme   string // of the URL; empty for the other engines
	version  string // of Redis, as found at the start; empty in process
	fast     redis.UniversalClient
	patient  redis.UniversalClient
	child    *child // of the private engine
	stop     func() error
	closing  sync.Once
	closed   error
}

// Kind is where the data lives.
func (e *Engine) Kind() EngineKind { return e.kind }

// String describes the engine for a person, without secrets, for example "redis 7.0.15 at 127.0.0.1:6379/0".
func (e *Engine) String() string { return e.describe }

// Client is the patient client, for tools that look at Redis itself.
func (e *Engine) Client() redis.UniversalClient { return e.patient }

// Failed receives an error when the private redis-server has ended and cannot be started again. It never does for other engines.
func (e *Engine) Failed() <-chan error {
	if e.child == nil {
		return nil
	}
	return e.child.failed
}

// Close ends the connections, under whoever uses them, and what this process started. Called again, it says the same.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.closed = errors.Join(e.fast.Close(), e.patient.Close())
		if e.stop != nil {
			e.closed = errors.Join(e.closed, e.stop())
		}
	})
	return e.closed
}

// OpenEngine connects to, or starts, the engine that the options ask for. It fails with ErrUnsafe or ErrNoEngine and a message that says
// what to set, or with ErrUnavailable when Redis does not answer.
func OpenEngine(ctx context.Context, o EngineOptions) (*Engine, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	switch {
	case o.Embedded:
		return openEmbedded(ctx)
	case o.URL != "":
		return openURL(ctx, o)
	case o.NoChild:
		return nil, fmt.Errorf("%w: api and worker in separate processes need a Redis both can reach: set redis.url (SLUICE_REDIS_URL)", ErrNoEngine)
	}
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w: set redis.url (SLUICE_REDIS_URL), or install redis-server, or try `sluice dev`, which keeps jobs in memory only", ErrNoEngine)
	}
	return openPrivate(ctx, program, o)
}

// ParseURL checks a Redis URL: redis://, rediss:// or unix://, and for a cluster redis+cluster:// or rediss+cluster://, for Sentinel
// redis+sentinel:// with the master's name as the query parameter master_name.
func ParseURL(redisURL string) error {
	_, err := clientFor(redisURL, patience{})
	return err
}

// patience is how long a client waits before it gives up.
type patience struct {
	dial, answer time.Duration
	retries      int // -1: none
	pool         int
}

var (
	failFast  = patience{dial: 500 * time.Millisecond, answer: 500 * time.Millisecond, retries: 1, pool: 64}
	longTimed = patience{dial: time.Second, answer: 3 * time.Second, retries: 3, pool: 96}
)

func openURL(ctx context.Context, o EngineOptions) (*Engine, error) {
	fast, err := clientFor(o.URL, failFast)
	if err != nil {
		return nil, err
	}
	patient, err := clientFor(o.URL, longTimed)
	if err != nil {
		return nil, err
	}
	e := &Engine{kind: EngineRedis, fast: fast(), patient: patient()}
	e.scheme, _, _ = strings.Cut(o.URL, "://")
	version, err := check(ctx, e.patient, !strings.Contains(e.scheme, "+"), o.AllowUnsafe, o.Logger)
	if err != nil {
		return nil, errors.Join(e.setup(err), e.Close())
	}
	e.version = version
	e.describe = fmt.Sprintf("redis %s at %s", version, address(o.URL))
	return e, nil
}

// protocol is the version of Redis's. Nothing here needs what version 3 adds, and go-redis would look for its push messages before every
// answer and in every connection that it takes from the pool.
const protocol = 2

// clientFor reads the URL and returns a function that makes a client, so that reading has no effect.
func clientFor(redisURL string, p patience) (func() redis.UniversalClient, error) {
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
		opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = p.dial, p.answer, p.answer, p.answer
		opt.MaxRetries, opt.PoolSize, opt.ContextTimeoutEnabled, opt.DisableIdentity, opt.Protocol = p.retries, p.pool, true, true, protocol
		opt.MaxRetryBackoff, opt.Dialer = 100*time.Millisecond, dialer(p, opt.TLSConfig)
		opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		return func() redis.UniversalClient { return redis.NewClient(opt) }, nil
	case "redis+cluster", "rediss+cluster":
		opt, err := redis.ParseClusterURL(strings.TrimSuffix(scheme, "+cluster") + "://" + rest)
		if err != nil {
			return nil, hideURL(err)
		}
		opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = p.dial, p.answer, p.answer, p.answer
		opt.MaxRetries, opt.PoolSize, opt.ContextTimeoutEnabled, opt.DisableIdentity, opt.Protocol = p.retries, p.pool, true, true, protocol
		opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		// A dead master redirects nobody, and a hanging one does not answer. So the map of the cluster is never old,
		// the wait for an answer is bounded, and it ends with a takeover. The client of a node does not retry: the
		// client of the cluster does, and looks the node up again, though not for its first retry.
		opt.ClusterStateReloadInterval, opt.ReadTimeout, opt.MaxRetries = clusterMap, min(p.answer, clusterAnswer), -1
		dials := plain(p, opt.TLSConfig)
		return func() redis.UniversalClient { return newClusterClient(opt, dials) }, nil
	case "redis+sentinel", "rediss+sentinel":
		opt, err := redis.ParseFailoverURL(strings.TrimSuffix(scheme, "+sentinel") + "://" + rest)
		if err != nil {
			return nil, hideURL(err)
		}
		opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = p.dial, p.answer, p.answer, p.answer
		opt.MaxRetries, opt.PoolSize, opt.ContextTimeoutEnabled, opt.DisableIdentity, opt.Protocol = p.retries, p.pool, true, true, protocol
		opt.Dialer = dialer(p, opt.TLSConfig)
		return func() redis.UniversalClient { return redis.NewFailoverClient(opt) }, nil
	}
	return nil, errors.New("a Redis URL starts with redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://")
}

// hideURL keeps a password in a URL that cannot be parsed out of messages.
func hideURL(err error) error {
	var quoted *url.Error // which repeats the whole URL
	if errors.As(err, &quoted) || strings.Contains(err.Error(), "@") {
		return errors.New("not a Redis URL (not shown, for it may hold a password)")
	}
	return fmt.Errorf("not a Redis URL: %w", err)
}

// address is a URL without its user, password and options.
func address(redisURL string) string {
	_, rest, _ := strings.Cut(redisURL, "://")
	if i := strings.LastIndex(rest, "@"); i >= 0 {
		rest = rest[i+1:]
	}
	rest, _, _ = strings.Cut(rest, "?")
	return rest
}

// leastRedis is the oldest version that has every command the scripts use (ZADD GT).
var leastRedis = [2]int{6, 2}

// check refuses a Redis that would lose or drop jobs, and returns its version. One that is addressed alone must be neither a node of a
// cluster nor a replica.
func check(ctx context.Context, c redis.UniversalClient, alone, allowUnsafe bool, log *slog.Logger) (version string, err error) {
	info, err := c.Info(ctx, "everything").Result()
	if err != nil {
		return "", unavailable(err)
	}
	fields := infoFields(info)
	version = fields["redis_version"]
	major, minor := versionOf(version)
	if major < leastRedis[0] || major == leastRedis[0] && minor < leastRedis[1] {
		return version, fmt.Errorf("%w: version %s is too old, %d.%d or newer is needed", ErrUnsafe, version, leastRedis[0], leastRedis[1])
	}
	if err := wrongMode(fields); alone && err != nil {
		return version, err
	}
	var problems []string
	if policy := fields["maxmemory_policy"]; policy != "noeviction" && policy != "" {
		problems = append(problems, fmt.Sprintf("it evicts keys when memory is full (maxmemory-policy %s): set maxmemory-policy noeviction", policy))
	}
	if fields["aof_enabled"] != "1" {
		problems = append(problems, "it has no append-only file, so a restart loses jobs: set appendonly yes")
	}
	if len(problems) == 0 {
		return version, nil
	}
	if allowUnsafe {
		log.Warn("this redis may lose jobs", "problems", strings.Join(problems, "; "))
		return version, nil
	}
	return version, fmt.Errorf("%w: %s (or accept the loss with redis.allow_unsafe: true)", ErrUnsafe, strings.Join(problems, "; "))
}

func versionOf(text string) (major, minor int) {
	parts := strings.SplitN(text, ".", 3)
	major, _ = strconv.Atoi(parts[0]) // not a number: 0, which is too old
	if len(parts) > 1 {
		minor, _ = strconv.Atoi(parts[1])
	}
	return major, minor
}

// local returns a client that dials with the given function, for the engines that run on this machine.
func local(connect func(ctx context.Context) (net.Conn, error), p patience) *redis.Client {
	byName := dial(func(ctx context.Context, _, _ string) (net.Conn, error) { return connect(ctx) })
	return redis.NewClient(&redis.Options{
		Addr:        "local",
		Dialer:      byName.orUnconnected(),
		DialTimeout: p.dial, ReadTimeout: p.answer, WriteTimeout: p.answer, PoolTimeout: p.answer,
		MaxRetries: p.retries, PoolSize: p.pool, ContextTimeoutEnabled: true, DisableIdentity: true, Protocol: protocol,
		MaxRetryBackoff:          100 * time.Millisecond,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}
