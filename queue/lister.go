package queue

import (
	"bytes"
	"compress/flate"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// lister reads the index entries of a list in steps, merges them, and reads records only as far as
// a page needs them.
type lister struct {
	List
	q       *Queue
	tenant  string // as in keys
	sources []*source
	work    work
}

// source is a key that holds jobs of a flow, or of a whole shard.
type source struct {
	shard     store.ShardKeys
	flow, key string    // no flow: of the whole shard
	holds     ListState // ListScheduled: retrying jobs too; ListSucceeded: all that have ended and are not dead

	after  mark    // the last entry that is behind the list
	read   mark    // the last entry that was read
	unread []entry // behind after, in the order of the list
	ended  bool    // nothing follows unread
	rested bool    // this call has scanned enough of it without a job of the list
}

// name is the source in a cursor.
func (p *source) name() string {
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
	score float64 // in a list of ended jobs, its index
	id    string
}

// candidate is an entry with its source.
type candidate struct {
	*source
	entry
}

// open finds the sources and reads the first entries of each. Errors: ErrCursor, ErrUnavailable.
func (s *lister) open(ctx context.Context) error {
	shards, flows := s.q.policies.Current().Shards(s.Tenant), []string{store.FlowName(s.Tenant, s.Route)}
	byShard, err := s.q.flowsOf(ctx, s.Tenant, shards)
	if err != nil {
		return err
	}
	sources := 0
	for _, flows := range byShard {
		sources += sourcesOfFlow*len(flows) + 1
	}
	marks, size, err := readMarks(s.Cursor, sources)
	if s.work.marks = size; err != nil {
		return err
	}
	for i, shard := range shards {
		if s.Route == "" {
			flows = byShard[i]
		}
		of := []*source{{shard: shard, key: shard.Leases(), holds: ListLeased}}
		if running, err := s.running(ctx, shard, flows); err != nil {
			return err
		} else if !running {
			of = nil
		}
		for _, flow := range flows {
			of = append(of,
				&source{shard: shard, flow: flow, key: shard.Queue(flow), holds: ListQueued},
				&source{shard: shard, flow: flow, key: shard.Later(flow), holds: ListScheduled},
				&source{shard: shard, flow: flow, key: shard.Dead(flow), holds: ListDead},
				&source{shard: shard, flow: flow, key: shard.Done(flow), holds: ListSucceeded})
		}
		for _, p := range of {
			p.after = marks[p.name()]
			if p.ended = p.after.End; s.State == ListAll || s.State.holder() == p.holds {
				s.sources = append(s.sources, p)
			}
		}
	}
	var open []*source
	for _, p := range s.sources {
		if !p.ended {
			open = append(open, p)
		}
	}
	return s.fetch(ctx, open, min(listStep, s.Limit, max(1, listRows/max(1, len(open))))+1)
}

// running reports whether the list may have leased jobs of the flows. The index of leases is of the
// whole shard, so most lists need not read it.
func (s *lister) running(ctx context.Context, shard store.ShardKeys, flows []string) (bool, error) {
	if s.State != ListAll && s.State != ListLeased {
		return false, nil
	}
	began := time.Now()
	counts, err := store.Pipeline(ctx, s.q.store.Reads, flows, func(p redis.Pipeliner, flow string) *redis.SliceCmd {
		return p.HMGet(ctx, shard.Flow(flow), "running") // no error where it is not
	})
	s.work.add(time.Since(began), len(flows), 0)
	for _, c := range counts {
		if text, _ := c[0].(string); text != "" && text != "0" {
			return true, err
		}
	}
	return false, err
}

// fetch reads up to count entries of each source behind what was read before.
func (s *lister) fetch(ctx context.Context, sources []*source, count int) error {
	if len(sources) == 0 {
		return nil
	}
	began := time.Now()
	lists, sets := map[*source]*redis.StringSliceCmd{}, map[*source]*redis.ZSliceCmd{}
	if _, err := s.q.store.Reads.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, p := range sources {
			switch m := p.next(); {
			case p.ended:
			case p.holds == ListSucceeded: // from the mark on, if that has not moved
				lists[p] = pipe.LRange(ctx, p.key, int64(m.Score), int64(m.Score)+int64(count))
			case m.ID == "":
				sets[p] = pipe.ZRevRangeWithScores(ctx, p.key, 0, int64(count)-1)
			default:
				sets[p] = pipe.ZRevRangeByScoreWithScores(ctx, p.key, &redis.ZRangeBy{
					Min: "-inf", Max: scoreText(m.Score), Count: int64(count),
				})
			}
		}
		return nil
	}); err != nil {
		return store.Unavailable(err)
	}
	s.work.add(time.Since(began), len(sources), 0)
	for p, cmd := range lists {
		if err := s.takeList(ctx, p, cmd.Val(), count); err != nil {
			return err
		}
	}
	for p, cmd := range sets {
		if err := s.takeSet(ctx, p, cmd.Val(), count); err != nil {
			return err
		}
	}
	for _, p := range sources {
		if p.holds == ListLeased {
			if err := s.own(ctx, p); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeList keeps the entries of a list of ended jobs that follow the mark. ids were read from the
// index of the mark on. New entries come first, so that may be another one by now.
func (s *lister) takeList(ctx context.Context, p *source, ids []string, count int) error {
	m, from := p.next(), 0
	if m.ID != "" {
		from = int(m.Score) + 1
		if len(ids) > 0 && ids[0] == m.ID {
			ids = ids[1:]
		} else {
			all, err := s.q.store.Reads.LRange(ctx, p.key, 0, -1).Result() // at most 1,000
			if err != nil {
				return store.Unavailable(err)
			}
			s.work.add(0, len(all)/rowsPerRead, 0)
			if from = slices.Index(all, m.ID) + 1; from == 0 { // it was trimmed, and everything behind it
				from = len(all)
			}
			ids = all[from:]
		}
	}
	found := make([]entry, min(len(ids), count))
	for i := range found {
		found[i] = entry{float64(from + i), ids[i]}
	}
	p.take(found, found, count)
	return nil
}

// takeSet keeps the entries of a sorted set that follow the mark.
func (s *lister) takeSet(ctx context.Context, p *source, read []redis.Z, count int) (err error) {
	found := entriesOf(read)
	fresh := p.next().behind(found)
	if len(fresh) == 0 && len(found) == count { // many have the score of the mark
		if found, err = s.skip(ctx, p, count); err != nil {
			return err
		}
		fresh = p.next().behind(found)
	}
	p.take(found, fresh, count)
	return nil
}

// next is the mark behind which entries are to be read.
func (p *source) next() mark {
	if p.read.ID != "" {
		return p.read
	}
	return p.after
}

// take keeps entries that were read: those of found that are fresh.
func (p *source) take(found, fresh []entry, count int) {
	p.ended = len(found) < count
	if len(fresh) > 0 {
		last := fresh[len(fresh)-1]
		p.read = mark{Score: last.score, ID: last.id}
	}
	p.unread = append(p.unread, fresh...)
}

// behind returns the entries that follow the mark.
func (m mark) behind(entries []entry) []entry {
	for i, e := range entries {
		if m.ID == "" || e.score < m.Score || e.score == m.Score && e.id < m.ID {
			return entries[i:]
		}
	}
	return nil
}

// skip reads the entries behind the mark of a source by their rank, which a binary search finds:
// entries of one score are in the order of their ids.
func (s *lister) skip(ctx context.Context, p *source, count int) ([]entry, error) {
	c, m := s.q.store.Reads, p.next()
	low, err := c.ZCount(ctx, p.key, "("+scoreText(m.Score), "+inf").Result()
	if err != nil {
		return nil, store.Unavailable(err)
	}
	high, err := c.ZCount(ctx, p.key, scoreText(m.Score), "+inf").Result()
	if err != nil {
		return nil, store.Unavailable(err)
	}
	for low < high {
		middle := (low + high) / 2
		id, err := c.ZRevRange(ctx, p.key, middle, middle).Result()
		if err != nil {
			return nil, store.Unavailable(err)
		}
		if len(id) == 0 || id[0] < m.ID {
			high = middle
		} else {
			low = middle + 1
		}
	}
	found, err := c.ZRevRangeWithScores(ctx, p.key, low, low+int64(count)-1).Result()
	return entriesOf(found), store.Unavailable(err)
}

// own drops the leases of others from what was read of the index of a shard, and reads on until
// it has one of the list, or half the rows of a call were spent.
func (s *lister) own(ctx context.Context, p *source) error {
	for rows := 0; ; {
		rows += len(p.unread)
		kept, err := s.sift(ctx, candidatesOf(p))
		if err != nil {
			return err
		}
		p.unread = nil
		for _, c := range kept {
			p.unread = append(p.unread, c.entry)
		}
		switch {
		case len(p.unread) > 0 || p.ended:
			return nil
		case rows >= listRows/2:
			p.after, p.rested = p.read, true
			return nil
		}
		began := time.Now()
		found, err := s.q.store.Reads.ZRevRangeByScoreWithScores(ctx, p.key, &redis.ZRangeBy{
			Min: "-inf", Max: scoreText(p.next().Score), Count: listStep,
		}).Result()
		if err != nil {
			return store.Unavailable(err)
		}
		s.work.add(time.Since(began), 1, 0)
		if err := s.takeSet(ctx, p, found, listStep); err != nil {
			return err
		}
	}
}

// step passes the next jobs of the list, at most most, to jobs. It returns false at the end.
func (s *lister) step(ctx context.Context, most int, seen map[string]bool, jobs *[]Job) (more bool, err error) {
	size := listStep
	if !s.sifts() {
		size = min(size, most)
	}
	some, err := s.merge(ctx, size)
	if err != nil || len(some) == 0 {
		return false, err
	}
	kept, err := s.sift(ctx, some)
	if err != nil {
		return false, err
	}
	if len(kept) > most { // the rest is for the next page
		kept = kept[:most]
		last := kept[most-1].id
		for i := len(some) - 1; some[i].id != last; i-- {
			some[i].unread = append([]entry{some[i].entry}, some[i].unread...)
			some = some[:i]
		}
	}
	for _, c := range some {
		if c.after = (mark{Score: c.score, ID: c.id}); len(c.unread) == 0 {
			c.after = c.read
		}
	}
	ids := make([]string, 0, len(kept))
	for _, c := range kept {
		if !seen[c.id] {
			seen[c.id] = true
			ids = append(ids, c.id)
		}
	}
	began := time.Now()
	found, err := s.q.statuses(ctx, s.tenant, ids)
	if err != nil {
		return false, err
	}
	s.work.add(time.Since(began), 0, len(ids))
	for _, f := range found {
		if f != nil {
			if s.work.bytes += f.read; s.takes(f.Job) {
				*jobs = append(*jobs, f.Job)
			}
		}
	}
	return true, nil
}

// merge takes the next entries of all sources, the newest first, at most size.
func (s *lister) merge(ctx context.Context, size int) (some []candidate, err error) {
	for len(some) < size {
		var newest *source // ids sort by the time they were made
		for _, p := range s.sources {
			if len(p.unread) == 0 && !p.ended && !p.rested {
				if err := s.fetch(ctx, []*source{p}, listStep+1); err != nil {
					return nil, err
				}
			}
			if len(p.unread) > 0 && (newest == nil || p.unread[0].id > newest.unread[0].id) {
				newest = p
			}
		}
		if newest == nil {
			break
		}
		some = append(some, candidate{newest, newest.unread[0]})
		newest.unread = newest.unread[1:]
	}
	return some, nil
}

// sift keeps the candidates that belong to the list, as far as the heads of their records tell. It
// reads the heads only where the index does not say enough.
func (s *lister) sift(ctx context.Context, some []candidate) (sifted []candidate, err error) {
	last := int64(scripts.PeekFlow - 1)
	if s.Type != "" {
		last = scripts.PeekType - 1
	}
	var unsure []candidate
	for _, c := range some {
		if s.unsure(c.source) {
			unsure = append(unsure, c)
		}
	}
	began := time.Now()
	heads, err := store.Pipeline(ctx, s.q.store.Reads, unsure, func(p redis.Pipeliner, c candidate) *redis.StringCmd {
		return p.GetRange(ctx, c.shard.Job(c.id), 0, last)
	})
	if err != nil {
		return nil, err
	}
	s.work.add(time.Since(began), len(unsure), 0)
	for _, c := range some {
		if s.unsure(c.source) {
			head := heads[0]
			if heads = heads[1:]; !s.wants(c, head) {
				continue
			}
		}
		sifted = append(sifted, c)
	}
	return sifted, nil
}

// unsure reports whether a source holds other jobs than those of the list.
func (s *lister) unsure(p *source) bool {
	return s.sifts() || p.holds == ListLeased ||
		s.State != ListAll && (p.holds == ListScheduled || p.holds == ListSucceeded)
}

// wants reports whether the job with this head belongs to the list.
func (s *lister) wants(p candidate, head string) bool {
	j, ok := scripts.PeekRecord([]byte(head))
	if s.Type != "" {
		j.Type, _, _ = openTexts(s.q.box, s.tenant, p.id, j.Type, j.TraceParent) // unreadable: it has none
	}
	tenant, _, _ := strings.Cut(j.Flow, "/")
	return ok && tenant == s.tenant && (s.Route == "" || j.Flow == store.FlowName(s.Tenant, s.Route)) &&
		(p.holds != ListLeased || j.State == shaper.Leased) && s.has(j.State, j.Type, j.Created.Time())
}

func candidatesOf(p *source) []candidate {
	all := make([]candidate, len(p.unread))
	for i, e := range p.unread {
		all[i] = candidate{p, e}
	}
	return all
}

func entriesOf(found []redis.Z) []entry {
	entries := make([]entry, len(found))
	for i, z := range found {
		id, _ := z.Member.(string)
		entries[i] = entry{z.Score, id}
	}
	return entries
}

func scoreText(score float64) string { return strconv.FormatFloat(score, 'f', -1, 64) }

// cursor returns where the next page begins, empty where there is none.
func (s *lister) cursor() string {
	marks, more := map[string]mark{}, false
	for _, p := range s.sources {
		switch {
		case p.ended && len(p.unread) == 0:
			marks[p.name()] = mark{End: true}
			continue
		case p.after.ID != "":
			marks[p.name()] = p.after
		}
		more = true
	}
	if !more {
		return ""
	}
	return writeMarks(marks)
}

// sourcesOfFlow is how many sources each flow has, beside one of each shard.
const sourcesOfFlow = 4

// A cursor may inflate to leastMarks bytes, and to markSize for each source that the list has now.
// What a client sends could become a thousand times as long.
const leastMarks, markSize = 16 << 10, 512

// readMarks reads the cursor of a list with this many sources. It returns the bytes of the marks.
func readMarks(cursor string, sources int) (marks map[string]mark, size int, err error) {
	marks = map[string]mark{}
	if cursor == "" {
		return marks, 0, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err == nil && len(raw) > 0 && raw[0] != '{' {
		most := max(leastMarks, markSize*sources)
		raw, err = io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(raw)), int64(most)))
	}
	if err != nil || strings.ContainsAny(cursor, "\r\n") || json.Unmarshal(raw, &marks) != nil || marks == nil {
		return nil, 0, ErrCursor
	}
	for _, m := range marks {
		if math.IsNaN(m.Score) || math.IsInf(m.Score, 0) {
			return nil, 0, ErrCursor
		}
	}
	return marks, len(raw), nil
}

// writeMarks makes a cursor. That of many flows is compressed, so that it fits into a request.
func writeMarks(marks map[string]mark) string {
	raw, _ := json.Marshal(marks) // names and finite numbers cannot fail
	if len(raw) > 1024 {
		var out bytes.Buffer
		w, _ := flate.NewWriter(&out, flate.BestSpeed) // fails for unknown levels only
		_, _ = w.Write(raw)                            // into memory
		_ = w.Close()
		raw = out.Bytes()
	}
	return base64.RawURLEncoding.EncodeToString(raw)
}
