package queue_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// TestPoolSimulatedAsServed sends the arrivals of several flows of a pool through the real scripts
// in virtual time, polled at each stamp: every departure is that of the simulator, to the
// microsecond.
func TestPoolSimulatedAsServed(t *testing.T) {
	t.Parallel()
	second := func(limit int64) shaper.Rate { return shaper.Rate{Limit: limit, Period: time.Second} }
	for i, c := range []struct {
		name    string
		pool    shaper.Policy
		flows   []shaper.Policy // rate, weight, reserve, capacity
		service time.Duration   // with a cap of concurrency
	}{
		{"weights", shaper.Policy{Rate: second(50)}, []shaper.Policy{{Weight: 4}, {Weight: 2}, {}}, 0},
		{"reserves and own rates", shaper.Policy{Rate: second(50), Burst: 3},
			[]shaper.Policy{{Reserve: second(20)}, {Weight: 3, Rate: second(7)}, {Reserve: second(7)}, {Weight: 2, Capacity: 9}}, 0},
		{"reserves above the rate", shaper.Policy{Rate: second(37)},
			[]shaper.Policy{{Reserve: second(30)}, {Reserve: second(20), Rate: second(25)}, {}}, 0},
		{"costly jobs beside own rates", shaper.Policy{Rate: second(50), Burst: 1},
			[]shaper.Policy{{Rate: second(12)}, {Rate: second(11), Reserve: second(9)}, {Weight: 2}}, 0},
		{"a full pool, and a rate by jobs", shaper.Policy{Rate: second(90), Capacity: 60,
			Rates: []shaper.Pace{{Rate: second(40), Burst: 1, ByJobs: true}}}, []shaper.Policy{{Weight: 2}, {Reserve: second(30)}, {}}, 0},
		{"a cap of a flow", shaper.Policy{Rate: second(50)},
			[]shaper.Policy{{Concurrency: 2, Weight: 9}, {Weight: 2}, {Concurrency: 1, Reserve: second(5)}}, 170 * time.Millisecond},
		{"a cap of the pool", shaper.Policy{Rate: second(50), Concurrency: 5}, []shaper.Policy{{Weight: 4}, {Reserve: second(9)}, {}},
			210 * time.Millisecond},
	} {
		if testing.Short() && i%3 != 1 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c.pool.Burst = max(1, c.pool.Burst)
				if c.pool.Capacity == 0 {
					c.pool.Capacity = 1000
				}
				begin, random := shaper.InstantOf(time.Now()).Add(time.Second), rand.New(rand.NewPCG(uint64(i), 7))
				var members []simulate.Member
				tenants := map[string]shaper.Overrides{}
				for k, p := range c.flows {
					if p.Rate == (shaper.Rate{}) {
						p.Rate = second(200)
					}
					if p.Burst = 1; p.Capacity == 0 {
						p.Capacity = 100
					}
					p.Weight = max(1, p.Weight)
					name := fmt.Sprintf("t%d", k)
					m := simulate.Member{Name: name + "/erp", Policy: p}
					at := begin
					for range 150 {
						cost := 1 + random.Int64N(3)
						if p.Weight == 2 && k == 2 {
							cost += random.Int64N(20)
						}
						m.Trace = append(m.Trace, simulate.Arrival{At: at, Cost: cost})
						if random.IntN(3) > 0 { // some come together
							at = at.Add(time.Duration(random.Int64N(90_000)) * time.Microsecond)
						}
						if random.IntN(60) == 0 {
							at = at.Add(3 * time.Second) // idleness
						}
					}
					members = append(members, m)
					tenants[name] = shaper.Overrides{Rate: &p.Rate, Capacity: &p.Capacity, Weight: &p.Weight, Concurrency: &p.Concurrency}
					if p.Reserve != (shaper.Rate{}) {
						o := tenants[name]
						o.Reserve = &p.Reserve
						tenants[name] = o
					}
				}
				want, err := simulate.Pool(members, c.pool, c.service)
				if err != nil {
					t.Fatal(err)
				}
				servePool(t, c.pool, tenants, members, want, c.service)
			})
		})
	}
}

// servePool replays the traces and compares the departures with those of the run.
func servePool(t *testing.T, p shaper.Policy, tenants map[string]shaper.Overrides, members []simulate.Member,
	want *simulate.PoolRun, service time.Duration,
) {
	t.Helper()
	q := embedded(t, func(o *queue.Options) {
		o.Shards, o.Tenants, o.Horizon = 1, tenants, 2*time.Microsecond // nothing is leased ahead of its stamp
		rates := []shaper.PaceJSON{}
		for _, r := range p.Rates {
			rates = append(rates, r.JSON())
		}
		o.Pools = map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{
			Rate: &p.Rate, Burst: &p.Burst, Rates: &rates, Capacity: &p.Capacity, Concurrency: &p.Concurrency}}}
	})
	c, left := q.Broker().Consumer("w", 0), 0
	var next shaper.Instant
	type ending struct {
		at shaper.Instant
		queue.Settlement
	}
	var running []ending
	poll := func() {
		for more := true; more; {
			tick, err := c.Tick(t.Context(), queue.TickOptions{Max: 64, Lease: time.Hour, Sweep: time.Hour})
			if err != nil {
				t.Fatalf("Tick: %v", err)
			}
			for _, l := range tick.Leases {
				gone := max(l.Stamp, tick.Now)
				if left == len(want.Departures) {
					t.Fatalf("departure %d is not in the simulation", left)
				}
				d := want.Departures[left]
				if name := members[d.Member].Name; name != l.Tenant+"/erp" || d.At != gone || d.Cost != l.Cost {
					t.Fatalf("departure %d is of %s at %d, the simulator has %s at %d", left, l.Tenant, gone, name, d.At)
				}
				left++
				running = append(running, ending{gone.Add(service), queue.Settlement{
					LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: l.MaxAttempts}})
			}
			next, more = tick.Next, tick.More
		}
	}
	until := func(end shaper.Instant) {
		for {
			switch polls := next != 0 && next <= end; {
			case len(running) > 0 && running[0].at <= end && !(polls && next < running[0].at):
				time.Sleep(time.Until(running[0].at.Time()))
				if _, err := q.Broker().Settle(t.Context(), []queue.Settlement{running[0].Settlement}); err != nil {
					t.Fatalf("Settle: %v", err)
				}
				running = running[1:]
				poll()
			case polls:
				time.Sleep(time.Until(next.Time()))
				poll()
			default:
				return
			}
		}
	}
	at, coming := make([]int, len(members)), 0
	for _, m := range members {
		coming += len(m.Trace)
	}
	refused := 0
	for coming > 0 {
		now := shaper.Instant(0)
		for k, m := range members {
			if at[k] < len(m.Trace) && (now == 0 || m.Trace[at[k]].At < now) {
				now = m.Trace[at[k]].At
			}
		}
		until(now)
		time.Sleep(time.Until(now.Time()))
		for k, m := range members {
			for ; at[k] < len(m.Trace) && m.Trace[at[k]].At == now; at[k]++ {
				w := work()
				w.Tenant, w.Route, w.Cost = m.Name[:2], "erp", m.Trace[at[k]].Cost
				v, err := q.Submit(t.Context(), w)
				if err != nil {
					t.Fatalf("Submit: %v", err)
				}
				if coming--; (v.Outcome == shaper.Admitted) != want.Runs[k].Fates[at[k]].Admitted() {
					t.Fatalf("arrival %d of %s is %s, the simulator has %d", at[k], m.Name, v.Outcome, want.Runs[k].Fates[at[k]])
				}
				if v.Outcome != shaper.Admitted {
					refused++
				}
			}
		}
		poll()
	}
	until(want.Departures[len(want.Departures)-1].At.Add(time.Second))
	if left != len(want.Departures) || left < 200 {
		t.Errorf("%d left, %d refused, the simulator has %d", left, refused, len(want.Departures))
	}
}
