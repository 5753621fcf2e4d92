package lua_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// TestKept: what a flow keeps of forwarded requests is bounded, and is no longer counted once Redis
// has deleted it. The model does not know these answers.
func TestKept(t *testing.T) {
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t, kind.start(t), themes[0], 1)
			w.th.traced = true
			p := shaper.DefaultPolicy()
			p.Rate, p.Concurrency = shaper.Rate{Limit: 1000, Period: time.Second}, 0
			w.declare(w.wall, 1, shaper.Baseline{Defaults: p})
			w.submit(31, 0)
			for len(w.held) < 31 {
				w.pollUntilIdle()
				w.wall = w.wall.Add(10 * time.Millisecond)
			}
			for _, step := range []struct {
				jobs, bytes, left int
				bound             int64
			}{
				{10, 1000, 10, 20_000}, {10, 1000, 14, 20_000}, {1, 10_000, 8, 20_000}, {2, 30_000, 0, 20_000}, {3, 100, 3, 20_000},
				{2, 100, 3, 0}, // the bound falls: the oldest make room, and the others stay
				{3, 10, 3, 0},
			} {
				w.keep(step.jobs, step.bytes, step.bound)
				kept := w.number(w.shard.Flow("acme/echo"), "kept")
				size := int(w.e.ZCard(w.ctx, w.shard.Kept("acme/echo")).Val())
				if size != step.left || kept > max(step.bound, 3000) || (kept == 0) != (size == 0) || kept != w.number(w.shard.Clock(), "kept") {
					t.Errorf("%+v: %d answers of %d bytes are kept", step, size, kept)
				}
				w.storedIs(kept + w.number(w.shard.Flow("acme/echo"), "live"))
			}
			w.forget(w.wall.Add(11 * time.Minute))
			if w.e.Exists(w.ctx, w.shard.Flow("acme/echo")).Val() == 0 {
				t.Error("the flow is forgotten while its answers are stored")
			}
			w.e.Del(w.ctx, w.shard.Kept("acme/echo")) // as Redis does after their retention
			w.forget(w.wall.Add(22 * time.Minute))
			w.storedIs(0)
		})
	}
}

// keep settles the first n leases with answers, and keeps at most bound bytes of them. It sends
// the call twice.
func (w *world) keep(n, bytesEach int, bound int64) {
	call := scripts.SettleCall{
		At: scripts.AtInstant(w.wall), Clock: w.shard.Clock(), Due: w.shard.Due(), Expires: w.shard.Expires(),
		Leases: w.shard.Leases(), Outbox: w.shard.Outbox(), Horizon: horizon, Retention: w.retention(), Kept: &scripts.KeptBounds{Most: bound},
	}
	for _, l := range w.held[:n] {
		s := scripts.SettleItem{
			Key: w.shard.Job(l.id), Epoch: l.epoch, Outcome: scripts.OutcomeSucceeded,
			Result: bytes.Repeat([]byte("x"), bytesEach),
		}
		if len(call.Items)%2 == 0 {
			w.putAside(&s, l.id)
		}
		call.Items = append(call.Items, s)
	}
	w.held = w.held[n:]
	for _, want := range []scripts.SettleCode{scripts.CodeSettled, scripts.CodeRepeated} {
		codes, err := call.Decode(w.run(call.Call()))
		if err != nil || codes[0] != want {
			w.fail("settled: %v, %v", codes, err)
		}
	}
}

// forget runs the script that forgets idle tenants.
func (w *world) forget(at shaper.Instant) {
	w.run(scripts.TickCall{
		Script: scripts.Commands.Forget, At: scripts.AtInstant(at), Clock: w.shard.Clock(), Due: w.shard.Due(),
		Expires: w.shard.Expires(), Leases: w.shard.Leases(), Grant: w.shard.Grant("w9"),
		Tenants: w.shard.Tenants(), Outbox: w.shard.Outbox(), Counter: 1, Max: 1, Lease: lease,
		Horizon: horizon, Sweep: sweep, Retention: w.retention(),
		Restored: w.replid,
	}.Call())
}

// number reads a field of a hash, 0 if it is missing.
func (w *world) number(key, field string) int64 {
	n, _ := w.e.HGet(w.ctx, key, field).Int64()
	return n
}

// storedIs compares the bytes that the shard counts as stored.
func (w *world) storedIs(want int64) {
	w.Helper()
	c, err := scripts.ParseClock(w.e.HGet(w.ctx, w.shard.Clock(), scripts.ClockNumbers).Val())
	if err != nil || c.Stored != want {
		w.Errorf("the shard has %d bytes stored, want %d; %v", c.Stored, want, err)
	}
}
