package lua_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// expire deletes all keys of the shard that have a time to live, as Redis does at its end.
func (w *world) expire() {
	w.Helper()
	keys, err := keysUnder(w.ctx, w.e, w.prefix)
	if err != nil {
		w.fail("list the keys: %v", err)
	}
	for _, key := range keys {
		if w.e.PTTL(w.ctx, key).Val() > 0 {
			w.e.Del(w.ctx, key)
		}
	}
}

// countsNothing checks that all sums of what is stored are 0.
func (w *world) countsNothing() {
	w.Helper()
	w.storedIs(0)
	for field, text := range w.e.HGetAll(w.ctx, w.shard.Clock()).Val() {
		if !strings.HasPrefix(field, "class:") {
			continue
		}
		c, err := scripts.ParseClass(text)
		if left := c.Answers.Left(w.wall, retention.Finished) + c.Keys.Left(w.wall, retention.Idempotency); err != nil || c.Stored != 0 || left != 0 {
			w.Errorf("%s: %d bytes are stored and %d of what expires; %v", field, c.Stored, left, err)
		}
	}
	flows, err := keysUnder(w.ctx, w.e, w.prefix+"flow:")
	if err != nil {
		w.fail("list the flows: %v", err)
	}
	for _, key := range flows {
		if n := w.number(key, "live") + w.number(key, "dead_bytes") + w.number(key, "kept"); n != 0 {
			w.Errorf("%s counts %d bytes", key, n)
		}
	}
}

// TestNothingStays: whatever a shard has done, once all jobs have ended and Redis has expired what
// it expires, nothing is counted any more, and nothing but the policies is left.
func TestNothingStays(t *testing.T) {
	for _, kind := range engines {
		for _, i := range []int{1, 5, 7} {
			th := themes[i]
			th.rates = []string{"50/s", "200/s", "7/3s", "1000000/s"} // none is charged for years
			t.Run(kind.name+"/"+th.name, func(t *testing.T) {
				e, histories := kind.start(t), 0
				rapid.Check(t, func(rt *rapid.T) {
					histories++
					w := newWorld(rt, e, th, histories)
					defer w.clean()
					w.T = rt
					w.declare(w.wall, 1, drawBaseline(rt, th))
					w.live(60)
					w.drain()
					for _, tenant := range th.tenants {
						w.tune(w.tuningOf(tenant, "api", shaper.Overrides{}))
						w.tune(w.tuningOf(tenant, "file", shaper.Overrides{}))
					}
					if th.pooled {
						w.tune(w.tuningOf("+erp", "api", shaper.Overrides{}))
					}
					w.expire()
					for rounds := 0; w.e.Exists(w.ctx, w.shard.Tenants()).Val() == 1; rounds++ {
						if rounds == 10 {
							w.fail("not forgotten: %v", w.e.ZRange(w.ctx, w.shard.Tenants(), 0, -1).Val())
						}
						w.wall = w.wall.Add(30 * 24 * time.Hour)
						w.forget(w.wall)
					}
					w.expire()
					w.countsNothing()
					keys, err := keysUnder(w.ctx, w.e, w.prefix)
					if err != nil {
						w.fail("list the keys: %v", err)
					}
					for _, key := range keys {
						switch name := strings.TrimPrefix(key, w.prefix); {
						case name == "clock", name == "lines", strings.Contains(name, ":+"): // a pool
						default:
							w.fail("%s is left", name)
						}
					}
				})
			})
		}
	}
}

// TestActiveTenantsCountNothingExpired: dead letters and answers that Redis has expired stop
// counting within minutes in which their tenant submits jobs, to the same route or another one.
func TestActiveTenantsCountNothingExpired(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t, kind.start(t), themes[0], 1)
			w.th.traced = true
			p := shaper.DefaultPolicy()
			p.Rate, p.Concurrency = shaper.Rate{Limit: 1000, Period: time.Second}, 0
			w.declare(w.wall, 1, shaper.Baseline{Defaults: p})
			to := func(route string) {
				w.names++
				w.admit(admission{at: w.wall, class: scripts.Class{Name: "guests"}, jobs: []candidate{{
					id: fmt.Sprintf("j%06d", w.names), tenant: "acme", route: route, flow: "acme/" + route, entry: "acme",
					cost: 1, maxAttempts: 1, payload: []byte("payload"),
				}}})
				w.pollUntilIdle()
			}
			to("echo")
			w.settleAll(scripts.OutcomeDead, 0)
			to("mail")
			w.settleAll(scripts.OutcomeDead, 0)
			to("mail")
			w.keep(1, 1000, 1<<20)
			w.expire()
			for rounds := 0; ; rounds++ {
				w.wall = w.wall.Add(2 * time.Minute)
				call := scripts.AdmitCall{
					At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
					Tenants: w.shard.Tenants(), Horizon: horizon, Retention: w.retention(),
				}
				call = w.with(call, "acme", "echo", 1, 10, 0, 0)
				call.Flows[0].Class = scripts.Class{Name: "guests"}
				w.run(call.Call())
				_, leases := w.polls(scripts.Commands.Tick, 1)
				w.settled(leases)
				w.expire()
				left := w.number(w.shard.Flow("acme/mail"), "dead_bytes") + w.number(w.shard.Flow("acme/mail"), "kept")
				if left == 0 {
					break
				}
				if rounds == 100 { // in each, the other route is looked at with a chance of a half
					t.Fatalf("%d bytes are counted of a flow that has nothing stored", left)
				}
			}
			w.wall = w.wall.Add(2 * (retention.Idempotency + retention.Finished))
			w.countsNothing()
		})
	}
}

// TestForgetCountsNothingExpired: forget subtracts what Redis has expired of a tenant that stays,
// and what lost records have left, once.
func TestForgetCountsNothingExpired(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t, kind.start(t), themes[0], 1)
			w.th.traced = true
			p := shaper.DefaultPolicy()
			p.Rate, p.Concurrency = shaper.Rate{Limit: 1000, Period: time.Second}, 0
			w.declare(w.wall, 1, shaper.Baseline{Defaults: p})
			w.submit(3, 0)
			w.pollUntilIdle()
			w.settleAll(scripts.OutcomeDead, 0)
			w.tune(w.tuningOf("acme", "api", shaper.Overrides{Draining: new(bool)}))
			flow := w.shard.Flow("acme/echo")
			dead := w.number(flow, "dead_bytes")
			w.submitAs("b", 1, 1000*time.Hour)
			live := w.number(w.shard.Flow("b/echo"), "live")

			// Redis keeps one of three, whose retention begins later.
			w.e.ZAdd(w.ctx, w.shard.Dead("acme/echo"), redis.Z{Score: float64(w.wall.Add(time.Hour)), Member: "j000003"})
			w.forget(w.wall.Add(retention.Dead + time.Minute))
			if n := w.number(flow, "dead_bytes"); n != dead/3 || w.e.ZCard(w.ctx, w.shard.Dead("acme/echo")).Val() != 1 {
				t.Errorf("%d of %d bytes of dead letters are counted", n, dead)
			}
			w.storedIs(dead/3 + live)
			w.expire()
			w.forget(w.wall.Add(retention.Dead + time.Hour))
			w.storedIs(live)

			w.e.HSet(w.ctx, flow, "live", 100)
			for days := range 3 {
				w.forget(w.wall.Add(time.Duration(days+2) * 25 * time.Hour))
				w.storedIs(live - 100)
			}
		})
	}
}

// TestForgottenFlowsAreNotDue: a flow that moves into a pool stays in the index of due flows by the
// paces that it had before. If it is idle and forgotten before that instant, its place goes with
// it: a poll would take the flow for damaged.
func TestForgottenFlowsAreNotDue(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t, kind.start(t), themes[0], 1)
			w.th.traced = true
			w.declare(w.wall, 1, shaper.Baseline{Defaults: shaper.DefaultPolicy()})
			w.submit(1, 0)
			w.pollUntilIdle()
			w.settleAll(scripts.OutcomeSucceeded, 0)
			due := redis.Z{Score: float64(w.wall.Add(1000 * time.Hour)), Member: "acme/echo"}
			w.e.ZAdd(w.ctx, w.shard.Due(), due)
			w.forget(w.wall.Add(2 * (retention.Idempotency + retention.Finished)))
			if n := w.e.Exists(w.ctx, w.shard.Flow("acme/echo"), w.shard.Due()).Val(); n != 0 {
				t.Errorf("%d of the flow and its place in the index are left", n)
			}
		})
	}
}

// TestStraysLeaveTheirClass: a tenant that a version without classes has forgotten leaves its
// class.
func TestStraysLeaveTheirClass(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t, kind.start(t), themes[0], 1)
			w.th.traced = true
			w.declare(w.wall, 1, shaper.Baseline{Defaults: shaper.DefaultPolicy()})
			w.admit(admission{at: w.wall, class: scripts.Class{Name: "guests"}, jobs: []candidate{{
				id: "j1", tenant: "acme", route: "echo", flow: "acme/echo", entry: "acme", cost: 1, maxAttempts: 1,
			}}})
			w.pollUntilIdle()
			class := w.shard.Class("guests")
			for i := range 100 {
				w.e.SAdd(w.ctx, class, fmt.Sprintf("gone%d", i))
			}
			for calls := 0; w.e.SCard(w.ctx, class).Val() > 1; calls++ {
				if w.forget(w.wall); calls == 200 {
					t.Fatalf("%d tenants are in the class, want 1", w.e.SCard(w.ctx, class).Val())
				}
			}
			if !w.e.SIsMember(w.ctx, class, "acme").Val() {
				t.Error("the tenant that has a flow has left its class")
			}
		})
	}
}
