package queue_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// tally counts commands by name, and those of the largest exchange.
type tally struct {
	redis.Hook
	mu      sync.Mutex
	by      map[string]int
	largest int
}

func (c *tally) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *tally) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		c.note(cmd)
		return next(ctx, cmd)
	}
}

func (c *tally) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		c.note(cmds...)
		return next(ctx, cmds)
	}
}

func (c *tally) note(cmds ...redis.Cmder) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cmd := range cmds {
		c.by[cmd.Name()]++
	}
	c.largest = max(c.largest, len(cmds))
}

// take returns the counts since the last call.
func (c *tally) take() (by map[string]int, largest int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	by, largest = c.by, c.largest
	c.by, c.largest = map[string]int{}, 0
	return by, largest
}

func sumOf(by map[string]int) (sum int) {
	for _, n := range by {
		sum += n
	}
	return sum
}

// TestListsAreBounded: one call of List reads at most about 1,000 heads, 100 in one exchange, and
// the position of those jobs only that it returns. Who follows the cursors sees every job once.
func TestListsAreBounded(t *testing.T) {
	t.Parallel()
	const jobs = 4000
	sent := &tally{by: map[string]int{}}
	policy := shaper.DefaultPolicy()
	policy.Rate, policy.Capacity, policy.Concurrency = shaper.Rate{Limit: 1000, Period: time.Second}, 2*jobs, 0
	q, err := queue.Open(t.Context(), openEngine(t, lent(t), sent), queue.Options{Defaults: policy, Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	admit := func(tenant string, delay time.Duration, n int) {
		for ; n > 0; n -= 1000 {
			sub := queue.Submission{Tenant: tenant, Route: "default", Type: "mail", MaxAttempts: 1, Cost: 1, Delay: delay}
			if _, err := q.SubmitBatch(t.Context(), slices.Repeat([]queue.Submission{sub}, min(n, 1000)), false); err != nil {
				t.Fatal(err)
			}
		}
	}
	admit("other", 0, 2000)
	admit("acme", 0, 1)
	consumer, leased := q.Broker().Consumer("w", 0), 0
	queuetest.Await(t, "all to be leased", func() bool {
		tick, err := consumer.Tick(t.Context(), queue.TickOptions{
			Max: 500, Lease: time.Minute, Horizon: time.Second, Sweep: time.Minute,
		})
		if err != nil {
			t.Fatal(err)
		}
		leased += len(tick.Leases)
		return leased == 2001
	})
	admit("acme", 0, jobs)
	admit("acme", time.Hour, jobs)
	future := time.Now().Add(time.Hour)
	for name, c := range map[string]struct {
		l    queue.List
		want int
	}{
		"a type that no job has":      {queue.List{State: queue.ListQueued, Type: "letter"}, 0},
		"a time without jobs":         {queue.List{State: queue.ListAll, CreatedAfter: future}, 0},
		"retrying beside scheduled":   {queue.List{State: queue.ListRetrying}, 0},
		"a lease beside many":         {queue.List{State: queue.ListLeased}, 1},
		"all waiting, in large pages": {queue.List{State: queue.ListQueued}, jobs},
		"all of a type":               {queue.List{State: queue.ListScheduled, Type: "mail"}, jobs},
	} {
		t.Run(name, func(t *testing.T) {
			l, seen := c.l, map[string]bool{}
			l.Tenant, l.Limit = "acme", 1000
			for pages := 0; pages == 0 || l.Cursor != ""; pages++ {
				sent.take()
				page, err := q.List(t.Context(), l)
				if err != nil || pages > 100 {
					t.Fatalf("page %d: %v", pages, err)
				}
				by, largest := sent.take()
				if by["getrange"] > 1200 || by["evalsha"] != len(page.Jobs) || largest > 110 || sumOf(by) > 2300 {
					t.Errorf("page %d of %d jobs took %v, %d in one exchange", pages, len(page.Jobs), by, largest)
				}
				if rows := len(page.Jobs) + by["getrange"]/20; page.Cost < rows || page.Cost > rows+20 {
					t.Errorf("page %d of %d jobs costs %d: %v", pages, len(page.Jobs), page.Cost, by)
				}
				for _, j := range page.Jobs {
					if seen[j.ID] {
						t.Fatalf("%s is listed twice", j.ID)
					}
					seen[j.ID] = true
				}
				l.Cursor = page.Next
			}
			if len(seen) != c.want {
				t.Errorf("%d jobs, want %d", len(seen), c.want)
			}
		})
	}
}

// TestListOfManyRoutes: the cursor of a tenant with many flows fits into a request, and the first
// entries of all flows are bounded together.
func TestListOfManyRoutes(t *testing.T) {
	t.Parallel()
	const routes = 130
	sent := &tally{by: map[string]int{}}
	q, err := queue.Open(t.Context(), openEngine(t, lent(t), sent), queue.Options{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	for range 3 {
		var batch []queue.Submission
		for r := range routes {
			batch = append(batch, queue.Submission{Tenant: "acme", Route: "route " + string(rune('a'+r)), Type: "t", MaxAttempts: 1, Cost: 1})
		}
		if _, err := q.SubmitBatch(t.Context(), batch, false); err != nil {
			t.Fatal(err)
		}
	}
	l, seen := queue.List{Tenant: "acme", State: queue.ListAll, Limit: 100}, map[string]bool{}
	for pages := 0; pages == 0 || l.Cursor != ""; pages++ {
		sent.take()
		page, err := q.List(t.Context(), l)
		if err != nil || pages > 50 {
			t.Fatalf("page %d: %v", pages, err)
		}
		if by, _ := sent.take(); sumOf(by) > 1500 {
			t.Errorf("page %d took %v", pages, by)
		}
		if l.Cursor = page.Next; len(l.Cursor) > 16<<10 {
			t.Errorf("the cursor of page %d has %d bytes", pages, len(l.Cursor))
		}
		for _, j := range page.Jobs {
			seen[j.ID] = true
		}
	}
	if len(seen) != 3*routes {
		t.Errorf("%d jobs, want %d", len(seen), 3*routes)
	}
}

// TestReadsHaveConnectionsOfTheirOwn: nothing that clients or operators read goes over the
// connections of admissions and settlements.
func TestReadsHaveConnectionsOfTheirOwn(t *testing.T) {
	t.Parallel()
	e := openEngine(t, lent(t))
	q, err := queue.Open(t.Context(), e, queue.Options{Shards: 2, Pools: map[string]shaper.PoolSettings{
		"shared": {Routes: []string{"pooled"}, Overrides: shaper.Overrides{Rate: &shaper.Rate{Limit: 1, Period: time.Second}}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	d, err := q.Submit(t.Context(), queue.Submission{Tenant: "acme", Route: "pooled", Type: "t", MaxAttempts: 1, Cost: 1, IdempotencyKey: "k"})
	if err != nil {
		t.Fatal(err)
	}
	q.StopKeeping()
	sent := &tally{by: map[string]int{}}
	e.AddWriteHook(sent)
	ctx, id := t.Context(), d.Job.ID
	for name, read := range map[string]func() error{
		"a job":     func() error { _, err := q.Job(ctx, "acme", id); return err },
		"an answer": func() error { _, _, err := q.Answer(ctx, "acme", id, queue.End{}); return err },
		"any job":   func() error { _, err := q.Find(ctx, id); return err },
		"a payload": func() error { _, err := q.Payload(ctx, "acme", id, 1000); return err },
		"a list": func() error {
			_, err := q.List(ctx, queue.List{Tenant: "acme", State: queue.ListAll, Limit: 10})
			return err
		},
		"a key": func() error {
			_, err := q.List(ctx, queue.List{Tenant: "acme", State: queue.ListAll, Limit: 10, IdempotencyKey: "k"})
			return err
		},
		"waits":        func() error { _, err := q.Waits(ctx, "acme", 10); return err },
		"tenants":      func() error { _, _, err := q.Tenants(ctx, "", 10); return err },
		"a tenant":     func() error { _, err := q.Tenant(ctx, "acme"); return err },
		"a scan":       func() error { _, _, err := q.Scan(ctx, "", 10); return err },
		"the history":  func() error { _, err := q.History(ctx, "acme"); return err },
		"all pools":    func() error { _, err := q.AllPools(ctx); return err },
		"pooled flows": func() error { _, err := q.PoolFlows(ctx, "shared", 10); return err },
	} {
		sent.take()
		if err := read(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if by, _ := sent.take(); slices.ContainsFunc([]string{"evalsha", "getrange", "zrevrange", "lrange", "hmget", "smembers"},
			func(name string) bool { return by[name] > 0 }) {
			t.Errorf("%s is read over the connections of others: %v", name, by)
		}
	}
}
