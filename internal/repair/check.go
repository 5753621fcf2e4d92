package repair

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Steps of a check. Each takes some milliseconds of Redis's time.
const (
	checkTenants = 50
	checkFlows   = 5
	checkJobs    = 200
	checkKeys    = 1000
)

// Checked counts what a check has compared.
type Checked struct {
	Shards  int   `json:"shards"`  // all of the store
	Tenants int64 `json:"tenants"` // in the index of tenants
	Flows   int64 `json:"flows"`
	Jobs    int64 `json:"jobs"` // records, including those of jobs that have ended
}

// Check compares the whole store and passes what each step finds to found, each finding once. With
// repair it repairs the findings. Workers may run meanwhile: each step compares what is stored at
// its instant. What it cannot read is a finding, too, and it goes on behind it. Errors:
// queue.ErrUnavailable, or that of found.
func (m *Repairer) Check(ctx context.Context, repair bool, found func([]Finding) error) (Checked, error) {
	c := check{m: m, repair: repair, found: found, flows: make([]map[string]bool, m.store.Len()),
		closed: map[int]bool{}, passed: map[Finding]bool{}}
	for n := range c.flows {
		c.flows[n] = map[string]bool{}
	}
	// Jobs without an index come first: they belong to the counts of their flows.
	if err := store.EachMaster(ctx, m.store.Patient, c.node); err != nil {
		return c.seen, err
	}
	for _, s := range m.store.Shards() {
		if err := c.shard(ctx, s); err != nil {
			return c.seen, err
		}
	}
	return c.seen, nil
}

type check struct {
	m      *Repairer
	repair bool
	found  func([]Finding) error

	mu     sync.Mutex // nodes of a cluster are scanned at the same time
	seen   Checked
	flows  []map[string]bool // names, by shard
	closed map[int]bool      // shards whose own keys cannot be read
	passed map[Finding]bool  // to found: each step finds what is damaged of the whole shard
}

func (c *check) compare(ctx context.Context, of comparison) error {
	if c.isClosed(of.shard) {
		return nil
	}
	of.repair = c.repair
	found, err := c.m.compare(ctx, of)
	if errors.Is(err, store.ErrScript) {
		return c.apart(ctx, of, err)
	}
	if err != nil {
		return err
	}
	return c.pass(found)
}

// apart finds what a comparison cannot read, and compares the rest. If it is a key of the shard
// itself, nothing else of the shard is compared.
func (c *check) apart(ctx context.Context, of comparison, cause error) error {
	unreadable := func(name string) error {
		detail := cause.Error()
		return c.pass([]Finding{{"unreadable", of.shard.Index, name, detail[:min(len(detail), 300)]}})
	}
	if len(of.jobs)+len(of.flows) == 0 {
		c.mu.Lock()
		c.closed[of.shard.Index] = c.closed[of.shard.Index] || !of.totals
		c.mu.Unlock()
		if of.totals {
			return unreadable("totals")
		}
		return unreadable("the keys of the shard")
	}
	if err := c.compare(ctx, comparison{shard: of.shard}); err != nil || c.isClosed(of.shard) {
		return err
	}
	switch {
	case len(of.jobs)+len(of.flows) > 1:
	case len(of.jobs) == 1:
		return unreadable(of.shard.Trim(of.jobs[0]))
	default:
		return unreadable("flow:" + of.flows[0])
	}
	for _, job := range of.jobs {
		if err := c.compare(ctx, comparison{shard: of.shard, jobs: []string{job}}); err != nil {
			return err
		}
	}
	for _, flow := range of.flows {
		if err := c.compare(ctx, comparison{shard: of.shard, flows: []string{flow}}); err != nil {
			return err
		}
	}
	return nil
}

func (c *check) isClosed(s store.ShardKeys) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.closed[s.Index]
}

// pass passes findings on, each once.
func (c *check) pass(found []Finding) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	found = slices.DeleteFunc(found, func(f Finding) bool {
		passed := c.passed[f]
		c.passed[f] = true
		return passed
	})
	if len(found) == 0 {
		return nil
	}
	return c.found(found)
}

// node compares the records of a node, and gathers the names of its flows: the lists of them may be
// damaged.
func (c *check) node(ctx context.Context, node scripts.Client) error {
	for cursor := uint64(0); ; {
		keys, next, err := node.(redis.Cmdable).Scan(ctx, cursor, "sluice:{*}:*", checkKeys).Result()
		if err != nil {
			return store.Unavailable(err)
		}
		for shard, jobs := range c.sort(keys) {
			for part := range slices.Chunk(jobs, checkJobs) {
				if err := c.compare(ctx, comparison{shard: shard, jobs: part}); err != nil {
					return err
				}
			}
		}
		if cursor = next; cursor == 0 {
			return nil
		}
	}
}

// sort notes the flows among the keys and returns the keys of jobs by shard.
func (c *check) sort(keys []string) map[store.ShardKeys][]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	jobs := map[store.ShardKeys][]string{}
	for _, key := range keys {
		prefix, _, _ := strings.Cut(key, "}:")
		shard, known := c.m.store.ShardOfClock(prefix + "}:clock")
		switch kind, name, _ := strings.Cut(shard.Trim(key), ":"); {
		case !known:
		case kind == "job":
			jobs[shard] = append(jobs[shard], key)
			c.seen.Jobs++
		case kind == "flow":
			c.flows[shard.Index][name] = true
		}
	}
	return jobs
}

// shard compares all flows of a shard, then its totals.
func (c *check) shard(ctx context.Context, s store.ShardKeys) error {
	// The keys of the shard itself come first, so that the tenants and due flows can be read.
	if err := c.compare(ctx, comparison{shard: s}); err != nil || c.isClosed(s) {
		return err
	}
	flows, client := c.flows[s.Index], c.m.store.Patient
	damaged := func(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") } // which is a finding
	for cursor := uint64(0); ; {
		entries, next, err := client.ZScan(ctx, s.Tenants(), cursor, "", checkTenants).Result()
		if err != nil && !damaged(err) {
			return store.Unavailable(err)
		}
		for i := 0; i < len(entries); i += 2 {
			tenant, _, _ := strings.Cut(entries[i], " ")
			names, err := client.SMembers(ctx, s.Names(tenant)).Result()
			if damaged(err) {
				names, err = []string{tenant + "/"}, nil // makes the script check the tenant's keys
			}
			if err != nil {
				return store.Unavailable(err)
			}
			for _, name := range names {
				flows[name] = true
			}
		}
		c.seen.Tenants += int64(len(entries) / 2)
		if cursor = next; cursor == 0 {
			break
		}
	}
	due, err := client.ZRange(ctx, s.Due(), 0, -1).Result()
	if err != nil && !damaged(err) {
		return store.Unavailable(err)
	}
	for _, name := range due {
		flows[name] = true
	}
	for part := range slices.Chunk(slices.Sorted(maps.Keys(flows)), checkFlows) {
		if err := c.compare(ctx, comparison{shard: s, flows: part}); err != nil {
			return err
		}
	}
	c.seen.Flows += int64(len(flows))
	c.seen.Shards++
	return c.compare(ctx, comparison{shard: s, totals: true})
}
