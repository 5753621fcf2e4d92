package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// TestSimulatedAsServed sends a flash sale through the real scripts in virtual time, looked at as a worker does: what is admitted, what is
// refused and why, and every departure are those of the simulator, to the microsecond.
func TestSimulatedAsServed(t *testing.T) {
	t.Parallel()
	second := func(limit int64) shaper.Rate { return shaper.Rate{Limit: limit, Period: time.Second} }
	for _, c := range []struct {
		name    string
		policy  shaper.Policy
		horizon time.Duration
	}{
		{"spaced", shaper.Policy{Rate: second(20), Burst: 1, Capacity: 50}, simulate.Horizon},
		{"spaced, without a look ahead", shaper.Policy{Rate: second(20), Burst: 1, Capacity: 50}, 0},
		{"thirds and a burst", shaper.Policy{Rate: shaper.Rate{Limit: 37, Period: 3 * time.Second}, Burst: 4, Capacity: 20}, simulate.Horizon},
		{"two rates and a longest wait", shaper.Policy{
			Rate: second(30), Burst: 2, Capacity: 200, MaxWait: 2 * time.Second, Rates: []shaper.Pace{{Rate: shaper.Rate{Limit: 600, Period: time.Minute}, Burst: 40}},
		}, simulate.Horizon},
		{"a single place", shaper.Policy{Rate: second(50), Burst: 1, Capacity: 1}, simulate.Horizon},
		{"several at a look", shaper.Policy{Rate: second(150), Burst: 1, Capacity: 5}, simulate.Horizon},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				trace, err := simulate.Generator{Shape: simulate.FlashSale, Rate: second(5), Peak: second(200), For: 20 * time.Second, Seed: 7}.Trace()
				if err != nil {
					t.Fatal(err)
				}
				q := embedded(t, func(o *queue.Options) { o.Shards, o.Defaults = 1, c.policy })
				begin := shaper.InstantOf(time.Now()).Add(time.Second)
				for i, shift := 0, begin-trace[0].At; i < len(trace); i++ {
					trace[i].At += shift
					trace[i].Cost = 1 + int64(i%7/6) // every seventh costs 2
				}
				want, err := simulate.Shaper(trace, c.policy, c.horizon)
				if err != nil {
					t.Fatal(err)
				}
				serve(t, q, want, c.horizon)
			})
		})
	}
}

// serve replays the run's trace and holds the verdicts and stamps against it. It settles at once, so that nothing but the rate limits the flow.
func serve(t *testing.T, q *queue.Queue, want *simulate.Run, horizon time.Duration) {
	t.Helper()
	c, number, left := q.Consumer("w", 0), map[string]int{}, 0
	var next shaper.Instant // when to look
	look := func() {
		for more := true; more; {
			tick, err := c.Tick(t.Context(), queue.TickOptions{Max: 64, Lease: time.Hour, Sweep: time.Hour, Horizon: horizon})
			if err != nil {
				t.Fatalf("Tick: %v", err)
			}
			var ends []queue.Settlement
			for _, l := range tick.Leases {
				if i := number[l.ID]; want.Fates[i] != simulate.Departed || l.Stamp != want.Gone[i] {
					t.Fatalf("arrival %d left at %d, of which is said %d at %d", i, l.Stamp, want.Fates[i], want.Gone[i])
				}
				ends = append(ends, queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: l.MaxAttempts})
			}
			left += len(ends)
			if len(ends) > 0 {
				if _, err := q.Settle(t.Context(), ends); err != nil {
					t.Fatalf("Settle: %v", err)
				}
			}
			if next = tick.Next; next != 0 {
				next = next.Add(-horizon / 2)
			}
			more = tick.More || len(ends) > 0
		}
	}
	lookUntil := func(end shaper.Instant) {
		for next != 0 && next <= end {
			time.Sleep(time.Until(next.Time()))
			look()
		}
	}
	fates := map[shaper.Outcome]simulate.Fate{
		shaper.Admitted: simulate.Departed, shaper.Full: simulate.Refused, shaper.DeadlineUnreachable: simulate.Unreachable,
	}
	counts := map[simulate.Fate]int{}
	for i, a := range want.Trace {
		lookUntil(a.At)
		time.Sleep(time.Until(a.At.Time()))
		job := work()
		job.Cost = a.Cost
		v, err := q.Submit(t.Context(), job)
		if err != nil {
			t.Fatalf("Submit: %v", err)
		}
		if fate, known := fates[v.Outcome]; !known || fate != want.Fates[i] {
			t.Fatalf("arrival %d is %s, of which is said %d", i, v.Outcome, want.Fates[i])
		}
		counts[want.Fates[i]]++
		if number[v.Job.ID] = i; v.Position == 1 { // whoever comes into an empty queue wakes the worker
			look()
		}
	}
	lookUntil(want.End())
	if left != counts[simulate.Departed] {
		t.Errorf("%d left, of which is said %d", left, counts[simulate.Departed])
	}
	if len(want.Trace) < 300 || counts[simulate.Departed] < 100 || counts[simulate.Departed] == len(want.Trace) {
		t.Errorf("the trace shows nothing: %v", counts)
	}
}
