package api

import (
	"context"
	"crypto/sha256"
	"time"

	"github.com/7509e464/sluice/api/dashboard"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/keystore"
	"github.com/7509e464/sluice/queue/reports"
)

// Admitter is where jobs are asked to be admitted. The store owns the clock; an admission is one
// atomic step.
type Admitter interface {
	// NewID makes the id of a job of the tenant.
	NewID(tenant string) (string, error)
	// Submit asks for admission of one job. A refusal is the verdict's outcome, not an error.
	Submit(ctx context.Context, s queue.Submission) (queue.Verdict, error)
	// SubmitBatch asks for admission of 1 to 1,000 jobs of one tenant, all or none if atomic.
	SubmitBatch(ctx context.Context, batch []queue.Submission, atomic bool) ([]queue.Verdict, error)
}

// Jobs is where jobs are read and changed by their tenant. A job of another tenant is
// queue.ErrNotFound.
type Jobs interface {
	// Job reads one job.
	Job(ctx context.Context, tenant, id string) (queue.Job, error)
	// Find reads one job of any tenant by its id alone.
	Find(ctx context.Context, id string) (queue.Job, error)
	// Payload reads what a job delivers, nil if that is more than most bytes; its size is 0 where
	// the job has ended and kept none.
	Payload(ctx context.Context, tenant, id string, most int) (payload []byte, size int, err error)
	// List reads a page of the tenant's jobs. queue.ErrCursor if it gave no such cursor.
	List(ctx context.Context, l queue.List) (queue.Page, error)
	// Cancel ends a waiting job; queue.ErrConflict comes with the job as it is.
	Cancel(ctx context.Context, tenant, id string) (queue.Job, error)
	// Replay brings a dead job back for at most maxAttempts deliveries; queue.ErrConflict comes
	// with the job as it is.
	Replay(ctx context.Context, tenant, id string, maxAttempts int) (queue.Verdict, error)
	// Watch signals once when the job has perhaps ended. A state read after Watch returned cannot
	// miss the end.
	Watch(ctx context.Context, id string) (ended <-chan struct{}, stop func(), err error)
}

// Sweeper changes many jobs of a tenant at once: those of a filter, a bounded number in one call.
type Sweeper interface {
	// Purge cancels waiting jobs and deletes dead ones.
	Purge(ctx context.Context, tenant string, f queue.Filter) (queue.Swept, error)
	// ReplayAll brings dead jobs back, until one finds no place. attempts says how many deliveries
	// a job may have.
	ReplayAll(ctx context.Context, tenant string, f queue.Filter, attempts func(queue.Job) int) (queue.Swept, error)
}

// Tenants is where policies are read and changed.
type Tenants interface {
	// Tenant reads policy and figures, also of a tenant never seen.
	Tenant(ctx context.Context, tenant string) (queue.Tenant, error)
	// Tune changes the API overrides: queue.ErrRevision, shaper.Problems, or the error of
	// change.Edit.
	Tune(ctx context.Context, tenant string, change queue.Change) (queue.Tenant, error)
	// Tenants lists names; next is the cursor of the following page, "" starts and ends.
	// queue.ErrCursor if it gave none such.
	Tenants(ctx context.Context, cursor string, limit int) (names []string, next string, err error)
	// History lists the last changes of the API overrides, the newest first.
	History(ctx context.Context, tenant string) ([]queue.HistoryEntry, error)
}

// KeyRing is where API keys are made and revoked. A key of another tenant is
// keystore.ErrUnknownKey.
type KeyRing interface {
	// CreateKey stores a key of which only the digest of its secret is told; a zero expires is
	// never. keystore.ErrTooManyKeys at the bound.
	CreateKey(ctx context.Context, tenant, name string, hash [sha256.Size]byte, expires time.Time) (keystore.Key, error)
	// Keys lists the tenant's keys, the oldest first, without their digests.
	Keys(ctx context.Context, tenant string) ([]keystore.Key, error)
	// RevokeKey removes a key for good.
	RevokeKey(ctx context.Context, tenant, id string) error
}

// Health is what probes and gauges ask.
type Health interface {
	// Ping reports whether the store answers and is ready to work.
	Ping(ctx context.Context) error
	// Agreement reports whether the policies of this process's configuration file are in force.
	Agreement() queue.Agreement
	// Totals sums over all tenants.
	Totals(ctx context.Context) (queue.Totals, error)
}

// Figures is what is shown in motion; see live.Source.
type Figures interface {
	Workers(ctx context.Context) (reports.Workers, error)
	StoreHealth(ctx context.Context) (queue.StoreHealth, error)
	Scan(ctx context.Context, cursor string, most int) (part []queue.Brief, next string, err error)
	Waits(ctx context.Context, tenant string, most int) ([]time.Duration, error)
}

// Backend is everything that the API needs; see BackendOf. Every error about the store wraps
// queue.ErrUnavailable or queue.ErrScript.
type Backend interface {
	Admitter
	Jobs
	Sweeper
	Tenants
	KeyRing
	Health
	Figures
	dashboard.Store
}

// BackendOf returns the backend in the queue's store.
func BackendOf(q *queue.Queue) Backend {
	return struct {
		*queue.Queue
		*keystore.Store
		*reports.Reports
	}{q, keystore.New(q.Store()), reports.New(q.Store())}
}
