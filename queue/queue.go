// Package queue keeps jobs in Redis. OpenEngine connects to a Redis or starts one, and Open returns
// its Queue: clients submit and read jobs there, operators read and change tenants. Its Broker
// leases jobs to workers. Each step that must be atomic is one script of package lua.
//
// Every method is safe for concurrent use unless its comment excludes that. Every error of Redis
// wraps ErrUnavailable or ErrScript.
package queue

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/internal/policies"
	"github.com/7509e464/sluice/internal/repair"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/sealed"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Options are the settings of a Queue. The zero value of a field means its default.
type Options struct {
	Shards   int                         // 1 to 1,024, fixed at the first start; default: as the store has, 64 in a new one
	Defaults shaper.Policy               // of tenants without settings of their own; default shaper.DefaultPolicy()
	Routes   map[string]shaper.Overrides // laid over the defaults for the flows of a route
	Tiers    map[string]shaper.Overrides // laid over the defaults for the tenants of a tier
	// PoolWeights are the weights in pools of all tenants together that claim a tier; see
	// shaper.Baseline.
	PoolWeights map[string]int64
	Pools       map[string]shaper.PoolSettings // rates that the flows of several routes or tenants share
	Tenants     map[string]shaper.Overrides    // of the tenants named in the configuration file
	Retention   Retention
	Store       StoreBounds
	// Environment is the name of the deployment, such as production; empty: none. The first process
	// with a name marks the store with it, and then Open refuses any other: ErrEnvironment.
	Environment string
	// Reporter opens the queue for a process that only reports the ends of jobs (Settle, Extend).
	// It does not change the policies in Redis.
	Reporter bool
	// CompressOver is the least size in bytes of payloads that are stored compressed, 0 for never.
	// All counts of bytes are of the stored form.
	CompressOver int
	Encryption   Encryption
	Horizon      time.Duration         // how far ahead workers lease, default 20 ms
	Registerer   prometheus.Registerer // default: metrics are not registered
	Logger       *slog.Logger          // default slog.Default()
}

// Retention is how long the store keeps finished jobs and idempotency keys.
type Retention struct {
	Succeeded   time.Duration // also cancelled and expired jobs; default 1h
	Dead        time.Duration // default 168h
	Idempotency time.Duration // after the job has ended; default 24h
	// DeadCapacity is the number of dead letters that a flow keeps, by default 10,000, and
	// DeadBytes their bytes, by default 64 MiB. At either bound the flow pauses itself; none is
	// trimmed.
	DeadCapacity, DeadBytes int64
}

// Queue is the side of clients and operators. Broker is the workers' side.
type Queue struct {
	engine       *Engine
	owned        bool // by Connect: Close closes the engine
	store        *store.Store
	box          *sealed.Box // nil without encryption
	switched     bool        // the store may have idempotency keys from before it was encrypted
	policies     *policies.Keeper
	types        atomic.Bool // whether admissions tell the types of jobs, see scripts.AdmitCall
	repairer     *repair.Repairer
	broker       *Broker
	compressOver int
	retention    scripts.Retention
	horizon      time.Duration
	log          *slog.Logger
	flushers     *flushers
	watcher      *watcher
	headroom     *headroom
	resolver     resolver
	pooled       poolCache
	sweeps       atomic.Int64 // under way
	cancels      cancels
	reader       string // begins the names of the readers of streams in this process
}

// Schema of the stored data. A process writes Schema, and reads those from OldestSchema on. 5: a
// policy leaves out what is usual. Data of 1 to 4 is refused: none was released.
const (
	Schema       = 5
	OldestSchema = 5
)

// defaultShards is the number of shards of a new store.
const defaultShards = 64

// ErrEncrypted means that the store is encrypted, and the process has no keys or lacks one.
var ErrEncrypted = store.ErrEncrypted

// ErrSchema means that the data in Redis was laid out by a version or with settings that this
// process cannot work with.
var ErrSchema = store.ErrSchema

// ErrEnvironment means that the store belongs to another environment than this process.
var ErrEnvironment = policies.ErrEnvironment

// Open checks what is in Redis, loads the scripts, and puts the policies of the configuration file
// into force, unless the file was in force before another that a live process has. The caller
// closes the engine, after the queue. Errors: ErrSchema, ErrEnvironment, ErrEncrypted,
// ErrUnavailable, ErrNoEngine with advice.
func Open(ctx context.Context, e *Engine, o Options) (*Queue, error) {
	o.Horizon = cmp.Or(o.Horizon, 20*time.Millisecond)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Shards < 0 || o.Shards > store.MaxShards {
		return nil, fmt.Errorf("queue: %d shards, want 1 to %d", o.Shards, store.MaxShards)
	}
	if o.Shards == 0 {
		stored, err := StoredShards(ctx, e)
		if err != nil {
			return nil, e.conn.Advise(err)
		}
		if o.Shards = cmp.Or(stored, defaultShards); o.Shards > store.MaxShards {
			return nil, fmt.Errorf("%w: it has %d shards, this version knows up to %d", ErrSchema, o.Shards, store.MaxShards)
		}
	}
	s := e.storeOf(o.Shards)
	q := &Queue{
		cancels: cancels{lines: map[cancelsOf][]*cancel{}},
		reader:  rand.Text() + ".", engine: e, store: s, compressOver: o.CompressOver, horizon: o.Horizon, log: o.Logger,
		retention: scripts.Retention{
			Finished:     cmp.Or(o.Retention.Succeeded, time.Hour),
			Dead:         cmp.Or(o.Retention.Dead, 7*24*time.Hour),
			Idempotency:  cmp.Or(o.Retention.Idempotency, 24*time.Hour),
			DeadCapacity: cmp.Or(o.Retention.DeadCapacity, 10_000),
			DeadBytes:    cmp.Or(o.Retention.DeadBytes, 64<<20),
		},
	}
	setAside, keyMissing, err := registerMetrics(o.Registerer, e.conn, s)
	if err != nil {
		return nil, err
	}
	q.policies = policies.New(s, o.Horizon, o.Logger)
	q.policies.Environment = o.Environment
	if q.repairer, err = repair.New(s, o.Horizon, o.Logger, o.Registerer, q.policies.Reinstate); err != nil {
		return nil, err
	}
	born, err := q.layout(ctx, "")
	if err != nil {
		return nil, e.conn.Advise(err)
	}
	if e.kind != EngineEmbedded { // which parses a script to load it, and again to run it
		if err := store.EachMaster(ctx, s.Patient, scripts.Load); err != nil {
			return nil, e.conn.Advise(store.Unavailable(err))
		}
	}
	file := o.file()
	if q.box, err = o.Encryption.open(ctx, e, s, o); err != nil {
		return nil, err
	}
	if o.Reporter {
		q.policies.Assume(file)
	} else if err := q.policies.Start(ctx, o.Registerer, file, born, q.layout); err != nil {
		q.box.Close()
		return nil, err
	}
	q.birth(born)
	q.headroom = newHeadroom(q, o.Store)
	q.broker = &Broker{
		parts: tenantParts{tenants: map[string]partsOf{}},
		store: s, box: q.box, policies: q.policies, repairer: q.repairer, retention: q.retention, headroom: q.headroom, horizon: o.Horizon,
		setAside: setAside, unopened: keyMissing, log: o.Logger, silence: silenceLocal,
		memories: make([]memory, s.Len()), housekeeping: rate.NewLimiter(rate.Every(housekeepingEvery), housekeepingBurst),
	}
	q.broker.running, q.broker.stop = context.WithCancel(context.Background())
	if e.kind == EngineRedis {
		q.broker.silence, q.broker.pause = silence, othersRestore
	}
	q.flushers = newFlushers(q)
	q.watcher = newWatcher(s, q.broker.silence, o.Logger)
	q.broker.announce = func(channel string) { q.watcher.heard(channel, "") }
	return q, nil
}

// Found is a store that Open would take.
type Found struct {
	Schema, Shards int // of the stored data; 0 where there is no store
	// Notes name up to 20 settings of tenants and pools that the API has set to other values than
	// the options, and which are in force.
	Notes []string
}

// Preflight returns why Open would refuse this store with these options, and otherwise what it has
// found. It writes nothing, and accepts a Redis without a store. Errors: ErrSchema, ErrEnvironment,
// ErrUnavailable.
func Preflight(ctx context.Context, e *Engine, o Options) (f Found, err error) {
	found, err := readLayout(ctx, e.conn.Patient)
	if err != nil {
		return f, e.conn.Advise(err)
	}
	if found.Shards == 0 {
		return f, nil
	}
	if err := found.fits(cmp.Or(o.Shards, found.Shards)); err != nil {
		return f, err
	}
	if err := o.Encryption.check(ctx, e.conn.Patient); err != nil {
		return f, e.conn.Advise(err)
	}
	keeper := policies.New(e.storeOf(found.Shards), o.Horizon, o.Logger)
	keeper.Environment = o.Environment
	outranked, err := keeper.Preflight(ctx, o.file())
	f.Schema, f.Shards = found.Schema, found.Shards
	for _, setting := range outranked {
		f.Notes = append(f.Notes, setting.String())
	}
	return f, e.conn.Advise(err)
}

// storeOf returns the store with this number of shards.
func (e *Engine) storeOf(shards int) *store.Store {
	return &store.Store{Keyspace: store.NewKeyspace(shards), Fast: e.conn.Fast, Reads: e.conn.Reads,
		Patient: e.conn.Patient, Durable: e.conn.Durable, Near: e.conn.Near, Way: e.conn.Way}
}

// file returns the policies of the options.
func (o Options) file() *policies.File {
	if o.Defaults.Rate == (shaper.Rate{}) {
		o.Defaults = shaper.DefaultPolicy()
	}
	return policies.NewFile(shaper.Baseline{Defaults: o.Defaults, Routes: o.Routes, Tiers: o.Tiers, Pools: o.Pools,
		PoolWeights: o.PoolWeights}, o.Tenants)
}

// Advice says what an operator can do about an error of Redis that has a known cause, such as a
// refused password or a full memory. It returns "" for any other error.
func Advice(err error) string { return store.Advice("running", err) }

// Connect opens an engine and a queue on it, for a program that uses the engine for nothing else.
// Close closes both. Its errors are those of OpenEngine and Open.
func Connect(ctx context.Context, e EngineOptions, o Options) (*Queue, error) {
	engine, err := OpenEngine(ctx, e)
	if err != nil {
		return nil, err
	}
	q, err := Open(ctx, engine, o)
	if err != nil {
		return nil, errors.Join(err, engine.Close())
	}
	q.owned = true
	return q, nil
}

// Close stops the background work of the queue, and closes an engine that Connect opened. Calls
// under way may fail.
func (q *Queue) Close() error {
	q.policies.Close()
	q.broker.close()
	q.flushers.close()
	q.headroom.close()
	q.watcher.close()
	q.box.Close()
	if q.owned {
		return q.engine.Close()
	}
	return nil
}

// Broker returns the workers' side of the queue.
func (q *Queue) Broker() *Broker { return q.broker }

func init() {
	store.Of = func(q any) *store.Store { return q.(*Queue).store }
}

// MoveError means that a file moves routes to another pool while jobs of theirs wait or run.
type MoveError = policies.MoveError

// Agreement is whether the policies of this process's configuration file are in force.
type Agreement struct {
	InForce   bool
	Since     time.Time // of this state
	Differing int       // processes, this one included, whose files are not in force
	Abandoned bool      // no live process has the file in force
}

// Agreement returns the result of the last comparison with the store. A reporter has no file and
// always agrees.
func (q *Queue) Agreement() Agreement { return Agreement(q.policies.Agreement()) }

// SetPolicies puts other policies of a configuration file into force, for all processes at this
// Redis: the baseline, and the settings of single tenants. Tenants that the file named before and
// does not name now lose its settings. Backlogs obey at once. The policies must be valid. They hold
// until the next call of any process: a process with another file follows, and reports it. Errors:
// *MoveError, which changes nothing; ErrUnavailable: then a part of them may be in force, and the
// other processes put the rest into force.
func (q *Queue) SetPolicies(
	ctx context.Context, baseline shaper.Baseline, tenants map[string]shaper.Overrides,
) error {
	return q.policies.Set(ctx, policies.NewFile(baseline, tenants))
}

// Finding is something that Check found to be wrong: its kind, such as "counts", the shard, the
// name of the key or of a part of it, and a detail.
type Finding = repair.Finding

// Checked is how much Check compared: shards, tenants, flows and jobs.
type Checked = repair.Checked

// Check compares the whole store and passes what each step finds to found, each finding once. With
// fix it repairs the findings. Workers may run meanwhile. Errors: ErrUnavailable, or that of found.
func (q *Queue) Check(
	ctx context.Context, fix bool, found func([]Finding) error,
) (Checked, error) {
	return q.repairer.Check(ctx, fix, found)
}

// StoredShards returns the number of shards of the store that is there, 0 for none. It writes
// nothing. Errors: ErrUnavailable.
func StoredShards(ctx context.Context, e *Engine) (int, error) {
	n, err := e.conn.Patient.HGet(ctx, store.MetaKey, "shards").Int()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, store.Unavailable(err)
}

// layout records schema, number of shards and birth at the first start, and refuses to run on data
// with another layout. It returns the birth of the store, by which a process notices that it was
// emptied. After the record alone was lost, given is the birth.
func (q *Queue) layout(ctx context.Context, given string) (born string, err error) {
	c, shards := q.store.Patient, q.store.Len()
	if given == "" {
		now, err := c.Time(ctx).Result()
		if err != nil {
			return "", store.Unavailable(err)
		}
		given = strconv.FormatInt(now.UnixMicro(), 10)
	}
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.HSetNX(ctx, store.MetaKey, "schema", Schema)
		p.HSetNX(ctx, store.MetaKey, "shards", shards)
		p.HSetNX(ctx, store.MetaKey, "born", given)
		return nil
	}); err != nil {
		return "", store.Unavailable(err)
	}
	found, err := readLayout(ctx, c)
	if err != nil {
		return "", err
	}
	return found.Born, found.fits(shards)
}

// storedLayout is how the data of a store is laid out.
type storedLayout struct {
	Schema int    `redis:"schema"`
	Shards int    `redis:"shards"` // 0: there is no store
	Born   string `redis:"born"`
}

func readLayout(ctx context.Context, c redis.Cmdable) (found storedLayout, err error) {
	err = c.HMGet(ctx, store.MetaKey, "schema", "shards", "born").Scan(&found)
	return found, store.Unavailable(err)
}

// fits returns ErrSchema unless a process with this number of shards can work with the layout.
func (found storedLayout) fits(shards int) error {
	switch {
	case found.Schema < OldestSchema:
		return fmt.Errorf("%w: schema %d, this version reads %d to %d: drain it with the version that "+
			"wrote it, or use another Redis",
			ErrSchema, found.Schema, OldestSchema, Schema)
	case found.Schema > Schema:
		return fmt.Errorf("%w: schema %d, this version reads %d to %d: use another version, or another "+
			"Redis", ErrSchema, found.Schema, OldestSchema, Schema)
	case found.Shards > store.MaxShards:
		return fmt.Errorf("%w: it has %d shards, this version knows up to %d", ErrSchema, found.Shards, store.MaxShards)
	case found.Shards != shards:
		return fmt.Errorf("%w: it has %d shards, this process is set to %d: set store.shards to %d, or use another "+
			"Redis (the number is fixed at the first start)", ErrSchema, found.Shards, shards, found.Shards)
	}
	return nil
}

// Ping reports whether Redis answers and, with EngineOptions.Durability, has the replicas that
// changes wait for (ErrReplicas). It loads the scripts if a restart of Redis has dropped them.
func (q *Queue) Ping(ctx context.Context) error {
	if q.engine.kind == EngineEmbedded { // see Open
		return store.Unavailable(q.store.Fast.Ping(ctx).Err())
	}
	if err := store.EachMaster(ctx, q.store.Fast, scripts.Load); err != nil {
		return store.Unavailable(err)
	}
	return q.engine.conn.CheckReplicas(ctx)
}
