package worker

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// gauges compares gauges without labels with what is expected, a line each.
func (r *rig) gauges(t *testing.T, when, want string) {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, f := range families {
		if f.GetType().String() == "GAUGE" && len(f.GetMetric()) > 0 {
			got[f.GetName()] = fmt.Sprint(f.GetMetric()[0].GetGauge().GetValue())
		}
	}
	for line := range strings.Lines(want) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), " "); found && got[name] != value {
			t.Errorf("%s: %s is %q, want %s", when, name, got[name], value)
		}
	}
}

func TestLoadMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(2)
		r := startRig(t, q, Config{Concurrency: 10, Lease: 3 * time.Second},
			func(ctx context.Context, _ *queue.Lease) queue.Settlement {
				sleep(ctx, 2*time.Second)
				return queue.Settlement{Event: shaper.Succeed}
			})
		pass(time.Second)
		r.gauges(t, "idle", `
			sluice_worker_slots 10
			sluice_worker_slots_taken 0
			sluice_polls_under_way 0
			sluice_settle_unanswered 0`)
		for _, id := range []string{"a", "b", "c"} {
			q.put(1, id, 0)
		}
		q.wakes <- queue.Wake{Shard: 1}
		pass(time.Second)
		r.gauges(t, "while three run", "sluice_worker_slots_taken 3\nsluice_leases 3\nsluice_settle_pending 0")
		q.set(func() { q.away = true })
		pass(3 * time.Second)
		r.gauges(t, "while Redis is away", "sluice_worker_slots_taken 3\nsluice_settle_pending 3")
		q.set(func() { q.away = false })
		pass(4 * time.Second)
		r.gauges(t, "at the end", "sluice_worker_slots_taken 0\nsluice_settle_pending 0\n"+
			"sluice_settle_unanswered 0")
		r.end(t)
	})
}
