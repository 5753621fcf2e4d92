package queue

import (
	"context"
	"fmt"
	"log/slog"
	"os/exec"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/engine"
)

// EngineOptions say where Redis is. Without a URL and Embedded, OpenEngine starts a private
// redis-server, for which that program must be installed.
type EngineOptions struct {
	URL         string       // as ParseURL reads it
	DataDir     string       // of the private redis-server; empty: the current directory
	Embedded    bool         // in-process miniredis: jobs are lost on exit
	NoChild     bool         // refuse a private redis-server: the roles are split over processes
	AllowUnsafe bool         // accept a Redis that evicts or has no append-only file
	Durability  Durability   // of acknowledged changes; zero: that of the master
	Logger      *slog.Logger // default slog.Default()
}

// Durability is what a change waits for before its caller gets an answer. The zero value waits for
// nothing, and a failover of Redis may lose changes. Without the acknowledgements, a call returns
// ErrOutcomeUnknown.
type Durability = engine.Durability

// EngineKind is where the data lives.
type EngineKind string

// The engines.
const (
	EngineRedis    EngineKind = "redis"    // a given Redis
	EnginePrivate  EngineKind = "private"  // a redis-server child of this process
	EngineEmbedded EngineKind = "embedded" // miniredis in this process
)

var (
	// ErrUnsafe means that this Redis may lose jobs. The message says what to set.
	ErrUnsafe = engine.ErrUnsafe
	// ErrNoEngine means that the options lead to no engine. The message says what to do.
	ErrNoEngine = engine.ErrNoEngine
)

// Engine is a running Redis with its clients. Intake uses the fail-fast client, because callers
// wait. Reads have one of their own, so that no admission waits behind them. Workers use the
// patient one, because they can only try again.
type Engine struct {
	kind   EngineKind
	conn   *engine.Engine
	closed func() error
}

// OpenEngine connects to, or starts, the engine of the options. Errors: ErrUnsafe or ErrNoEngine
// with a message that says what to set; ErrUnavailable when Redis does not answer.
func OpenEngine(ctx context.Context, o EngineOptions) (*Engine, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	checks := engine.Options{AllowUnsafe: o.AllowUnsafe, Logger: o.Logger, Durability: o.Durability}
	if o.Durability.On() && (o.Embedded || o.URL == "") {
		return nil, fmt.Errorf("%w: redis.durability.replicas %d needs a Redis with replicas: set redis.url "+
			"(SLUICE_REDIS_URL), or redis.durability.replicas to 0", ErrNoEngine, o.Durability.Replicas)
	}
	e := &Engine{}
	var err error
	switch {
	case o.Embedded:
		e.kind, e.conn = EngineEmbedded, engine.OpenEmbedded()
	case o.URL != "":
		e.kind = EngineRedis
		e.conn, err = engine.OpenURL(ctx, o.URL, checks)
	case o.NoChild:
		return nil, fmt.Errorf("%w: api and worker in separate processes need a Redis both can reach: "+
			"set redis.url (SLUICE_REDIS_URL)", ErrNoEngine)
	default:
		program, missing := exec.LookPath("redis-server")
		if missing != nil {
			return nil, fmt.Errorf("%w: set redis.url (SLUICE_REDIS_URL), or install redis-server, "+
				"or try `sluice dev`, which keeps jobs in memory only", ErrNoEngine)
		}
		e.kind = EnginePrivate
		e.conn, err = engine.OpenPrivate(ctx, program, o.DataDir, checks)
	}
	if err != nil {
		return nil, err
	}
	e.closed = sync.OnceValue(e.conn.Close)
	return e, nil
}

// Kind returns where the data lives.
func (e *Engine) Kind() EngineKind { return e.kind }

// String describes the engine without secrets, for example "redis 7.0.15 at 127.0.0.1:6379/0".
func (e *Engine) String() string { return e.conn.Describe }

// Client returns the patient client, for tools that read Redis directly.
func (e *Engine) Client() redis.UniversalClient { return e.conn.Patient }

// Failed receives an error when the private redis-server has ended and cannot be restarted.
// It receives nothing with other engines.
func (e *Engine) Failed() <-chan error {
	if e.conn.Server == nil {
		return nil
	}
	return e.conn.Server.Failed
}

// Close closes the connections, also those in use, and stops what this process started.
// Further calls return the same error.
func (e *Engine) Close() error { return e.closed() }

// ErrFailover is the error of FailOver; its text says what to do.
var ErrFailover = engine.ErrFailover

// FailoverOptions are those of a planned failover, and Failover is its result.
type (
	FailoverOptions = engine.FailoverOptions
	Failover        = engine.Failover
)

// FailOver has a replica take over from a master, by Sentinel or in a cluster, without the loss of
// a write. Calls meanwhile fail with ErrUnavailable, for about two seconds with Sentinel. Errors:
// ErrNoEngine for options that lead to no failover, ErrFailover.
func FailOver(ctx context.Context, o FailoverOptions) (Failover, error) {
	return engine.FailOver(ctx, o)
}

// ParseURL checks a Redis URL: redis://, rediss:// or unix://. The schemes of a cluster end with
// +cluster, those of Sentinel with +sentinel and with ?master_name=. With TLS, the parameters
// tls_ca, tls_cert and tls_key name files in PEM.
func ParseURL(redisURL string) error { return engine.ParseURL(redisURL) }
