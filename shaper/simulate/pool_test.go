package simulate

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// open is a policy that limits nothing in these tests.
func open() shaper.Policy {
	return shaper.Policy{Rate: rate("1000000/s"), Burst: 1000, Capacity: shaper.MaxCapacity}
}

// A pool of one flow is that flow, whichever of the two has the rate. Of the capacity of the pool a
// flow alone has three quarters.
func TestPoolOfOneIsTheFlow(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := flowPolicies().Draw(t, "policy")
		trace := traces(p.Rate).Draw(t, "trace")
		want, err := Shaper(trace, p, Workers{})
		if err != nil {
			t.Skip(err)
		}
		got, err := Pool([]Member{{Name: "a", Policy: p, Trace: trace}}, open(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Fates, got.Runs[0].Fates); diff != "" && p.MaxWait == 0 {
			t.Fatalf("fates: %s", diff)
		}
		if diff := cmp.Diff(want.Gone, got.Runs[0].Gone); diff != "" && p.MaxWait == 0 {
			t.Fatalf("the flow has the rate: %s", diff)
		}
		if p.MaxWait > 0 {
			return // a pool has none
		}
		part := p
		part.Capacity = (3*p.Capacity + 3) / 4
		if want, err = Shaper(trace, part, Workers{}); err != nil {
			t.Fatal(err)
		}
		flow := open()
		p.MaxCost = shaper.MaxCost // as for a flow
		if got, err = Pool([]Member{{Name: "a", Policy: flow, Trace: trace}}, p, 0); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want.Gone, got.Runs[0].Gone); diff != "" {
			t.Fatalf("the pool has the rate: %s", diff)
		}
	})
}

// model lets jobs leave a pool as shaper.Pool says, and looks at every flow for every stamp.
func model(members []Member, p shaper.Policy) (left []Departure) {
	type flow struct {
		shaper.Candidate
		shaper.Bucket
		queue []Arrival
		next  int
		in    bool
		shaper.Awaited
		departed int64
	}
	pool, flows := shaper.Pool{Bucket: shaper.NewBucket(p.Paces())}, make([]*flow, len(members))
	for i, m := range members {
		flows[i] = &flow{Candidate: shaper.Candidate{Name: m.Name, Weight: m.Policy.Weight}, Bucket: shaper.NewBucket(m.Policy.Paces())}
		flows[i].Tag = pool.Obey(flows[i].Tag, m.Policy.Weight, m.Policy.Reserve, 0)
	}
	leave := func(now shaper.Instant) bool {
		at := shaper.Instant(math.MaxInt64)
		for _, f := range flows {
			if len(f.queue) > 0 {
				at = min(at, f.Earliest())
			}
		}
		if at = max(at, pool.Earliest()); at > now || at == math.MaxInt64 {
			return false
		}
		var candidates []shaper.Candidate
		var who []int
		var head *flow
		for _, f := range flows {
			f.in = (f.in || f.Last == pool.Last && pool.Last > 0) && len(f.queue) > 0 && f.Earliest() <= at
			if f.in && f.Reserve != (shaper.Cell{}) && (head == nil || f.Reserve.TAT < head.Reserve.TAT) {
				head = f
			}
		}
		if head != nil {
			pool = pool.Advance(head.Tag, at)
		}
		for k, f := range flows {
			if len(f.queue) == 0 || f.Earliest() > at {
				continue
			}
			if !f.in {
				f.Tag, f.in = pool.Enter(f.Tag, at), true
			}
			candidates, who = append(candidates, f.Candidate), append(who, k)
		}
		i, reserved := pool.Pick(candidates, at)
		f := flows[who[i]]
		cost := f.queue[0].Cost
		if !reserved && len(candidates) == 1 {
			var coming []shaper.Coming
			for _, f := range flows { // one without jobs is due never
				due := shaper.Instant(math.MaxInt64)
				if len(f.queue) > 0 {
					due = f.Earliest()
				}
				coming = append(coming, shaper.Coming{Candidate: f.Candidate, Due: due, Missed: f.Missed(due, at, f.departed)})
			}
			var waited int
			var until shaper.Instant
			if pool, waited, until = pool.Spare(f.Candidate, cost, at, coming); until > 0 {
				flows[waited].Awaited = shaper.Awaited{Due: coming[waited].Due, Departed: flows[waited].departed}
				f.Bucket, f.in = f.MarkReady(until), false
				return true
			}
		}
		pool, f.Tag = pool.Serve(f.Candidate, reserved, at, cost)
		f.Bucket, f.queue, f.departed = f.Depart(at, cost), f.queue[1:], f.departed+1
		left = append(left, Departure{who[i], at - afterZero, cost, reserved})
		return true
	}
	for {
		now := shaper.Instant(math.MaxInt64)
		for k, f := range flows {
			if f.next < len(members[k].Trace) {
				now = min(now, members[k].Trace[f.next].At+afterZero)
			}
		}
		for leave(now) {
		}
		if now == math.MaxInt64 {
			return left
		}
		for k, f := range flows {
			for ; f.next < len(members[k].Trace) && members[k].Trace[f.next].At+afterZero == now; f.next++ {
				if len(f.queue) == 0 {
					f.Bucket = f.MarkReady(now)
				}
				f.queue = append(f.queue, members[k].Trace[f.next])
			}
		}
	}
}

// TestPoolAsModelled compares the simulator with a model that keeps no order of its own: every
// departure, who leaves and why.
func TestPoolAsModelled(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := open()
		p.Rate, p.Burst = rate(rapid.SampledFrom([]string{"10/s", "97/s", "7/3s"}).Draw(t, "pool")), rapid.Int64Range(1, 3).Draw(t, "burst")
		if rapid.Bool().Draw(t, "by jobs") {
			p.Rates = []shaper.Pace{{Rate: rate("5/s"), Burst: 2, ByJobs: true}}
		}
		var members []Member
		for i := range rapid.IntRange(1, 5).Draw(t, "flows") {
			m := Member{Name: fmt.Sprint("f", i), Policy: open()}
			m.Policy.Weight = rapid.Int64Range(1, 5).Draw(t, "weight")
			if rapid.Bool().Draw(t, "own rate") {
				m.Policy.Rate, m.Policy.Burst = rate(rapid.SampledFrom([]string{"9/s", "3/s", "40/s"}).Draw(t, "rate")), 1
			}
			if rapid.Bool().Draw(t, "reserved") {
				m.Policy.Reserve = rate(rapid.SampledFrom([]string{"1/s", "3/s", "7/3s"}).Draw(t, "reserve"))
			}
			now := start
			for range rapid.IntRange(1, 40).Draw(t, "arrivals") {
				m.Trace = append(m.Trace, Arrival{At: now, Cost: rapid.Int64Range(1, 4).Draw(t, "cost")})
				now = now.Add(time.Duration(rapid.SampledFrom([]int64{0, 0, 10, 33, 100, 2500}).Draw(t, "gap")) * ms)
			}
			members = append(members, m)
		}
		got, err := Pool(members, p, 0)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(model(members, p), got.Departures); diff != "" {
			t.Fatalf("(-model +simulator):\n%s", diff)
		}
	})
}

func TestPoolStories(t *testing.T) {
	t.Parallel()
	p := open()
	p.Rate, p.Burst = rate("10/s"), 1
	weighted := func(weight int64, reserve string) shaper.Policy {
		q := open()
		if q.Weight = weight; reserve != "" {
			q.Reserve = rate(reserve)
		}
		return q
	}
	near := func(t *testing.T, what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 0.02 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	t.Run("parts while all wait", func(t *testing.T) {
		r, err := Pool([]Member{
			{Name: "a", Policy: weighted(3, ""), Trace: at(repeat(600, 0)...)},
			{Name: "b", Policy: weighted(1, "2/s"), Backlog: 1},
		}, p, 0)
		if err != nil {
			t.Fatal(err)
		}
		near(t, "a", r.Parts[0], 0.6)
		near(t, "b", r.Parts[1], 0.4)
		if all := r.Report(); all.Departed != 600 || all.WaitMax < 99*sec || all.WaitMax > 101*sec || all.FullestWindow != 10 {
			t.Errorf("%+v", all)
		}
	})
	t.Run("a flow without a part stays", func(t *testing.T) {
		r, err := Pool([]Member{
			{Name: "a", Policy: weighted(1, ""), Trace: at(0)}, {Name: "b", Policy: weighted(1, "20/s"), Backlog: 1},
		}, p, 0)
		if err != nil || r.Runs[0].Fates[0] != Waiting || len(r.Departures) != backlogMost {
			t.Errorf("%v, %d departures", err, len(r.Departures))
		}
	})
	t.Run("a longest wait and a full pool", func(t *testing.T) {
		q, small := weighted(1, ""), p
		q.MaxWait, small.Capacity = sec, 15
		r, err := Pool([]Member{
			{Name: "a", Policy: q, Trace: at(repeat(20, 0)...)}, {Name: "b", Policy: weighted(1, ""), Trace: at(repeat(20, ms)...)},
		}, small, 0)
		if err != nil {
			t.Fatal(err)
		}
		// Each holds at most three times what it leaves, so both leave a place free.
		if all := r.Report(); all.PeakDepth != 14 || all.Admitted+all.Refused != 40 || all.Expired+all.Departed != all.Admitted {
			t.Errorf("%+v", all)
		}
	})
	t.Run("a flow leaves slots of its pool", func(t *testing.T) {
		small := p
		small.Rate, small.Concurrency = shaper.Rate{Limit: 1000, Period: sec}, 8
		slow := weighted(1000, "")
		slow.Rate = small.Rate
		r, err := Pool([]Member{
			{Name: "slow", Policy: slow, Trace: at(repeat(50, 0)...)},
			{Name: "late", Policy: slow, Trace: at(100 * ms)},
		}, small, sec)
		if err != nil {
			t.Fatal(err)
		}
		if left := r.Runs[1].Gone[0]; left > start.Add(100*ms) {
			t.Errorf("the late job left at %d", left)
		}
	})
	t.Run("paused", func(t *testing.T) {
		small := p
		small.Paused = true
		r, err := Pool([]Member{{Name: "a", Policy: weighted(1, ""), Trace: at(0, 0)}, {Name: "b", Policy: open(), Backlog: 1}}, small, 0)
		if err != nil || len(r.Departures) != 0 || r.Runs[0].Fates[1] != Waiting {
			t.Errorf("%v %+v", err, r)
		}
	})
	for want, members := range map[string][]Member{
		"members: a: must have different names":                       {{Name: "a", Policy: open(), Trace: at(0)}, {Name: "a", Policy: open(), Trace: at(0)}},
		"a: not a trace: it has no arrivals":                          {{Name: "a", Policy: open()}},
		"a.capacity: -1: must be a whole number from 0 to 1000000000": {{Name: "a", Policy: shaper.Policy{Rate: rate("1/s"), Burst: 1, Capacity: -1}, Trace: at(0)}},
	} {
		if _, err := Pool(members, p, 0); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
