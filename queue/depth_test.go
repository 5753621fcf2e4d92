package queue_test

import (
	"context"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestCostDoesNotGrowWithDepth counts the commands that Redis runs for one call, those of the
// scripts included: with 200,000 waiting jobs they are the same as with 10 (invariant 11).
func TestCostDoesNotGrowWithDepth(t *testing.T) {
	t.Parallel()
	shallow, deep := commandsAt(t, 10), commandsAt(t, 200_000)
	if diff := cmp.Diff(shallow, deep); diff != "" {
		t.Errorf("commands per call (-10 jobs +200,000 jobs):\n%s", diff)
	}
	for call, commands := range shallow {
		sum := 0
		for _, n := range commands {
			sum += n
		}
		if sum == 0 || sum > 60 {
			t.Errorf("%s runs %d commands: %v", call, sum, commands)
		}
	}
}

// commandsAt loads one flow to the depth and counts the commands of each kind of call there.
func commandsAt(t *testing.T, depth int) map[string]map[string]int {
	t.Helper()
	s := redistest.Start(t)
	q := open(t, queue.EngineOptions{URL: s.URL()}, func(o *queue.Options) { o.Shards, o.Defaults.Rate = 1, slow })
	q.StopKeeping()
	var ids []string
	for loaded := 0; loaded < depth; {
		decisions, err := q.SubmitBatch(t.Context(), slices.Repeat([]queue.Submission{work()},
			min(1000, depth-loaded)), false)
		if err != nil {
			t.Fatalf("SubmitBatch: %v", err)
		}
		for _, v := range decisions {
			if v.Outcome != shaper.Admitted {
				t.Fatalf("after %d jobs: %+v", loaded, v)
			}
			ids = append(ids, v.Job.ID)
		}
		loaded += len(decisions)
	}
	consumer := q.Broker().Consumer("w", 0)
	o := looking
	o.Max = 0
	for more := true; more; { // judges the default policy
		tick, err := consumer.Tick(t.Context(), o)
		if err != nil {
			t.Fatalf("Tick: %v", err)
		}
		more = tick.More
	}
	o.Max = 1
	var lease queue.Lease
	calls := []struct {
		name string
		call func() error
	}{
		{"submit", func() error { _, err := q.Submit(t.Context(), work()); return err }},
		{"job", func() error { _, err := q.Job(t.Context(), "acme", ids[depth/2]); return err }},
		{"cancel", func() error { _, err := q.Cancel(t.Context(), "acme", ids[depth/2]); return err }},
		{"tick", func() error {
			tick, err := consumer.Tick(t.Context(), o)
			if err == nil {
				lease = tick.Leases[0]
			}
			return err
		}},
		{"extend", func() error {
			_, err := q.Broker().Extend(t.Context(), []queue.LeaseRef{lease.LeaseRef}, time.Hour)
			return err
		}},
		{"retry", func() error {
			_, err := q.Broker().Settle(t.Context(), []queue.Settlement{{
				LeaseRef: lease.LeaseRef, Event: shaper.Retry, Delay: time.Hour, MaxAttempts: 3,
			}})
			return err
		}},
		{"tune", func() error {
			_, err := q.Tune(t.Context(), "acme",
				queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) { return o, nil }})
			return err
		}},
		{"tenant", func() error { _, err := q.Tenant(t.Context(), "acme"); return err }},
		{"totals", func() error { _, err := q.Totals(t.Context()); return err }},
		{"scan", func() error { _, _, err := q.Scan(t.Context(), "", 10); return err }},
	}
	c := client(t, s.URL())
	out := map[string]map[string]int{}
	for _, x := range calls {
		before := commandStats(t, c)
		if err := x.call(); err != nil {
			t.Fatalf("%s at depth %d: %v", x.name, depth, err)
		}
		out[x.name] = map[string]int{}
		for command, n := range commandStats(t, c) {
			if n > before[command] {
				out[x.name][command] = n - before[command]
			}
		}
	}
	return out
}

var statLine = regexp.MustCompile(`(?m)^cmdstat_([^:]+):calls=(\d+)`)

// commandStats is how often each command has run, but for those that connections are set up, kept
// alive and this is asked with, and for messages, whose number depends on who listens at the time.
func commandStats(t *testing.T, c *redis.Client) map[string]int {
	t.Helper()
	text, err := c.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int{}
	for _, match := range statLine.FindAllStringSubmatch(text, -1) {
		switch name := match[1]; name {
		case "info", "hello", "ping", "client|setinfo", "publish", "spublish":
		default:
			out[name], _ = strconv.Atoi(match[2]) // the pattern has digits alone
		}
	}
	return out
}
