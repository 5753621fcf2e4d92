package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// TestFullRouteLines: hundreds of flows of a full route become due at once, and a flow of another
// route just after them. It leaves in the first poll. The others line up, and leave in turn.
func TestFullRouteLines(t *testing.T) {
	tell(t, "50/s", func(w *world) {
		w.herd(700, 0)
		w.wall = w.wall.Add(time.Second + time.Millisecond)
		w.admit(admission{at: w.wall, jobs: []candidate{{
			id: "quiet", tenant: "zoe", route: "mail", flow: "zoe/mail", entry: "zoe", cost: 1, maxAttempts: 3,
			payload: []byte("payload"),
		}}})
		w.wall = w.wall.Add(time.Millisecond)
		poll := func(most, free int) scripts.Grant {
			r := w.pollOf(w.workers[0], most)
			r.bounds = []scripts.Bound{{Name: "echo", Slots: free}}
			return w.tick(w.workers[0], r, true)
		}
		g := poll(100, 0)
		if len(g.Leases) != 1 || g.Leases[0].ID != "quiet" || g.PutOff < 100 || !g.More {
			t.Fatalf("the first poll leases %v, puts off %d flows, more %v", g.Leases, g.PutOff, g.More)
		}
		for g.More {
			g = poll(100, 0)
		}
		w.compare()
		// Slots come free: as many flows leave, and the others keep their places.
		w.wall = w.m.due.head()
		for free := range 5 {
			if g = poll(100, free); len(g.Leases) != free {
				t.Errorf("with %d free slots %d jobs leave", free, len(g.Leases))
			}
			w.compare()
			w.wall = w.wall.Add(horizon)
		}
		w.settleAll(scripts.OutcomeSucceeded, 0)
	})
}

// TestPutOffFlowKeepsItsPace: a worker whose bounds let a flow take no slot polls it again and
// again, as its owner does while others help. A worker with slots looks somewhat late, and finds
// the next stamp where the rate has it.
func TestPutOffFlowKeepsItsPace(t *testing.T) {
	const every, late = 10 * time.Millisecond, 5 * time.Millisecond
	tell(t, "100/s", func(w *world) {
		w.pollUntilIdle()
		w.submit(60, 0)
		var stamps []shaper.Instant
		next := w.wall // of the worker with slots
		for ms := range 500 {
			w.wall = w.wall.Add(time.Millisecond)
			switch {
			case w.wall >= next.Add(late-horizon/2):
				g := w.tick(w.workers[1], w.pollOf(w.workers[1], 1), true)
				for _, l := range g.Leases {
					stamps = append(stamps, l.Stamp)
				}
				next = g.Next
			case ms%2 == 0: // it holds 9 slots of 12
				r := w.pollOf(w.workers[0], 3)
				r.bounds = []scripts.Bound{{Name: "echo", Slots: 3}, {Name: "acme/echo", Slots: 9}}
				if g := w.tick(w.workers[0], r, true); len(g.Leases) > 0 {
					w.fail("a worker has leased beyond its bounds")
				}
			}
		}
		for i, at := range stamps {
			if due := stamps[0].Add(time.Duration(i) * every); at != due {
				w.fail("stamp %d is %v late", i, time.Duration(at-due)*time.Microsecond)
			}
		}
		if len(stamps) < 48 {
			w.fail("%d jobs left in half a second", len(stamps))
		}
	})
}

// herd submits a job of each of n tenants. The first becomes due in a second, the
// others one after every span
func (w *world) herd(n int, every time.Duration) {
	w.pollUntilIdle() // the flows to come obey the policies in force
	for from := 0; from < n; from += 100 {
		r := admission{at: w.wall}
		for i := range 100 {
			r.jobs = append(r.jobs, candidate{
				id: fmt.Sprintf("b%03d", from+i), tenant: fmt.Sprintf("t%03d", from+i), route: "echo",
				flow: fmt.Sprintf("t%03d/echo", from+i), entry: fmt.Sprintf("t%03d", from+i), cost: 1,
				delay: time.Second + time.Duration(from+i)*every, maxAttempts: 3, payload: []byte("payload"),
			})
		}
		w.admit(r)
	}
}

// TestHerd: hundreds of flows become due within a short time, and it takes many polls to lease
// their jobs. A flow that becomes due every 20 ms meanwhile loses no slot. If they all become due
// at once, its route may be theirs.
func TestHerd(t *testing.T) {
	for _, tt := range []struct {
		name, route string
		every       time.Duration
	}{
		{"at once", "mail", 0},
		{"at once, same route", "echo", 0},
		{"one after the other", "mail", 20 * time.Microsecond},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tell(t, "50/s", func(w *world) {
				w.herd(700, tt.every)
				r := admission{at: w.wall}
				for i := range 100 {
					r.jobs = append(r.jobs, candidate{
						id: fmt.Sprintf("quiet%03d", i), tenant: "zoe", route: tt.route, flow: "zoe/" + tt.route, entry: "zoe", cost: 1,
						maxAttempts: 3, payload: []byte("payload"),
					})
				}
				w.admit(r)
				left, quiet, last := 700, 0, shaper.Instant(0)
				poll := func() {
					g := w.tick(w.workers[0], w.pollOf(w.workers[0], 128), true)
					for _, l := range g.Leases {
						if !strings.HasPrefix(l.ID, "quiet") {
							left--
							continue
						}
						if quiet++; last != 0 && l.Stamp.Sub(last) > 20*time.Millisecond+shaper.Slack {
							w.fail("the quiet flow waits for %v", l.Stamp.Sub(last))
						}
						last = l.Stamp
					}
				}
				for due := w.wall.Add(time.Second - horizon); w.wall < due; w.wall = w.wall.Add(5 * time.Millisecond) {
					poll()
				}
				before, polls := quiet, 0
				for ; left > 0; polls++ {
					poll()
					w.wall = w.wall.Add(5 * time.Millisecond)
				}
				if polls < 10 || quiet-before < polls/4-1 {
					w.fail("in %d polls, 5 ms each, %d jobs of the quiet flow leave", polls, quiet-before)
				}
				w.settleAll(scripts.OutcomeSucceeded, 0)
			})
		})
	}
}

// TestFullRouteLinesInAPool: flows of a full route keep those of another route of their pool from
// their turns for few polls.
func TestFullRouteLinesInAPool(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			th := theme{name: "lines", tenants: []string{"zoe"}, routes: []string{"echo", "mail"}, pooled: true}
			w := newWorld(t, kind.start(t), th, 1)
			defer w.clean()
			p := shaper.DefaultPolicy()
			p.Rate, p.Capacity, p.Concurrency, p.Weight = shaper.Rate{Limit: 1000, Period: time.Second}, 10_000, 0, 1
			w.declare(w.wall, 1, shaper.Baseline{Defaults: p, Tiers: map[string]shaper.Overrides{"free": {}},
				PoolWeights: map[string]int64{"free": 1},
				Pools: map[string]shaper.PoolSettings{"erp": {Routes: th.routes, Overrides: shaper.Overrides{
					Rate: &shaper.Rate{Limit: 1000, Period: time.Second}}}}})
			w.pollUntilIdle()
			for i := range 1200 {
				tier := map[bool]string{true: "free"}[i%3 == 0]
				tenant := fmt.Sprintf("t%04d", i)
				w.admit(admission{at: w.wall, tiers: map[string]string{tenant: tier}, jobs: []candidate{{
					id: fmt.Sprintf("b%04d", i), tenant: tenant, route: "echo", flow: tenant + "/echo", entry: tenant,
					delay: time.Second, cost: 1, maxAttempts: 3}}})
			}
			w.wall = w.wall.Add(time.Second + time.Millisecond)
			w.admit(admission{at: w.wall, jobs: []candidate{{id: "quiet", tenant: "zoe", route: "mail", flow: "zoe/mail",
				entry: "zoe", cost: 1, maxAttempts: 3}}})
			for polls := 1; ; polls++ {
				r := w.pollOf(w.workers[0], 100)
				r.bounds = []scripts.Bound{{Name: "echo", Slots: 0}}
				if g := w.tick(w.workers[0], r, true); len(g.Leases) == 1 {
					break
				}
				if polls == 4 {
					w.fail("the job of another route has not left in %d polls", polls)
				}
				w.wall = w.wall.Add(time.Millisecond)
			}
			w.compare()
			if !w.m.reached["in a line of a pool"] {
				w.fail("no flow went into a line")
			}
		})
	}
}

// TestFullRouteWork: 20,000 flows of a full route become due at once. Few polls put them into their
// line, most without loading them. Meanwhile other flows leave at once.
func TestFullRouteWork(t *testing.T) {
	const tenants = 20_000
	w := newWorld(t, realEngine(t), themes[0], 1)
	defer w.clean()
	p := shaper.DefaultPolicy()
	p.Rate, p.Burst, p.Capacity, p.Concurrency = shaper.Rate{Limit: 20, Period: time.Second}, 1, 100_000, 0
	w.declare(w.wall, 1, shaper.Baseline{Defaults: p})
	for w.e.HGet(w.ctx, w.shard.Clock(), "looked").Val() != "0" {
		w.polls(scripts.Commands.Retune, 1)
	}
	for from := 0; from < tenants; from += 250 {
		call := scripts.AdmitCall{
			At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
			Tenants: w.shard.Tenants(), Horizon: horizon,
		}
		for i := range 250 {
			call = w.with(call, fmt.Sprintf("b%05d", from+i), "full", 1, 10, time.Hour, 0)
		}
		w.measured(call.Call())
	}
	// Among them is a flow of another route, in the midst.
	call := scripts.AdmitCall{
		At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Tenants: w.shard.Tenants(), Horizon: horizon,
	}
	w.measured(w.with(call, "b10000", "amid", 1, 10, time.Hour, 0).Call())
	w.wall = w.wall.Add(time.Hour)
	for _, deleted := range []string{"b00003", "b00100"} { // loaded, and lined
		w.e.Del(w.ctx, w.shard.Flow(deleted+"/full"))
	}
	w.most = nil
	polls, commands, amid, damaged, began := 0, 0, 0, "", time.Now()
	for more := true; more; polls++ {
		w.wall = w.wall.Add(time.Millisecond)
		w.heap(fmt.Sprint("quiet", polls), 1, 10, 0, 0)
		delete(w.most, scripts.Commands.Tick.Name)
		g, leases := w.pollsWith(scripts.Commands.Tick, 1, scripts.Bound{Name: "full", Slots: 0})
		if len(leases) == 2 && amid == 0 {
			amid = polls + 1
		} else if len(leases) != 1 {
			t.Fatalf("beside a full route %d jobs leave in poll %d, want 1", len(leases), polls)
		}
		commands += w.most[scripts.Commands.Tick.Name].commands
		more, damaged = g.More, damaged+strings.Join(g.Damaged, "\n")
	}
	t.Logf("%d polls with %d commands in %v", polls, commands, time.Since(began))
	if amid == 0 || amid > tenants/betweenMost+1 {
		t.Errorf("the flow in the midst of a full route leaves in poll %d", amid)
	}
	if polls > tenants/betweenMost || commands > tenants*2 {
		t.Errorf("%d polls with %d commands put %d flows off", polls, commands, tenants)
	}
	if strings.Count(damaged, "DAMAGED flow") != 2 {
		t.Errorf("of deleted flows is reported %q", damaged)
	}
	// Each waits behind the one before, so that a second brings 1,000 of them.
	due, err := w.e.ZRangeWithScores(w.ctx, w.shard.Due(), 0, -1).Result()
	if err != nil {
		t.Fatal(err)
	}
	last := 0.0
	for _, f := range due {
		if strings.Contains("b00003/full b00100/full", f.Member.(string)) {
			continue // set aside
		}
		if f.Score-last < 1000 {
			t.Errorf("flows of a line are %v µs apart", f.Score-last)
			break
		}
		last = f.Score
	}
	if w.e.Exists(w.ctx, w.shard.Flow("b00100/full")).Val() != 0 {
		t.Error("a deleted flow is written to")
	}
}
