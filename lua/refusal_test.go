package lua_test

import (
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// TestRefusedTenants: what the upstream answers to two tenants of a pool of 100/s, again and again,
// takes nothing from three others that use it well. After the first two seconds they get what they
// are entitled to in every window of 2 s, and 98 % of the pool's rate where the others are held.
func TestRefusedTenants(t *testing.T) {
	const step, rate, seconds = 20 * time.Millisecond, 100, 8
	retry := func(name string) scripts.SettleItem {
		return scripts.SettleItem{Outcome: scripts.OutcomeHeld, Cause: name, Delay: time.Second}
	}
	for name, answers := range map[string][]scripts.SettleItem{
		"429 with Retry-After": {retry("retry_after:429")},
		"503 without it":       {{Outcome: scripts.OutcomeOverload, Delay: time.Second}},
		"both":                 {retry("retry_after:503"), {Outcome: scripts.OutcomeOverload}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, kind := range engines {
				t.Run(kind.name, func(t *testing.T) {
					w := newWorld(t, kind.start(t), theme{name: "refused", routes: []string{"echo"}, pooled: true}, 1)
					defer w.clean()
					p := shaper.DefaultPolicy()
					p.Capacity, p.Concurrency, p.Weight = 10_000, 0, 1
					p.Rate = shaper.Rate{Limit: 1_000_000, Period: time.Second}
					w.declare(w.wall, 1, shaper.Baseline{Defaults: p, Pools: map[string]shaper.PoolSettings{"erp": {
						Routes: w.th.routes, Overrides: shaper.Overrides{Rate: &shaper.Rate{Limit: rate, Period: time.Second}},
					}}})
					w.pollFate()
					begun, n := w.wall, 0
					for range seconds * time.Second / step {
						for _, tenant := range []string{"evil0", "evil1", "a", "b", "c"} {
							if waits := len(w.m.queue[tenant+"/echo"]) + len(w.m.laters[tenant+"/echo"]); waits < 20 {
								w.send(tenant, 40-waits, nil)
							}
						}
						w.wall = w.wall.Add(step)
						w.pollFate()
						r := settlement{at: w.wall}
						for _, ref := range w.held {
							s := scripts.SettleItem{Outcome: scripts.OutcomeSucceeded}
							if strings.HasPrefix(w.m.jobs[ref.id].Flow, "evil") {
								s = answers[n%len(answers)]
								n++
							}
							s.Key, s.Epoch = ref.id, ref.epoch
							r.items = append(r.items, s)
						}
						w.held = nil
						w.settle(r)
					}
					w.compare()
					count := func(from shaper.Instant) (got int) {
						for _, s := range w.m.served {
							if s.at >= from && s.at < from.Add(fateWindow) && !strings.HasPrefix(s.flow, "evil") {
								got++
							}
						}
						return got
					}
					for at := begun.Add(2 * time.Second); at.Add(fateWindow) < w.wall; at = at.Add(100 * time.Millisecond) {
						want := 2*rate*3/5 - 4 // of five flows that wait all the time
						if name == "429 with Retry-After" {
							want = 2*rate*98/100 - 4 // the flows of the two are held
						}
						if got := count(at); got < want {
							t.Fatalf("%d jobs of the others in the 2 s from %v on, want %d", got, at.Sub(begun), want)
						}
					}
				})
			}
		})
	}
}
