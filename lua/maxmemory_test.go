package lua_test

import (
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// TestMaxMemory: invariant 9. At maxmemory what takes jobs in is refused and changes nothing, and
// all that drains goes on.
func TestMaxMemory(t *testing.T) {
	w := newWorld(t, realEngine(t), themes[0], 1)
	defer w.clean()
	policy := shaper.DefaultPolicy()
	policy.Burst = 5
	w.declare(w.wall, 1, shaper.Baseline{Defaults: policy})
	w.submit(9, 0)
	w.submit(1, time.Minute)
	w.pollUntilIdle()
	if len(w.held) != 5 {
		t.Fatalf("%d leases, want 5", len(w.held))
	}
	dead := w.held[0]
	w.settle(settlement{
		w.wall, []scripts.SettleItem{{Key: dead.id, Epoch: dead.epoch, Outcome: scripts.OutcomeDead, MaxAttempts: 1}},
	})
	w.held = w.held[1:]

	limit := func(bytes string) {
		if err := w.e.ConfigSet(w.ctx, "maxmemory", bytes).Err(); err != nil {
			t.Fatal(err)
		}
	}
	limit("1")
	refused := func(name string, call scripts.Call) {
		before := w.compare()
		if _, err := scripts.Run(w.ctx, w.e, nil, call); err == nil || !strings.Contains(err.Error(), "OOM") {
			t.Errorf("%s at maxmemory: %v, want OOM", name, err)
		}
		if diff := difference(before, w.compare()); diff != "" {
			t.Errorf("%s at maxmemory changed (-before +after):\n%s", name, diff)
		}
	}
	rest, err := scripts.Record{Cost: 1, MaxAttempts: 1, Flow: "acme/echo", Type: "test",
		Payload: []byte("x")}.Rest()
	if err != nil {
		t.Fatal(err)
	}
	refused("admit", scripts.AdmitCall{
		At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Tenants: w.shard.Tenants(), Horizon: horizon,
		Flows: []scripts.AdmitFlow{{
			Flow: w.shard.Flow("acme/echo"), Queue: w.shard.Queue("acme/echo"),
			Later: w.shard.Later("acme/echo"), Lines: w.shard.LinesOf("acme"),
			Names: w.shard.Names("acme"), Entry: "acme",
		}},
		Jobs: []scripts.AdmitJob{{
			Key: w.shard.Job("new"), IdemKey: w.shard.Idem("acme", "k"), IdemHash: "k", Fingerprint: "f",
			Rest: rest,
		}},
	}.Call())
	refused("replay", scripts.ReplayCall{
		At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Job: w.shard.Job(dead.id), Outbox: w.shard.Outbox(), Tenant: "acme",
		Horizon: horizon, Tag: 7, MaxAttempts: 1, DeadCapacity: 10,
	}.Call())

	// Each of these fails the test where Redis refuses it.
	w.extend(w.wall, w.held)
	w.settleAll(scripts.OutcomeRetry, time.Second)
	w.cancel(cancellation{at: w.wall, tenant: "acme", ids: []string{w.ids[9], dead.id}, dead: true})
	w.claim(w.wall, "claim", 10)
	w.handed(w.wall, w.claims)
	w.status(w.wall, "acme", w.ids[8])
	w.scanTenant(w.wall, "acme")
	capacity := int64(5)
	w.tune(w.tuningOf("acme", "api", shaper.Overrides{Capacity: &capacity}))
	w.tune(w.tuningOf("acme", "file", shaper.Overrides{Capacity: &capacity}))
	if _, err := scripts.Run(w.ctx, w.e, nil, scripts.HeartbeatCall{Clock: w.prefix + "beats:clock",
		Workers: w.prefix + "beats", Worker: "w1", TTL: time.Minute}.Call()); err != nil {
		t.Errorf("heartbeat at maxmemory: %v", err)
	}
	limit("0")
	key := w.shard.Key("k")
	w.e.HSet(w.ctx, key, "hash", "x")
	limit("1")
	used := scripts.UsedCall{Clock: w.shard.Clock(), Keys: []string{key}, At: []time.Time{time.UnixMilli(7)}}
	if _, err := scripts.Run(w.ctx, w.e, nil, used.Call()); err != nil || w.e.HGet(w.ctx, key, "used").Val() != "7" {
		t.Errorf("used at maxmemory: %v, stored %q", err, w.e.HGet(w.ctx, key, "used").Val())
	}
	w.e.Del(w.ctx, key)
	if err := w.e.Del(w.ctx, w.prefix+"beats:clock", w.prefix+"beats").Err(); err != nil {
		t.Error(err)
	}
	w.compare()
	// The drain leases, expires leases of a worker that is gone, promotes and settles.
	w.wall = w.wall.Add(time.Second)
	w.tick(w.workers[0], w.pollOf(w.workers[0], 2), false)
	w.workers[0], w.workers[1] = w.workers[1], w.workers[0]
	w.drain()
	limit("0")
}
