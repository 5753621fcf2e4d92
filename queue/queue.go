package queue

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/shaper"
)

// Options are the settings of a Queue. The zero value of a field means its default.
type Options struct {
	Shards     int                         // default 64; recorded at first start, a mismatch refuses
	Defaults   shaper.Policy               // of tenants of which nothing is said; default shaper.DefaultPolicy()
	Tenants    map[string]shaper.Overrides // of the tenants named in the configuration file
	Retention  Retention
	Registerer prometheus.Registerer // default: metrics are not registered
	Logger     *slog.Logger          // default slog.Default()
}

// Retention says how long finished jobs and idempotency keys are kept.
type Retention struct {
	Succeeded   time.Duration // also cancelled and expired jobs; default 1h
	Dead        time.Duration // default 168h
	Idempotency time.Duration // after the job has ended; default 24h
}

// Queue is the Redis side of Sluice. All methods are safe for concurrent use.
type Queue struct{}

func Open(ctx context.Context, engine *Engine, o Options) (*Queue, error) { panic("stub") }
func (q *Queue) Close() error                                             { panic("stub") }

// Ping reports whether Redis answers and the scripts are loaded. Wraps ErrUnavailable.
func (q *Queue) Ping(ctx context.Context) error { panic("stub") }

// Shards is the number of shards.
func (q *Queue) Shards() int { panic("stub") }

// NewID makes the id of a job of the tenant: 28 characters of [0-9a-z].
func (q *Queue) NewID(tenant string) string { panic("stub") }

// Submit asks for admission of one job. Concurrent calls are gathered into one script call. The error wraps ErrUnavailable or
// is the context's; a refusal is no error, it is the verdict's outcome.
func (q *Queue) Submit(ctx context.Context, s Submission) (Verdict, error) { panic("stub") }

// SubmitBatch asks for admission of 1 to 1,000 jobs of one tenant, judged in order in one atomic step. If atomic, either all
// are admitted or none, and then every verdict carries the outcome of the first refusal.
func (q *Queue) SubmitBatch(ctx context.Context, batch []Submission, atomic bool) ([]Verdict, error) {
	panic("stub")
}

// Job reads one job of the tenant. ErrNotFound, ErrUnavailable.
func (q *Queue) Job(ctx context.Context, tenant, id string) (Job, error) { panic("stub") }

// Cancel ends a waiting job; cancelling it again is no error. ErrNotFound; ErrConflict with the job when it is leased or done.
func (q *Queue) Cancel(ctx context.Context, tenant, id string) (Job, error) { panic("stub") }

// Replay brings a dead job back through its bucket, with fresh attempts. ErrNotFound; ErrConflict with the job when it is not
// dead. The verdict's outcome is Admitted or Full.
func (q *Queue) Replay(ctx context.Context, tenant, id string) (Verdict, error) { panic("stub") }

// Watch returns a channel that receives once when the job has (perhaps) ended, and a function that ends the watch, which must be
// called. Watch returns once the subscription is in force, so a state read afterwards cannot miss the end. The signal may
// be spurious: read the job again.
func (q *Queue) Watch(ctx context.Context, id string) (ended <-chan struct{}, stop func(), err error) {
	panic("stub")
}

// Tenant reads the policy and figures of a tenant, also of one never seen.
func (q *Queue) Tenant(ctx context.Context, tenant string) (Tenant, error) { panic("stub") }

// Tune changes a tenant's API overrides. The backlog obeys at once. Errors: ErrRevision, ErrUnavailable, shaper.Problems when
// the resulting policy breaks a rule, or the error of change.Edit.
func (q *Queue) Tune(ctx context.Context, tenant string, change Change) (Tenant, error) {
	panic("stub")
}

// Tenants lists the names of tenants, up to limit; pass next as cursor for the following page, "" starts and ends.
func (q *Queue) Tenants(ctx context.Context, cursor string, limit int) (names []string, next string, err error) {
	panic("stub")
}

// Totals sums depth and running over all shards.
func (q *Queue) Totals(ctx context.Context) (Totals, error) { panic("stub") }

// Consumer leases jobs of one shard for one worker. It numbers its looks, so that a look whose answer was lost is answered
// again with the same jobs. Not safe for concurrent use.
type Consumer struct{}

// Consumer returns a consumer of the shard for the worker with this id, which must be unique to the process.
func (q *Queue) Consumer(worker string, shard int) *Consumer { panic("stub") }

// Tick looks at the shard: promotes what is due, expires, sweeps, leases. After an error (ErrUnavailable) call it again.
func (c *Consumer) Tick(ctx context.Context, o TickOptions) (Tick, error) { panic("stub") }

// Settle ends leases, of any shards. results[i] belongs to batch[i]. On an error nothing is known: send the same batch again.
func (q *Queue) Settle(ctx context.Context, batch []Settlement) (results []SettleResult, err error) {
	panic("stub")
}

// Extend makes leases last for another lease duration from now; lost lists those that are not current any more.
func (q *Queue) Extend(ctx context.Context, leases []LeaseRef, lease time.Duration) (lost []LeaseRef, err error) {
	panic("stub")
}

// Beat records that the worker lives and returns the workers heard of within ttl, itself included, sorted.
func (q *Queue) Beat(ctx context.Context, worker string, ttl time.Duration) (live []string, err error) {
	panic("stub")
}

// Leave records that the worker is gone, and tells the others.
func (q *Queue) Leave(ctx context.Context, worker string) error { panic("stub") }

// Wakes delivers wake-ups until ctx ends, then closes the channel. It reconnects by itself. The first value, and one after each
// reconnection, is Wake{Shard: AllShards}; so is one when a worker has left.
func (q *Queue) Wakes(ctx context.Context) <-chan Wake { panic("stub") }
