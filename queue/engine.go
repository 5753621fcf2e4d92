package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os/exec"
	"slices"
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

// ErrUnsafe means that this Redis may lose jobs. The message says what to set.
var ErrUnsafe = errors.New("queue: this redis is not safe for a queue")

// ErrNoEngine means that the options lead to no engine. The message says what to do.
var ErrNoEngine = errors.New("queue: no redis")

// Engine is a running Redis with two clients. Intake uses the fail-fast client, because callers
// wait. Workers use the patient one, because they can only try again.
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

// String describes the engine without secrets, for example "redis 7.0.15 at 127.0.0.1:6379/0".
func (e *Engine) String() string { return e.describe }

// Client is the patient client, for tools that read Redis directly.
func (e *Engine) Client() redis.UniversalClient { return e.patient }

// Failed receives an error when the private redis-server has ended and cannot be restarted.
// It receives nothing with other engines.
func (e *Engine) Failed() <-chan error {
	if e.child == nil {
		return nil
	}
	return e.child.failed
}

// Close closes the connections, also those in use, and stops what this process started.
// Further calls return the same error.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.closed = errors.Join(e.fast.Close(), e.patient.Close())
		if e.stop != nil {
			e.closed = errors.Join(e.closed, e.stop())
		}
	})
	return e.closed
}

// OpenEngine connects to, or starts, the engine of the options. Errors: ErrUnsafe or ErrNoEngine
// with a message that says what to set; ErrUnavailable when Redis does not answer.
func OpenEngine(ctx context.Context, o EngineOptions) (*Engine, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	switch {
	case o.Embedded:
		return openEmbedded(), nil
	case o.URL != "":
		return openURL(ctx, o)
	case o.NoChild:
		return nil, fmt.Errorf("%w: api and worker in separate processes need a Redis both can reach: "+
			"set redis.url (SLUICE_REDIS_URL)", ErrNoEngine)
	}
	program, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, fmt.Errorf("%w: set redis.url (SLUICE_REDIS_URL), or install redis-server, "+
			"or try `sluice dev`, which keeps jobs in memory only", ErrNoEngine)
	}
	return openPrivate(ctx, program, o)
}

// ParseURL checks a Redis URL: redis://, rediss:// or unix://. The schemes of a cluster end with
// +cluster, those of Sentinel with +sentinel and with ?master_name=.
func ParseURL(redisURL string) error {
	_, err := clientsFor(redisURL)
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
	client, err := clientsFor(o.URL)
	if err != nil {
		return nil, err
	}
	e := &Engine{kind: EngineRedis, fast: client(failFast), patient: client(longTimed)}
	e.scheme, _, _ = strings.Cut(o.URL, "://")
	return e.accept(ctx, o, "redis", " at "+address(o.URL))
}

// accept checks the Redis of the engine, describes it, and closes the engine on an error.
func (e *Engine) accept(ctx context.Context, o EngineOptions, name, where string) (*Engine, error) {
	version, err := check(ctx, e.patient, !strings.Contains(e.scheme, "+"), o.AllowUnsafe, o.Logger)
	if err != nil {
		return nil, errors.Join(e.setup(err), e.Close())
	}
	e.version, e.describe = version, name+" "+version+where
	return e, nil
}

// protocol is RESP2. With RESP3 go-redis looks for push messages before every answer and in every
// connection that it takes from the pool.
const protocol = 2

// noNotifications keeps go-redis from looking an address up in DNS whenever a client is made.
var noNotifications = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}

// clientsFor parses the URL and returns a function that makes a client. Parsing has no effect.
func clientsFor(redisURL string) (func(patience) redis.UniversalClient, error) {
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
			o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = p.dial, p.answer, p.answer, p.answer
			o.PoolSize, o.ContextTimeoutEnabled, o.DisableIdentity, o.Protocol = p.pool, true, true, protocol
			o.MaxRetries, o.Dialer = p.retries, plain(p, o.TLSConfig).orUnconnected()
			return redis.NewFailoverClient(&o)
		}, nil
	}
	return nil, errors.New("a Redis URL starts with redis://, rediss://, unix://, redis+cluster:// or redis+sentinel://")
}

// oneRedis returns a client of one Redis, whose address and credentials are in the options.
func oneRedis(opt redis.Options, p patience, d dial) *redis.Client {
	opt.DialTimeout, opt.ReadTimeout, opt.WriteTimeout, opt.PoolTimeout = p.dial, p.answer, p.answer, p.answer
	opt.PoolSize, opt.ContextTimeoutEnabled, opt.DisableIdentity, opt.Protocol = p.pool, true, true, protocol
	opt.MaxRetries, opt.MaxRetryBackoff, opt.Dialer = p.retries, 100*time.Millisecond, d.orUnconnected()
	opt.MaintNotificationsConfig = noNotifications
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

// leastRedis is the oldest version that has every command the scripts use (ZADD GT).
var leastRedis = []int{6, 2}

// check refuses a Redis that would lose jobs, and returns its version. A Redis that is addressed
// alone must be neither a node of a cluster nor a replica.
func check(
	ctx context.Context, c redis.UniversalClient, alone, allowUnsafe bool, log *slog.Logger,
) (version string, err error) {
	info, err := c.Info(ctx, "everything").Result()
	if err != nil {
		return "", unavailable(err)
	}
	fields := infoFields(info)
	version = fields["redis_version"]
	found := []int{0, 0}
	_, _ = fmt.Sscanf(version, "%d.%d", &found[0], &found[1]) // not a number: 0, which is too old
	if slices.Compare(found, leastRedis) < 0 {
		return version, fmt.Errorf("%w: version %s is too old, %d.%d or newer is needed",
			ErrUnsafe, version, leastRedis[0], leastRedis[1])
	}
	for _, mode := range []string{"redis_mode:cluster", "redis_mode:sentinel", "role:slave"} {
		if alone && strings.Contains(info, mode) {
			return version, fmt.Errorf("INFO reports %s", mode) // one of the mistakes
		}
	}
	var problems []string
	if policy := fields["maxmemory_policy"]; policy != "noeviction" && policy != "" {
		problems = append(problems, fmt.Sprintf(
			"it evicts keys when memory is full (maxmemory-policy %s): set maxmemory-policy noeviction", policy))
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
	return version, fmt.Errorf("%w: %s (or accept the loss with redis.allow_unsafe: true)",
		ErrUnsafe, strings.Join(problems, "; "))
}
