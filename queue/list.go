package queue

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// ListState is what jobs can be listed by: one of the states of a job, or ListAll.
type ListState string

// The states of a list.
const (
	ListAll       ListState = "all"
	ListQueued    ListState = "queued"
	ListScheduled ListState = "scheduled"
	ListRetrying  ListState = "retrying"
	ListLeased    ListState = "leased"
	ListSucceeded ListState = "succeeded"
	ListDead      ListState = "dead"
	ListCancelled ListState = "cancelled"
	ListExpired   ListState = "expired"
)

// ListStates returns all states of a list.
func ListStates() []ListState {
	return []ListState{
		ListAll, ListQueued, ListScheduled, ListRetrying, ListLeased, ListSucceeded, ListDead, ListCancelled,
		ListExpired,
	}
}

// List selects a page of a tenant's jobs. An empty or zero field does not restrict it.
type List struct {
	Tenant         string
	State          ListState
	Route          string
	Type           string
	IdempotencyKey string
	Error          string    // text that the last error contains; see Job.Failed
	CreatedAfter   time.Time // at this instant, too
	CreatedBefore  time.Time
	Limit          int    // 1 to 1,000
	Cursor         string // Next of the page before; empty starts
}

// Page is a page of jobs, the newest first within each route and state. Next is the cursor of the
// following page, empty on the last one. A job that moves between two pages may be on both. One
// call does a bounded amount of work in the store: a page may have fewer jobs than the limit, even
// none, and be followed by others.
type Page struct {
	Jobs []Job
	Next string
	Cost int // of the page for the store, in reads of one job
}

// Bounds of one call of List, beside the limit.
const (
	listRows  = 1000                 // commands and record heads
	listTime  = 5 * time.Millisecond // of the store
	listBytes = 1 << 20              // of the results that are read with the jobs
	listStep  = 100                  // jobs of one exchange
)

// The longest time that one core of Redis takes for a row of each kind. An exchange counts as long
// as it took, but at most this for each row: it may have waited for others, or Redis is far away.
const (
	headTime = 5 * time.Microsecond
	readTime = 50 * time.Microsecond // of a status
)

// rowsPerRead is how many commands and record heads cost as much as the read of one job, and
// marksPerRead how many bytes of a cursor: they take processor time.
const rowsPerRead, marksPerRead = 20, 1 << 10

// work adds up what one call did in the store.
type work struct {
	rows, reads, bytes int
	spent              time.Duration
	marks              int // bytes of the cursor, inflated
}

// add counts an exchange that took so long.
func (w *work) add(took time.Duration, rows, reads int) {
	w.rows, w.reads = w.rows+rows, w.reads+reads
	w.spent += min(took, time.Duration(rows)*headTime+time.Duration(reads)*readTime)
}

// done reports whether a call should return what it has.
func (w *work) done() bool {
	return w.rows >= listRows || w.spent >= listTime || w.bytes >= listBytes
}

// cost is the work in reads of one job.
func (w *work) cost() int { return 1 + w.reads + w.rows/rowsPerRead + w.marks/marksPerRead }

// List reads a page of jobs. It reads several keys one after another, so a job that moves meanwhile
// may be missing. A listed job was in the state when it was read. Errors: ErrCursor,
// ErrUnavailable.
func (q *Queue) List(ctx context.Context, l List) (page Page, err error) {
	if l.IdempotencyKey != "" {
		if _, _, err := readMarks(l.Cursor, 0); err != nil {
			return page, err
		}
		page, err = q.listKey(ctx, l)
		page.Cost = 2
		return page, err
	}
	s := &lister{q: q, List: l, tenant: store.EncodeName(l.Tenant)}
	if err := s.open(ctx); err != nil {
		return page, err
	}
	seen := map[string]bool{} // a job that moves meanwhile is in two sources
	for first := true; len(page.Jobs) < l.Limit && (first || !s.work.done()); first = false {
		more, err := s.step(ctx, l.Limit-len(page.Jobs), seen, &page.Jobs)
		if err != nil {
			return Page{}, err
		}
		if !more {
			break
		}
	}
	page.Next, page.Cost = s.cursor(), s.work.cost()
	return page, nil
}

// flowsOf lists the flows of a tenant, by shard.
func (q *Queue) flowsOf(ctx context.Context, tenant string, shards []store.ShardKeys) ([][]string, error) {
	return store.Pipeline(ctx, q.store.Reads, shards, func(p redis.Pipeliner, s store.ShardKeys) *redis.StringSliceCmd {
		return p.SMembers(ctx, s.Names(store.EncodeName(tenant)))
	})
}

// listKey lists the job of an idempotency key. Past retention it has only what the key holds.
func (q *Queue) listKey(ctx context.Context, l List) (Page, error) {
	tenant := store.EncodeName(l.Tenant)
	hashes := []string{q.idemHash(tenant, l.IdempotencyKey), store.ShortHash(l.IdempotencyKey)} // before encryption
	texts, err := store.Pipeline(ctx, q.store.Reads, q.policies.Current().Shards(l.Tenant), func(p redis.Pipeliner, s store.ShardKeys) *redis.SliceCmd {
		return p.MGet(ctx, s.Idem(tenant, hashes[0]), s.Idem(tenant, hashes[1])) // no error where it is not
	})
	if err != nil {
		return Page{}, err
	}
	text := ""
	for _, found := range texts {
		for _, value := range found {
			if value, ok := value.(string); ok && text == "" {
				text = value
			}
		}
	}
	if text == "" {
		return Page{}, nil
	}
	known := scripts.ParseKnown(text)
	job, err := q.Job(ctx, l.Tenant, known.ID)
	switch {
	case errors.Is(err, ErrNotFound):
		job = knownJob(known)
		job.Tenant = l.Tenant
	case err != nil:
		return Page{}, err
	}
	if !l.takes(job) || l.Route != "" && job.Route != l.Route {
		return Page{}, nil
	}
	return Page{Jobs: []Job{job}}, nil
}

// takes reports whether the job, which is of the list's tenant and route, belongs to the list.
func (l List) takes(j Job) bool {
	return l.has(j.State, j.Type, j.Created) && (l.Error == "" || j.Failed(l.Error))
}

// has reports whether a job with these properties belongs to the list.
func (l List) has(state shaper.State, kind string, created time.Time) bool {
	return (l.State == ListAll || state.String() == string(l.State)) && (l.Type == "" || kind == l.Type) &&
		!created.Before(l.CreatedAfter) && (l.CreatedBefore.IsZero() || created.Before(l.CreatedBefore))
}

// sifts reports whether the list filters by what only the records hold.
func (l List) sifts() bool {
	return l.Type != "" || !l.CreatedAfter.IsZero() || !l.CreatedBefore.IsZero()
}

// Find reads a job of any tenant by its id alone. Errors: ErrNotFound, ErrUnavailable.
func (q *Queue) Find(ctx context.Context, id string) (Job, error) {
	shard, ok := q.store.ShardOfID(id)
	if !ok {
		return Job{}, ErrNotFound
	}
	start, err := q.store.Reads.GetRange(ctx, shard.Job(id), 0, scripts.PeekFlow-1).Result()
	if err != nil {
		return Job{}, store.Unavailable(err)
	}
	p, ok := scripts.PeekRecord([]byte(start))
	if !ok {
		return Job{}, ErrNotFound
	}
	tenant, _, _ := strings.Cut(p.Flow, "/")
	return q.readOne(ctx, tenant, id)
}

// read reads jobs of the tenant, which is named as in keys. It leaves out those that are gone.
func (q *Queue) read(ctx context.Context, tenant string, ids []string) ([]Job, error) {
	found, err := q.statuses(ctx, tenant, ids)
	jobs := make([]Job, 0, len(found))
	for _, s := range found {
		if s != nil {
			jobs = append(jobs, s.Job)
		}
	}
	return jobs, err
}

// status is a job as it is read, with the bytes of its result.
type status struct {
	Job
	result result
	read   int    // bytes of the result that were read
	size   int    // of the whole result
	whole  bool   // the result was read as far as its answer
	head   []byte // of the record
}

// MaxShown is how many bytes of the body of an answer are read with its job.
const MaxShown = 4 << 10

// The bytes of a result that are read with a job: at first, which is enough for most, and where
// that does not have all that is shown.
const (
	someResult = 16 << 10
	mostResult = 64 << 10 // what precedes an answer never needs as many
)

// shown reports whether what was read of the result has all that is shown of it.
func (s *status) shown() bool {
	if s.read >= s.size {
		return true
	}
	_, body, _ := bytes.Cut(s.result.answer, []byte("\r\n\r\n"))
	return s.whole && len(body) > MaxShown
}

// statuses reads jobs of the tenant, which is named as in keys, each with what is shown of its
// result. A job that is gone is nil.
func (q *Queue) statuses(ctx context.Context, tenant string, ids []string) ([]*status, error) {
	jobs, err := q.readStatuses(ctx, tenant, ids, someResult)
	if err != nil {
		return nil, err
	}
	for i, j := range jobs {
		if j != nil && !j.shown() {
			again, err := q.readStatuses(ctx, tenant, ids[i:i+1], mostResult)
			if err != nil {
				return nil, err
			}
			jobs[i] = again[0]
		}
	}
	return jobs, nil
}

// readStatuses reads jobs with at most the given number of bytes of their results.
func (q *Queue) readStatuses(ctx context.Context, tenant string, ids []string, most int) ([]*status, error) {
	calls := make([]scripts.StatusCall, len(ids))
	for i, id := range ids {
		shard, _ := q.store.ShardOfID(id) // ids come from the store, or were checked
		calls[i] = scripts.StatusCall{Clock: shard.Clock(), Job: shard.Job(id), Tenant: tenant, MostResult: most}
	}
	found, err := store.InvokeAll(ctx, q.store, q.store.Reads, calls, scripts.StatusCall.Decode)
	if err != nil {
		return nil, err
	}
	jobs := make([]*status, len(ids))
	for i, f := range found {
		if !f.Found {
			continue
		}
		if jobs[i], err = q.statusOf(tenant, ids[i], f.Record); err != nil {
			return nil, store.Unavailable(err)
		}
		jobs[i].Position, jobs[i].EstimatedStart = f.Position, f.Start.Time()
	}
	return jobs, nil
}

// statusOf decodes a record without its payload, of a job of the tenant as in keys.
func (q *Queue) statusOf(tenant, id string, raw []byte) (*status, error) {
	r, err := scripts.DecodeStatus(raw)
	if err != nil {
		return nil, err
	}
	failed := openRecord(q.box, id, &r)
	size := scripts.ResultSize(raw)
	res, whole, err := decodeResult(q.box, tenant, id, r.Result, size)
	if failed == nil {
		failed = err
	}
	return &status{jobOf(id, r, res, failed), res, len(r.Result), size, whole || failed != nil, raw[:scripts.HeadLength]}, nil
}
