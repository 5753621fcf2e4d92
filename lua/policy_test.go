package lua_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// drawAnyPolicy draws any legal policy, the edges of what is legal included.
func drawAnyPolicy(t *rapid.T) shaper.Policy {
	pace := rapid.Custom(func(t *rapid.T) shaper.Pace {
		text := rapid.SampledFrom([]string{
			"10/s", "7/3s", "5/24h", "1000000/s", "3/7ms", "1/366d", "31622400000000/366d", "999/ms",
		}).Draw(t, "rate")
		r, err := shaper.ParseRate(text)
		if err != nil {
			t.Fatal(err)
		}
		return shaper.Pace{Rate: r, Burst: rapid.Int64Range(1, 99).Draw(t, "burst"), ByJobs: rapid.Bool().Draw(t, "by jobs")}
	})
	first := pace.Draw(t, "pace") // counts costs in any policy
	p := shaper.Policy{
		Rate: first.Rate, Burst: first.Burst, Rates: rapid.SliceOfN(pace, 0, shaper.MaxRates).Draw(t, "rates"),
		CapacityBytes: rapid.SampledFrom([]int64{0, 100, shaper.MaxBytes}).Draw(t, "capacity in bytes"),
		Capacity:      rapid.Int64Range(1, shaper.MaxCapacity).Draw(t, "capacity"),
		Concurrency:   rapid.Int64Range(0, shaper.MaxConcurrency).Draw(t, "concurrency"),
		MaxWait: time.Duration(rapid.Int64Range(0, shaper.MaxPeriod.Milliseconds()).Draw(t,
			"max wait")) * time.Millisecond,
		Paused: rapid.Bool().Draw(t, "paused"),
		Types:  rapid.SampledFrom([][]string{nil, {"test"}, {"ä b", "test", "."}}).Draw(t, "types"),
	}
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	return p
}

// overridesOf says some of the settings of a policy.
func overridesOf(t *rapid.T, p shaper.Policy) (o shaper.Overrides) {
	say := func(name string) bool { return rapid.Bool().Draw(t, "say "+name) }
	wait := p.MaxWait.Milliseconds()
	if say("rate") {
		o.Rate = &p.Rate
	}
	if say("burst") {
		o.Burst = &p.Burst
	}
	if say("rates") {
		list := []shaper.PaceJSON{}
		for _, pace := range p.Rates {
			list = append(list, pace.JSON())
		}
		o.Rates = &list
	}
	if say("capacity") {
		o.Capacity = &p.Capacity
	}
	if say("capacity in bytes") {
		o.CapacityBytes = &p.CapacityBytes
	}
	if say("concurrency") {
		o.Concurrency = &p.Concurrency
	}
	if say("max wait") {
		o.MaxWaitMS = &wait
	}
	if say("paused") {
		o.Paused = &p.Paused
	}
	if say("types") {
		o.Types = &p.Types
	}
	return o
}

// TestPolicyIsUnderstood: the scripts and parseObeyed read the policy that EncodePolicy wrote.
func TestPolicyIsUnderstood(t *testing.T) {
	e := embeddedEngine(t)
	at := shaper.Instant(1_772_366_400_000_000)
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, e, themes[0], 3)
		defer w.clean()
		w.T, w.wall = t, at
		w.declare(at, 1, shaper.Baseline{Defaults: drawAnyPolicy(t)})
		w.tune(w.tuningOf("acme", "file", overridesOf(t, drawAnyPolicy(t))))
		w.tune(w.tuningOf("acme", "api", overridesOf(t, drawAnyPolicy(t))))
		want := w.m.load("acme/echo").policy

		call, err := admitOne(w.shard, at, "id", scripts.Record{
			Flow: "acme/echo", Tenant: "acme", Route: "echo", Cost: 1, MaxAttempts: 1, Type: "test",
		})
		if err != nil {
			t.Fatal(err)
		}
		decisions, err := call.Decode(w.run(call.Call()))
		if err != nil {
			t.Fatal(err)
		}
		v := decisions[0]
		if v.Outcome != shaper.Admitted {
			t.Errorf("the outcome is %s, want %s", v.Outcome, shaper.Admitted)
		}
		obeyed := shaper.Policy{
			Rate: v.Rate, Capacity: v.Capacity, CapacityBytes: v.CapacityBytes, Paused: v.Start == 0,
		}
		declared := shaper.Policy{
			Rate: want.DrainRate(), Capacity: want.Capacity, CapacityBytes: want.CapacityBytes, Paused: want.Paused,
		}
		if diff := cmp.Diff(declared, obeyed); diff != "" {
			t.Errorf("the policy that the decision obeys (-want +got):\n%s", diff)
		}
		scan := scripts.ScanCall{
			At: scripts.AtInstant(at), Clock: w.shard.Clock(), Tenants: w.shard.Tenants(),
			Policy: w.shard.Policy("acme"), Dead: retention.Dead,
		}
		scanned, err := scan.Decode(w.run(scan.Call()))
		if err != nil {
			t.Fatal(err)
		}
		var paces []shaper.Pace
		for _, c := range scanned.Tenants[0].Flows[0].Bucket.Cells {
			paces = append(paces, c.Pace)
		}
		if diff := difference(want.Paces(), paces); diff != "" {
			t.Errorf("the paces that the flow obeys (-want +got):\n%s", diff)
		}
		raw, err := e.Get(t.Context(), w.shard.Job("id")).Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if r, err := scripts.DecodeRecord(raw); err != nil || r.MaxWaitMS != want.MaxWait.Milliseconds() {
			t.Errorf("the max wait is %d ms (%v), want %v", r.MaxWaitMS, err, want.MaxWait)
		}
		// With as many running as may run at once, the flow has no due instant; with one less it
		// has.
		for running, due := range map[int64]bool{
			want.Concurrency - 1: true, want.Concurrency: want.Concurrency == 0,
		} {
			if running < 0 {
				continue
			}
			if err := e.HSet(t.Context(), w.shard.Flow("acme/echo"), "running", running).Err(); err != nil {
				t.Fatal(err)
			}
			again := w.tuningOf("acme", "api", w.m.policies["acme"].api)
			tune := w.tuneCall(again)
			if tuned, _, err := tune.Decode(w.run(tune.Call())); err != nil || tuned != scripts.TunedChanged {
				t.Fatalf("tune: %v, %v", tuned, err)
			}
			if got := e.ZCard(t.Context(), w.shard.Due()).Val() == 1; got != (due && !want.Paused) {
				t.Errorf("with %d of %d running, due is %v", running, want.Concurrency, got)
			}
		}
	})
}

// TestUsualPolicyIsShort: what a flow keeps of a usual policy, behind its revision and tier, is no
// longer than 64 bytes, so that Redis stores the flow as a compact list.
func TestUsualPolicyIsShort(t *testing.T) {
	const before = "1795612505912734 =gold "
	p := shaper.Policy{
		Rate: shaper.Rate{Limit: 200, Period: time.Second}, Burst: 1, Capacity: 10_000, Concurrency: 64,
		Weight: 16, Reserve: shaper.Rate{Limit: 20, Period: time.Second},
	}
	minutes := p
	minutes.Rate.Period = time.Minute
	for want, p := range map[string]shaper.Policy{
		"200 10000 0 64 0 0 0 16 20 +erp":          p,
		"200:60000000 10000 0 64 0 0 0 16 20 +erp": minutes,
	} {
		if got := scripts.EncodePooled(p, "+erp"); got != want || len(before+got) > 64 {
			t.Errorf("%q with %d bytes in all, want %q with at most 64", got, len(before+got), want)
		}
	}
}
