package queue

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// ListState is what jobs can be listed by: a waiting or leased state, "dead", or "done" for all that ended otherwise.
type ListState string

// The states of a list.
const (
	ListQueued    ListState = "queued"
	ListScheduled ListState = "scheduled"
	ListRetrying  ListState = "retrying"
	ListLeased    ListState = "leased"
	ListDead      ListState = "dead"
	ListDone      ListState = "done"
)

// ListStates are all of them.
func ListStates() []ListState {
	return []ListState{ListQueued, ListScheduled, ListRetrying, ListLeased, ListDead, ListDone}
}

// List asks for a page of a tenant's jobs.
type List struct {
	Tenant string
	State  ListState
	Route  string // empty: every route
	Limit  int    // 1 to 1,000
	Cursor string // Next of the page before; empty starts
}

// Page is jobs, newest first per route; Next is empty on the last page.
type Page struct {
	Jobs []Job
	Next string
}

// mark is how far the list of one flow has been read: the last entry given.
type mark struct {
	Score float64 `json:"s"`
	ID    string  `json:"i"`
	End   bool    `json:"e,omitempty"` // nothing is left
}

// entry is one job of a flow in the order of a list.
type entry struct {
	flow  string
	score float64
	id    string
}

// List lists jobs by state. It reads several keys one after another, so a job that moves meanwhile may be missing; one that is listed was in
// the state when it was read. Errors: ErrCursor, ErrUnavailable.
func (q *Queue) List(ctx context.Context, l List) (Page, error) {
	marks, err := readMarks(l.Cursor)
	if err != nil {
		return Page{}, err
	}
	shard, tenant := q.keys.ShardOf(l.Tenant), EncodeName(l.Tenant)
	flows := []string{flowName(l.Tenant, l.Route)}
	if l.Route == "" {
		if flows, err = q.engine.fast.SMembers(ctx, shard.Names(tenant)).Result(); err != nil {
			return Page{}, unavailable(err)
		}
		slices.Sort(flows)
	}
	unread := map[string][]entry{} // of each flow, in its own order
	for _, flow := range flows {
		if marks[flow].End {
			continue
		}
		if unread[flow], err = q.entries(ctx, shard, flow, l, marks[flow]); err != nil {
			return Page{}, err
		}
	}
	var given []entry
	for len(given) < l.Limit {
		e, ok := newest(unread)
		if !ok {
			break
		}
		given = append(given, e)
		unread[e.flow] = unread[e.flow][1:]
		marks[e.flow] = mark{Score: e.score, ID: e.id}
	}
	more := false
	for flow, rest := range unread {
		m := marks[flow]
		m.End = len(rest) == 0
		marks[flow] = m
		more = more || !m.End
	}
	page := Page{}
	if more {
		if page.Next, err = writeMarks(marks); err != nil {
			return Page{}, err
		}
	}
	page.Jobs, err = q.read(ctx, shard, l.Tenant, given)
	page.Jobs = slices.DeleteFunc(page.Jobs, func(j Job) bool { return !l.State.holds(j.State) })
	return page, err
}

// newest is the entry with the latest id among the heads of the flows' lists; ids sort by the time they were made.
func newest(unread map[string][]entry) (best entry, ok bool) {
	for _, list := range unread {
		if len(list) > 0 && list[0].id > best.id {
			best, ok = list[0], true
		}
	}
	return best, ok
}

// entries reads up to limit + 1 entries of a flow after the mark, in the order of the list.
func (q *Queue) entries(ctx context.Context, shard ShardKeys, flow string, l List, after mark) ([]entry, error) {
	var key string
	switch l.State {
	case ListDone:
		return q.doneEntries(ctx, shard.Done(flow), flow, l.Limit, after)
	case ListQueued:
		key = shard.Queue(flow)
	case ListScheduled, ListRetrying:
		key = shard.Later(flow)
	case ListDead:
		key = shard.Dead(flow)
	case ListLeased:
		key = shard.Leases()
	}
	var out []entry
	top, skip := after, int64(0) // skip: of the entries with top's score, which may be more than one step, so many were passed over
	for len(out) <= l.Limit {
		high := "+inf"
		if top.ID != "" {
			high = strconv.FormatFloat(top.Score, 'f', -1, 64)
		}
		const step = 500
		found, err := q.engine.fast.ZRevRangeByScoreWithScores(ctx, key, &redis.ZRangeBy{Min: "-inf", Max: high, Offset: skip, Count: step}).Result()
		if err != nil {
			return nil, unavailable(err)
		}
		fresh := make([]entry, 0, len(found))
		for _, z := range found {
			id, _ := z.Member.(string)
			if top.ID == "" || z.Score < top.Score || z.Score == top.Score && id < top.ID {
				fresh = append(fresh, entry{flow: flow, score: z.Score, id: id})
			}
		}
		if len(fresh) == 0 && len(found) < step {
			return out, nil
		}
		if len(fresh) == 0 {
			skip += step
			continue
		}
		skip = 0
		last := fresh[len(fresh)-1]
		top = mark{Score: last.score, ID: last.id}
		if fresh, err = q.ofState(ctx, shard, l.State, fresh); err != nil {
			return nil, err
		}
		out = append(out, fresh[:min(len(fresh), l.Limit+1-len(out))]...)
	}
	return out, nil
}

// ofState keeps the entries whose job is in the wanted state and flow, where a key holds others too.
func (q *Queue) ofState(ctx context.Context, shard ShardKeys, state ListState, entries []entry) ([]entry, error) {
	var want shaper.State
	switch state {
	case ListScheduled:
		want = shaper.Scheduled
	case ListRetrying:
		want = shaper.Retrying
	case ListLeased:
		want = shaper.Leased
	default:
		return entries, nil
	}
	const head = 254 // of a record: it holds the state and the flow
	cmds := make([]*redis.StringCmd, len(entries))
	if _, err := q.engine.fast.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, e := range entries {
			cmds[i] = p.GetRange(ctx, shard.Job(e.id), 0, head)
		}
		return nil
	}); err != nil {
		return nil, unavailable(err)
	}
	kept := entries[:0]
	for i, e := range entries {
		if state, flow, ok := lua.PeekRecord([]byte(cmds[i].Val())); ok && state == want && flow == e.flow {
			kept = append(kept, e)
		}
	}
	return kept, nil
}

// doneEntries reads the list of recent terminal ids, whose order is its own.
func (q *Queue) doneEntries(ctx context.Context, key, flow string, limit int, after mark) ([]entry, error) {
	ids, err := q.engine.fast.LRange(ctx, key, 0, -1).Result()
	if err != nil {
		return nil, unavailable(err)
	}
	if after.ID != "" {
		i := slices.Index(ids, after.ID)
		if i < 0 {
			return nil, nil // it fell off the end, and everything after it
		}
		ids = ids[i+1:]
	}
	out := make([]entry, 0, min(len(ids), limit+1))
	for _, id := range ids[:min(len(ids), limit+1)] {
		out = append(out, entry{flow: flow, id: id})
	}
	return out, nil
}

// read reads jobs of the tenant in one exchange, without those that are gone.
func (q *Queue) read(ctx context.Context, shard ShardKeys, tenant string, entries []entry) ([]Job, error) {
	calls, sent := make([]lua.StatusCall, len(entries)), make([]lua.Call, len(entries))
	for i, e := range entries {
		calls[i] = lua.StatusCall{Clock: shard.Clock(), Job: shard.Job(e.id), Tenant: EncodeName(tenant), Baseline: q.encoded()}
		sent[i] = calls[i].Call()
	}
	if len(sent) == 0 {
		return nil, nil
	}
	jobs := make([]Job, 0, len(entries))
	for i, r := range lua.RunAll(ctx, q.engine.fast, q.observe, sent) {
		if r.Err != nil {
			return nil, unavailable(r.Err)
		}
		status, err := calls[i].Decode(r.Values)
		if err != nil {
			return nil, unavailable(err)
		}
		if !status.Found {
			continue
		}
		j, err := jobOfStatus(entries[i].id, status)
		if err != nil {
			return nil, unavailable(err)
		}
		jobs = append(jobs, j)
	}
	return jobs, nil
}

func (s ListState) holds(state shaper.State) bool {
	if s == ListDone {
		return state.Done() && state != shaper.Dead
	}
	return state.String() == string(s)
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

func writeMarks(marks map[string]mark) (string, error) {
	raw, err := json.Marshal(marks)
	if err != nil {
		return "", fmt.Errorf("queue: encode a cursor: %w", err)
	}
	return base64.RawURLEncoding.EncodeToString(raw), nil
}
