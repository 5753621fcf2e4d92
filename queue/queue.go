// Package queue is the Redis side of Sluice: the keys, the job records, the gathering of
// admissions, leasing and settling, policies with their revisions, and the engines that Redis may
// be. It is the only package that talks to Redis for jobs; api and worker see the types of this
// package alone. Everything that must be atomic is one script of package lua; what is here sends
// it, at most a few times over, and turns its answer into words.
//
// Every method is safe for concurrent use unless it says otherwise, and every error of Redis wraps
// ErrUnavailable or ErrScript.
package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// Options are the settings of a Queue. The zero value of a field means its default.
type Options struct {
	Shards    int                         // 1 to 1,024, default 64; recorded at the first start, another number then refuses
	Defaults  shaper.Policy               // of tenants without settings of their own; default shaper.DefaultPolicy()
	Routes    map[string]shaper.Overrides // laid over the defaults for the flows of a route
	Tiers     map[string]shaper.Overrides // laid over the defaults for the tenants of a tier
	Tenants   map[string]shaper.Overrides // of the tenants named in the configuration file
	Retention Retention
	Store     StoreLimits
	// Reporter opens the queue for a process that only reports the ends of jobs (Settle, Extend):
	// it leaves the policies in Redis alone and goes by the defaults that the workers go by.
	Reporter bool
	// CompressOver is from how many bytes on payloads are stored compressed, 0 for never. What
	// counts bytes counts those that are stored.
	CompressOver int
	Horizon      time.Duration         // how far ahead workers lease, default 20 ms
	Registerer   prometheus.Registerer // default: metrics are not registered
	Logger       *slog.Logger          // default slog.Default()
}

// Retention says how long finished jobs and idempotency keys are kept.
type Retention struct {
	Succeeded   time.Duration // also cancelled and expired jobs; default 1h
	Dead        time.Duration // default 168h
	Idempotency time.Duration // after the job has ended; default 24h
	// DeadCapacity is how many dead letters a flow keeps, and DeadBytes how many bytes of them; at
	// either bound it pauses itself, none is trimmed. Default 10,000, and 64 MiB.
	DeadCapacity, DeadBytes int64
}

// Queue is the Redis side of Sluice.
type Queue struct {
	engine       *Engine
	keys         Keyspace
	policies     atomic.Pointer[policies]   // in force
	file         atomic.Pointer[policyFile] // of this process, in force or not; nil of a reporter
	agreement    atomic.Pointer[Agreement]
	reporter     bool
	compressOver int
	publish      sync.Mutex // held while policies are put into force or taken over
	keeper       *keeper
	mender       *mender
	retention    lua.Retention
	horizon      time.Duration
	observe      lua.Observer
	setAside     func(script string, items int) // counts what a script has set aside as damaged
	log          *slog.Logger
	flusher      *flusher
	watcher      *watcher
	store        *store
	resolver     resolver
}

// Schema of the stored data. A process reads its own and those from oldestKnown on. 4: flows keep a
// resolved policy, and a cost has 32 bits. Data of 1 to 3 is refused: none was released.
const (
	schema      = 4
	oldestKnown = 4
)

// ErrSchema means that the data in Redis was laid out by a version or with settings that this
// process cannot work with.
var ErrSchema = errors.New("queue: the data in redis does not fit")

func (o *Options) setDefaults() {
	if o.Shards == 0 {
		o.Shards = defaultShards
	}
	if o.Defaults.Rate == (shaper.Rate{}) {
		o.Defaults = shaper.DefaultPolicy()
	}
	if o.Horizon == 0 {
		o.Horizon = 20 * time.Millisecond
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}

// Open checks what is in Redis, loads the scripts, and puts the policies of the configuration file
// into force, unless the file was in force before another that a live process has. The engine stays
// the caller's to close, after the queue.
func Open(ctx context.Context, engine *Engine, o Options) (*Queue, error) {
	o.setDefaults()
	if o.Shards < 1 || o.Shards > maxShards {
		return nil, fmt.Errorf("queue: %d shards, want 1 to %d", o.Shards, maxShards)
	}
	q := &Queue{
		engine: engine, keys: NewKeyspace(o.Shards), reporter: o.Reporter, compressOver: o.CompressOver,
		retention: lua.Retention{
			Finished:    or(o.Retention.Succeeded, time.Hour),
			Dead:        or(o.Retention.Dead, 7*24*time.Hour),
			Idempotency: or(o.Retention.Idempotency, 24*time.Hour),

			DeadCapacity: or(o.Retention.DeadCapacity, 10_000), DeadBytes: or(o.Retention.DeadBytes, 64<<20),
		},
		horizon: o.Horizon, log: o.Logger,
	}
	var err error
	if q.observe, q.setAside, err = scriptMetrics(o.Registerer); err != nil {
		return nil, err
	}
	if q.mender, err = newMender(q, o.Registerer); err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if o.Registerer != nil {
		for _, c := range []prometheus.Collector{newPoolMetrics(engine), newStoreMetrics(engine, q.keys), restartsOf(engine)} {
			if err := o.Registerer.Register(c); err != nil {
				return nil, fmt.Errorf("register metrics: %w", err)
			}
		}
	}
	born, err := q.checkMeta(ctx, o.Shards, "")
	if err != nil {
		return nil, engine.setup(err)
	}
	if err := eachMaster(ctx, engine.patient, func(ctx context.Context, c lua.Client) error { return lua.Load(ctx, c) }); err != nil {
		return nil, engine.setup(unavailable(err))
	}
	file, err := newPolicyFile(shaper.Baseline{Defaults: o.Defaults, Routes: o.Routes, Tiers: o.Tiers}, o.Tenants)
	if err != nil {
		return nil, err
	}
	if err := q.setPolicies(ctx, file, true); err != nil {
		return nil, err
	}
	q.store = newStore(o.Store, q.Totals, engine.memory)
	q.flusher = newFlusher(q)
	q.watcher = newWatcher(engine.fast)
	if !q.reporter {
		if q.keeper, err = newKeeper(q, born, o.Registerer); err != nil {
			return nil, errors.Join(err, q.Close())
		}
	}
	return q, nil
}

// Close ends what the queue runs in the background. Calls under way may fail.
func (q *Queue) Close() error {
	if q.keeper != nil {
		q.keeper.close()
	}
	q.flusher.close()
	return q.watcher.close()
}

// checkMeta records schema, number of shards and birth at the first start, and refuses to run on
// data laid out otherwise. It returns when the store was born, by which a process notices that it
// was emptied; after the record alone was lost, given is that instant.
func (q *Queue) checkMeta(ctx context.Context, shards int, given string) (born string, err error) {
	c := q.engine.patient
	if given == "" {
		now, err := c.Time(ctx).Result()
		if err != nil {
			return "", unavailable(err)
		}
		given = strconv.FormatInt(now.UnixMicro(), 10)
	}
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.HSetNX(ctx, metaKey, "schema", schema)
		p.HSetNX(ctx, metaKey, "shards", shards)
		p.HSetNX(ctx, metaKey, metaBorn, given)
		return nil
	}); err != nil {
		return "", unavailable(err)
	}
	var found struct {
		Schema int    `redis:"schema"`
		Shards int    `redis:"shards"`
		Born   string `redis:"born"`
	}
	if err := c.HMGet(ctx, metaKey, "schema", "shards", metaBorn).Scan(&found); err != nil {
		return "", unavailable(err)
	}
	switch {
	case found.Schema < oldestKnown:
		return "", fmt.Errorf("%w: schema %d, this version reads %d to %d: drain it with the version that wrote it, or use another Redis",
			ErrSchema, found.Schema, oldestKnown, schema)
	case found.Schema > schema:
		return "", fmt.Errorf("%w: schema %d, this version reads %d to %d: use another version, or another Redis", ErrSchema, found.Schema, oldestKnown, schema)
	case found.Shards != shards:
		return "", fmt.Errorf("%w: it has %d shards, this process is set to %d", ErrSchema, found.Shards, shards)
	}
	return found.Born, nil
}

// Ping reports whether Redis answers and the scripts are loaded.
func (q *Queue) Ping(ctx context.Context) error {
	return unavailable(eachMaster(ctx, q.engine.fast, func(ctx context.Context, c lua.Client) error {
		known, err := c.ScriptExists(ctx, lua.Commands.Admit.SHA(), lua.Commands.Tick.SHA(), lua.Commands.Settle.SHA()).Result()
		if err != nil {
			return err
		}
		for _, k := range known {
			if !k { // Redis was restarted: scripts are not kept over that.
				return lua.Load(ctx, c)
			}
		}
		return nil
	}))
}

// eachMaster calls ask for every master of a cluster, or for the one Redis there is. Replicas are
// left out: a dead one harms nobody.
func eachMaster(ctx context.Context, c redis.UniversalClient, ask func(context.Context, lua.Client) error) error {
	if cluster, many := c.(*redis.ClusterClient); many {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error { return ask(ctx, c) })
	}
	return ask(ctx, c)
}

// Shards is the number of shards.
func (q *Queue) Shards() int { return q.keys.Len() }

// OneNode reports whether all shards are on one node of Redis, and so have its clock, which for a
// shard that saw it set back is ahead of the others'.
func (q *Queue) OneNode() bool {
	_, cluster := q.engine.patient.(*redis.ClusterClient)
	return !cluster
}

// run sends one script with the client of impatient callers.
func (q *Queue) run(ctx context.Context, call lua.Call) ([]any, error) {
	r := q.exec(ctx, q.engine.fast, []lua.Call{call})[0]
	return r.Values, unavailable(r.Err)
}

// exec sends calls. One that fails at damaged data is made once more after that was repaired.
func (q *Queue) exec(ctx context.Context, c lua.Client, calls []lua.Call) []lua.Reply {
	replies := lua.RunAll(ctx, c, q.observe, calls)
	for i, r := range replies {
		if q.mender.mend(ctx, calls[i], r.Err) {
			if replies[i] = lua.RunAll(ctx, c, q.observe, calls[i:i+1])[0]; FaultOf(replies[i].Err) == FaultScript {
				q.mender.rest(calls[i])
			}
		}
	}
	return replies
}

func or[T time.Duration | int64](n, other T) T {
	if n == 0 {
		return other
	}
	return n
}
