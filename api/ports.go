package api

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/internal/sessions"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

// Admitter admits jobs. The store owns the clock; an admission is one atomic step.
type Admitter interface {
	// NewID makes the id of a job of the tenant with the route.
	NewID(tenant, route string) (string, error)
	// Submit requests admission of one job. A refusal is the outcome of the decision, not an error.
	Submit(ctx context.Context, s queue.Submission) (queue.Decision, error)
	// SubmitBatch requests admission of 1 to 1,000 jobs of one tenant, all or none if atomic.
	// The routes of an atomic batch must be in one pool or all in none, else it returns
	// shaper.Problems.
	SubmitBatch(ctx context.Context, batch []queue.Submission, atomic bool) ([]queue.Decision, error)
	// Replay queues a dead job again for at most maxAttempts deliveries; queue.ErrConflict comes
	// with the job as it is.
	Replay(ctx context.Context, tenant, id string, maxAttempts int) (queue.Decision, error)
}

// Jobs reads and cancels the jobs of a tenant. The job of another tenant is queue.ErrNotFound.
type Jobs interface {
	// Job reads one job.
	Job(ctx context.Context, tenant, id string) (queue.Job, error)
	// Answer reads one job with the start of the answer to its forwarded request, nil for none. A
	// job that is no longer stored is queue.ErrGone.
	Answer(ctx context.Context, tenant, id string) (job queue.Job, answer *queue.Answer, err error)
	// Find reads one job of any tenant by its id alone.
	Find(ctx context.Context, id string) (queue.Job, error)
	// Payload reads what a job delivers, nil if it is longer than limit bytes. size is 0 if the job
	// has ended and its payload was deleted.
	Payload(ctx context.Context, tenant, id string, limit int) (payload []byte, size int, err error)
	// List reads a page of the tenant's jobs. A cursor that it did not return is queue.ErrCursor.
	List(ctx context.Context, l queue.List) (queue.Page, error)
	// Cancel ends a waiting job; queue.ErrConflict comes with the job as it is.
	Cancel(ctx context.Context, tenant, id string) (queue.Job, error)
	// Watch signals once when the job may have ended. A state read after Watch returned cannot miss
	// the end.
	Watch(ctx context.Context, id string) (ended <-chan struct{}, stop func(), err error)
}

// Sweeper changes many jobs of a tenant: those of a filter, a bounded number in one call.
type Sweeper interface {
	// Purge cancels waiting jobs and deletes dead ones.
	Purge(ctx context.Context, tenant string, f queue.Filter) (queue.Swept, error)
	// ReplayAll queues dead jobs again, until one does not fit. attempts returns how many
	// deliveries a job may have.
	ReplayAll(ctx context.Context, tenant string, f queue.Filter, attempts func(queue.Job) int) (queue.Swept,
		error)
	// Note adds action, actor, filter and count of a purge or a replay to the tenant's history.
	Note(ctx context.Context, tenant string, entry queue.HistoryEntry) error
}

// Tenants reads and changes policies.
type Tenants interface {
	// Tenant reads policy and figures. A tenant that was never seen has the defaults.
	Tenant(ctx context.Context, tenant string) (queue.Tenant, error)
	// Tune changes the API overrides. Its errors are queue.ErrRevision, shaper.Problems, and the
	// error of change.Edit.
	Tune(ctx context.Context, tenant string, change queue.Change) (queue.Tenant, error)
	// Tenants lists names; next is the cursor of the following page, "" starts and ends. A cursor
	// that it did not return is queue.ErrCursor.
	Tenants(ctx context.Context, cursor string, limit int) (names []string, next string, err error)
	// Tiers lists the names of the tiers of the file in force, sorted.
	Tiers() []string
	// History lists the last changes of the API overrides, the newest first.
	History(ctx context.Context, tenant string) ([]queue.HistoryEntry, error)
}

// Pools reads pools and changes their policies. A pool that the configuration does not declare is
// queue.ErrNoPool.
type Pools interface {
	// Pools lists the names of the pools, sorted.
	Pools() []string
	// PoolOf is the pool that a route is in, empty for none.
	PoolOf(route string) string
	// Pool reads policy and figures.
	Pool(ctx context.Context, name string) (queue.Pool, error)
	// AllPools reads policies and figures of all pools, sorted by name.
	AllPools(ctx context.Context) ([]queue.Pool, error)
	// TunePool changes the API overrides, with the errors of Tenants.Tune.
	TunePool(ctx context.Context, name string, change queue.Change) (queue.Pool, error)
	// PoolHistory lists the last changes of the API overrides, the newest first.
	PoolHistory(ctx context.Context, name string) ([]queue.HistoryEntry, error)
	// PoolFlows reads up to limit flows that wait, those that may leave next first.
	PoolFlows(ctx context.Context, name string, limit int) ([]queue.PoolFlow, error)
}

// KeyRing creates and revokes API keys. The key of another tenant is queue.ErrUnknownKey.
type KeyRing interface {
	// CreateKey stores a key by the digest of its secret; a zero expires means never. Above the
	// limit it returns queue.ErrTooManyKeys.
	CreateKey(ctx context.Context, tenant, name string, hash [sha256.Size]byte,
		expires time.Time) (queue.Key, error)
	// ListKeys lists the tenant's keys, the oldest first, without their digests.
	ListKeys(ctx context.Context, tenant string) ([]queue.Key, error)
	// RevokeKey removes a key for good.
	RevokeKey(ctx context.Context, tenant, id string) error
}

// Health reads what probes and gauges show.
type Health interface {
	// Ping reports whether the store answers and is ready to work.
	Ping(ctx context.Context) error
	// Agreement reports whether the policies of this process's configuration file are in force.
	Agreement() queue.Agreement
	// Totals sums over all tenants.
	Totals(ctx context.Context) (queue.Totals, error)
}

// Figures reads what the streams of figures show.
type Figures interface {
	// Workers reads the live workers and the load of their routes.
	Workers(ctx context.Context) (reports.Workers, error)
	// StoreHealth reads memory, version and round-trip time of the store.
	StoreHealth(ctx context.Context) (queue.StoreHealth, error)
	// Scan reads up to limit tenants; next is the cursor of the following call, "" starts and ends.
	Scan(ctx context.Context, cursor string, limit int) (part []queue.Brief, next string, err error)
	// Waits returns the last waits of a tenant's jobs, at most limit, in ascending order.
	Waits(ctx context.Context, tenant string, limit int) ([]time.Duration, error)
}

// Backend is everything that the API needs; see BackendOf. Every error about the store wraps
// queue.ErrUnavailable or queue.ErrScript.
type Backend interface {
	Admitter
	Jobs
	Sweeper
	Tenants
	Pools
	KeyRing
	Health
	Figures
	dashboard.Store
}

// BackendOf returns the backend in the queue's store.
func BackendOf(q *queue.Queue) Backend {
	return struct {
		*queue.Queue
		*queue.Keys
		sessions.Store
		*reports.Reports
	}{q, q.Keys(), sessions.New(store.Of(q)), reports.New(store.Of(q))}
}
