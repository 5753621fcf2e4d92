package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
)

// Steps of a check, each some milliseconds of Redis's time.
const (
	checkTenants = 50
	checkFlows   = 5
	checkJobs    = 200
	checkKeys    = 1000
)

// StoredShards returns the number of shards of the store that is there, 0 for none. It writes
// nothing. Errors: ErrUnavailable.
func StoredShards(ctx context.Context, e *Engine) (int, error) {
	n, err := e.patient.HGet(ctx, metaKey, "shards").Int()
	if errors.Is(err, redis.Nil) {
		return 0, nil
	}
	return n, unavailable(err)
}

// Checked is how much a check has looked at.
type Checked struct {
	Shards  int   `json:"shards"`
	Tenants int64 `json:"tenants"`
	Flows   int64 `json:"flows"`
	Jobs    int64 `json:"jobs"` // records, those of jobs that have ended included
}

// Check goes through the whole store and reports what is not as it should be; with repair it makes
// that right. It works in steps while workers run, and calls found with what each brought. What
// changes meanwhile is judged at the instant of its step. Errors: ErrUnavailable, ErrScript, or
// that of found.
func (q *Queue) Check(ctx context.Context, repair bool, found func([]Finding) error) (Checked, error) {
	c := checker{q: q, repair: repair, found: found}
	// Jobs that are in no index come first: they belong to the counts.
	if err := eachMaster(ctx, q.engine.patient, c.records); err != nil {
		return c.seen, err
	}
	c.flows = make([]map[string]bool, q.keys.Len())
	for n := range c.flows {
		c.flows[n] = map[string]bool{}
	}
	if err := eachMaster(ctx, q.engine.patient, c.flowKeys); err != nil {
		return c.seen, err
	}
	for n := range q.keys.Len() {
		if err := c.shard(ctx, q.keys.Shard(n)); err != nil {
			return c.seen, err
		}
	}
	return c.seen, nil
}

type checker struct {
	q      *Queue
	repair bool
	found  func([]Finding) error

	mu   sync.Mutex // nodes of a cluster are scanned side by side
	seen Checked

	flows []map[string]bool // by shard, their names
}

func (c *checker) compare(ctx context.Context, l comparison) error {
	l.repair = c.repair
	found, err := c.q.findings(ctx, l)
	if err != nil || len(found) == 0 {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.found(found)
}

// scan calls do with the keys of a kind on a node, page by page and by shard, each without its
// prefix and kind.
func (c *checker) scan(ctx context.Context, node lua.Client, kind string, do func(shard int, names []string) error) error {
	for cursor := uint64(0); ; {
		keys, next, err := node.(redis.Cmdable).Scan(ctx, cursor, "sluice:{*}:"+kind+"*", checkKeys).Result()
		if err != nil {
			return unavailable(err)
		}
		byShard := map[int][]string{}
		for _, key := range keys {
			prefix, name, _ := strings.Cut(key, kind)
			if n, known := c.q.keys.byClock[prefix+"clock"]; known {
				byShard[n] = append(byShard[n], name)
			}
		}
		for n, names := range byShard {
			if err := do(n, names); err != nil {
				return err
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// records looks at every record of a job on a node.
func (c *checker) records(ctx context.Context, node lua.Client) error {
	return c.scan(ctx, node, "job:", func(n int, ids []string) error {
		c.mu.Lock()
		c.seen.Jobs += int64(len(ids))
		c.mu.Unlock()
		shard := c.q.keys.Shard(n)
		for part := range slices.Chunk(ids, checkJobs) {
			for i, id := range part {
				part[i] = shard.Job(id)
			}
			if err := c.compare(ctx, comparison{shard: shard, jobs: part}); err != nil {
				return err
			}
		}
		return nil
	})
}

// flowKeys gathers the names of the flows that are stored on a node: the lists of them may be
// damaged.
func (c *checker) flowKeys(ctx context.Context, node lua.Client) error {
	return c.scan(ctx, node, "flow:", func(n int, names []string) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.addFlows(n, names)
		return nil
	})
}

func (c *checker) addFlows(shard int, names []string) {
	for _, name := range names {
		c.flows[shard][name] = true
	}
}

// shard looks at all flows of a shard, then at its totals.
func (c *checker) shard(ctx context.Context, s ShardKeys) error {
	// The keys of the shard itself, so that the tenants and what is due can be read.
	if err := c.compare(ctx, comparison{shard: s}); err != nil {
		return err
	}
	client := c.q.engine.patient
	for cursor := uint64(0); ; {
		entries, next, err := client.ZScan(ctx, s.Tenants(), cursor, "", checkTenants).Result()
		if redis.HasErrorPrefix(err, "WRONGTYPE") {
			break // it was reported
		}
		if err != nil {
			return unavailable(err)
		}
		for i := 0; i < len(entries); i += 2 {
			tenant, _, _ := strings.Cut(entries[i], " ")
			names, err := client.SMembers(ctx, s.Names(tenant)).Result()
			if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
				return unavailable(err)
			}
			if err != nil {
				names = []string{tenant + "/"} // makes the script check the tenant's keys
			}
			c.addFlows(s.Index, names)
		}
		c.seen.Tenants += int64(len(entries) / 2)
		if cursor = next; cursor == 0 {
			break
		}
	}
	due, err := client.ZRange(ctx, s.Due(), 0, -1).Result()
	if err != nil && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return unavailable(err)
	}
	c.addFlows(s.Index, due)
	names := slices.Sorted(maps.Keys(c.flows[s.Index]))
	for part := range slices.Chunk(names, checkFlows) {
		if err := c.compare(ctx, comparison{shard: s, flows: part}); err != nil {
			return err
		}
	}
	c.seen.Flows += int64(len(names))
	c.seen.Shards++
	return c.compare(ctx, comparison{shard: s, totals: true})
}
