package queue

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/store"
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
	CreatedAfter   time.Time // at this instant, too
	CreatedBefore  time.Time
	Limit          int    // 1 to 1,000
	Cursor         string // Next of the page before; empty starts
}

// Page is a page of jobs, the newest first within each route and state. Next is the cursor of the
// following page, empty on the last one. A job that moves between two pages may be on both. One
// call reads a bounded number of jobs: a page of a list by type or time may have fewer jobs than
// the limit, even none, and be followed by others.
type Page struct {
	Jobs []Job
	Next string
}

const (
	siftedMost = 1000 // jobs that a list by type or time reads in one call
	listStep   = 500  // entries of one exchange
	recordHead = 254  // last byte of the part of a record that holds the state and the flow
)

// source is a key that holds jobs of a flow.
type source struct {
	shard     ShardKeys
	flow, key string
	holds     ListState // ListScheduled: retrying jobs too; ListSucceeded: all that have ended and are not dead
}

// name is the source in a cursor.
func (p source) name() string {
	return strconv.Itoa(p.shard.Index) + ":" + string(p.holds) + ":" + p.flow
}

// holder returns what the source of jobs in the state holds.
func (s ListState) holder() ListState {
	switch s {
	case ListRetrying:
		return ListScheduled
	case ListCancelled, ListExpired:
		return ListSucceeded
	}
	return s
}

// mark is the last entry of a source that was listed.
type mark struct {
	Score float64 `json:"s"`
	ID    string  `json:"i"`
	End   bool    `json:"e,omitempty"` // nothing is left
}

// entry is one job of a source in the order of a list.
type entry struct {
	source source
	score  float64
	id     string
}

// List reads a page of jobs. It reads several keys one after another, so a job that moves meanwhile
// may be missing. A listed job was in the state when it was read. Errors: ErrCursor,
// ErrUnavailable.
func (q *Queue) List(ctx context.Context, l List) (page Page, err error) {
	marks, err := readMarks(l.Cursor)
	if err != nil {
		return page, err
	}
	if l.IdempotencyKey != "" {
		return q.listKey(ctx, l)
	}
	sources, err := q.sources(ctx, l)
	if err != nil {
		return page, err
	}
	size := l.Limit
	if l.sifts() {
		size = max(size, siftedMost)
	}
	heads, unread := map[source][]entry{}, map[source]int{}
	for _, p := range sources {
		if m := marks[p.name()]; !m.End {
			if heads[p], err = q.entries(ctx, p, l.State, size, m); err != nil {
				return page, err
			}
			unread[p] = len(heads[p])
		}
	}
	entries, ids := newest(heads, size)
	jobs, err := q.read(ctx, EncodeName(l.Tenant), ids)
	if err != nil {
		return page, err
	}
	found := make(map[string]Job, len(jobs))
	for _, j := range jobs {
		found[j.ID] = j
	}
	for _, e := range entries {
		if len(page.Jobs) == l.Limit {
			break
		}
		unread[e.source]--
		marks[e.source.name()] = mark{Score: e.score, ID: e.id}
		if j, exists := found[e.id]; exists && l.takes(j) {
			page.Jobs = append(page.Jobs, j)
		}
		delete(found, e.id) // a job that moves meanwhile is in two sources
	}
	more := false
	for p, n := range unread {
		m := marks[p.name()]
		m.End = n == 0
		marks[p.name()] = m
		more = more || n > 0
	}
	if more {
		page.Next = writeMarks(marks)
	}
	return page, nil
}

// sources returns where jobs of the list may be.
func (q *Queue) sources(ctx context.Context, l List) (sources []source, err error) {
	shards, flows := q.policies.Current().Shards(l.Tenant), []string{store.FlowName(l.Tenant, l.Route)}
	byShard, err := q.flowsOf(ctx, l.Tenant, shards)
	if err != nil {
		return nil, err
	}
	for i, shard := range shards {
		if l.Route == "" {
			flows = byShard[i]
		}
		for _, flow := range flows {
			for _, p := range []source{
				{shard, flow, shard.Queue(flow), ListQueued}, {shard, flow, shard.Later(flow), ListScheduled},
				{shard, flow, shard.Leases(), ListLeased}, // of the whole shard
				{shard, flow, shard.Dead(flow), ListDead}, {shard, flow, shard.Done(flow), ListSucceeded},
			} {
				if l.State == ListAll || l.State.holder() == p.holds {
					sources = append(sources, p)
				}
			}
		}
	}
	return sources, nil
}

// flowsOf lists the flows of a tenant, by shard.
func (q *Queue) flowsOf(ctx context.Context, tenant string, shards []ShardKeys) ([][]string, error) {
	return store.Pipeline(ctx, q.store.Fast, shards, func(p redis.Pipeliner, s ShardKeys) *redis.StringSliceCmd {
		return p.SMembers(ctx, s.Names(EncodeName(tenant)))
	})
}

// newest merges the heads of the sources, newest first, up to limit entries.
func newest(heads map[source][]entry, limit int) (entries []entry, ids []string) {
	for len(entries) < limit {
		var next entry // ids sort by the time they were made
		for _, list := range heads {
			if len(list) > 0 && list[0].id > next.id {
				next = list[0]
			}
		}
		if next.id == "" {
			break
		}
		entries, ids = append(entries, next), append(ids, next.id)
		heads[next.source] = heads[next.source][1:]
	}
	return entries, ids
}

// listKey lists the job of an idempotency key. Past retention it has only what the key holds.
func (q *Queue) listKey(ctx context.Context, l List) (Page, error) {
	texts, err := store.Pipeline(ctx, q.store.Fast, q.policies.Current().Shards(l.Tenant), func(p redis.Pipeliner, s ShardKeys) *redis.SliceCmd {
		return p.MGet(ctx, s.Idem(EncodeName(l.Tenant), store.ShortHash(l.IdempotencyKey))) // no error where it is not
	})
	if err != nil {
		return Page{}, err
	}
	text := ""
	for _, found := range texts {
		if value, ok := found[0].(string); ok {
			text = value
		}
	}
	if text == "" {
		return Page{}, nil
	}
	known := lua.ParseKnown(text)
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

// sifts reports whether the list filters by what only the records hold.
func (l List) sifts() bool {
	return l.Type != "" || !l.CreatedAfter.IsZero() || !l.CreatedBefore.IsZero()
}

// takes reports whether the job, which is of the list's tenant and route, belongs to the list.
func (l List) takes(j Job) bool {
	return (l.State == ListAll || j.State.String() == string(l.State)) && (l.Type == "" || j.Type == l.Type) &&
		!j.Created.Before(l.CreatedAfter) && (l.CreatedBefore.IsZero() || j.Created.Before(l.CreatedBefore))
}

// entries reads up to limit + 1 entries of a source after the mark, in the order of the list.
func (q *Queue) entries(
	ctx context.Context, p source, state ListState, limit int, after mark,
) (out []entry, err error) {
	if p.holds == ListSucceeded {
		return q.doneEntries(ctx, p, state, limit, after)
	}
	skip := int64(0) // entries with the score of after that were skipped; may be more than a step
	for more := true; more && len(out) <= limit; {
		high := "+inf"
		if after.ID != "" {
			high = strconv.FormatFloat(after.Score, 'f', -1, 64)
		}
		page := &redis.ZRangeBy{Min: "-inf", Max: high, Offset: skip, Count: listStep}
		found, err := q.store.Fast.ZRevRangeByScoreWithScores(ctx, p.key, page).Result()
		if err != nil {
			return nil, store.Unavailable(err)
		}
		fresh := make([]entry, 0, len(found))
		for _, z := range found {
			id, _ := z.Member.(string)
			if after.ID == "" || z.Score < after.Score || z.Score == after.Score && id < after.ID {
				fresh = append(fresh, entry{source: p, score: z.Score, id: id})
			}
		}
		more = len(found) == listStep
		if skip += listStep; len(fresh) > 0 {
			last := fresh[len(fresh)-1]
			after, skip = mark{Score: last.score, ID: last.id}, 0
		}
		if fresh, err = q.ofState(ctx, state, fresh); err != nil {
			return nil, err
		}
		out = append(out, fresh[:min(len(fresh), limit+1-len(out))]...)
	}
	return out, nil
}

// ofState keeps the entries of one source whose job is in the state and flow.
func (q *Queue) ofState(ctx context.Context, state ListState, entries []entry) ([]entry, error) {
	if len(entries) == 0 {
		return entries, nil
	}
	holds := entries[0].source.holds
	if holds == ListQueued || holds == ListDead || holds != ListLeased && state == ListAll {
		return entries, nil
	}
	heads, err := store.Pipeline(ctx, q.store.Fast, entries, func(p redis.Pipeliner, e entry) *redis.StringCmd {
		return p.GetRange(ctx, e.source.shard.Job(e.id), 0, recordHead)
	})
	if err != nil {
		return nil, err
	}
	kept := entries[:0]
	for i, e := range entries {
		has, flow, ok := lua.PeekRecord([]byte(heads[i]))
		if ok && flow == e.source.flow &&
			(has.String() == string(state) || state == ListAll && has == shaper.Leased) {
			kept = append(kept, e)
		}
	}
	return kept, nil
}

// doneEntries reads the list of recently ended jobs, which has no scores.
func (q *Queue) doneEntries(
	ctx context.Context, p source, state ListState, limit int, after mark,
) (out []entry, err error) {
	ids, err := q.store.Fast.LRange(ctx, p.key, 0, -1).Result()
	if err != nil {
		return nil, store.Unavailable(err)
	}
	if after.ID != "" {
		i := slices.Index(ids, after.ID)
		if i < 0 {
			return nil, nil // it was trimmed, and everything after it
		}
		ids = ids[i+1:]
	}
	for some := range slices.Chunk(ids, limit+1) {
		entries := make([]entry, 0, len(some))
		for _, id := range some {
			entries = append(entries, entry{source: p, id: id})
		}
		if entries, err = q.ofState(ctx, state, entries); err != nil {
			return nil, err
		}
		if out = append(out, entries...); len(out) > limit {
			return out[:limit+1], nil
		}
	}
	return out, nil
}

// Find reads a job of any tenant by its id alone. Errors: ErrNotFound, ErrUnavailable.
func (q *Queue) Find(ctx context.Context, id string) (Job, error) {
	shard, ok := q.store.ShardOfID(id)
	if !ok {
		return Job{}, ErrNotFound
	}
	start, err := q.store.Fast.GetRange(ctx, shard.Job(id), 0, recordHead).Result()
	if err != nil {
		return Job{}, store.Unavailable(err)
	}
	_, flow, ok := lua.PeekRecord([]byte(start))
	if !ok {
		return Job{}, ErrNotFound
	}
	tenant, _, _ := strings.Cut(flow, "/")
	return q.readOne(ctx, tenant, id)
}

// read reads jobs of the tenant, which is named as in keys. It leaves out those that are gone.
func (q *Queue) read(ctx context.Context, tenant string, ids []string) ([]Job, error) {
	found, err := q.statuses(ctx, tenant, ids, mostResult)
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
	Result []byte
}

// statuses reads jobs of the tenant, which is named as in keys, each with at most the given
// number of bytes of its result. A job that is gone is nil.
func (q *Queue) statuses(ctx context.Context, tenant string, ids []string, mostResult int) ([]*status, error) {
	calls := make([]lua.StatusCall, len(ids))
	for i, id := range ids {
		shard, _ := q.store.ShardOfID(id) // ids come from the store, or were checked
		calls[i] = lua.StatusCall{Clock: shard.Clock(), Job: shard.Job(id), Tenant: tenant, MostResult: mostResult}
	}
	found, err := store.InvokeAll(ctx, q.store, q.store.Fast, calls, lua.StatusCall.Decode)
	if err != nil {
		return nil, err
	}
	jobs := make([]*status, len(ids))
	for i, f := range found {
		if !f.Found {
			continue
		}
		r, err := lua.DecodeStatus(f.Record)
		if err != nil {
			return nil, store.Unavailable(err)
		}
		j := jobOf(ids[i], r)
		j.Position, j.EstimatedStart = f.Position, f.Start.Time()
		jobs[i] = &status{j, r.Result}
	}
	return jobs, nil
}

func readMarks(cursor string) (map[string]mark, error) {
	marks := map[string]mark{}
	if cursor == "" {
		return marks, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || strings.ContainsAny(cursor, "\r\n") || json.Unmarshal(raw, &marks) != nil || marks == nil {
		return nil, ErrCursor
	}
	for _, m := range marks {
		if math.IsNaN(m.Score) || math.IsInf(m.Score, 0) {
			return nil, ErrCursor
		}
	}
	return marks, nil
}

func writeMarks(marks map[string]mark) string {
	raw, _ := json.Marshal(marks) // names and finite numbers cannot fail
	return base64.RawURLEncoding.EncodeToString(raw)
}
