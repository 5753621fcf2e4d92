package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// TestSimulatedAsServed sends a flash sale through the real scripts in virtual time, looked at as a
// worker does: what is admitted, what is refused and why, and every departure are those of the
// simulator, to the microsecond. With -short every third policy is simulated.
func TestSimulatedAsServed(t *testing.T) {
	t.Parallel()
	second := func(limit int64) shaper.Rate { return shaper.Rate{Limit: limit, Period: time.Second} }
	for i, c := range []struct {
		name    string
		policy  shaper.Policy
		horizon time.Duration
		service time.Duration // with a cap of concurrency
		bunch   int           // arrivals that come as one batch; 0 is 1
	}{
		{"spaced", shaper.Policy{Rate: second(20), Burst: 1, Capacity: 50}, simulate.Horizon, 0, 0},
		{"spaced, without looking ahead", shaper.Policy{Rate: second(20), Burst: 1, Capacity: 50}, 0, 0, 0},
		{"thirds and a burst", shaper.Policy{
			Rate: shaper.Rate{Limit: 37, Period: 3 * time.Second}, Burst: 4, Capacity: 20,
		}, simulate.Horizon, 0, 0},
		{"two rates and a longest wait", shaper.Policy{
			Rate: second(30), Burst: 2, Capacity: 200, MaxWait: 2 * time.Second,
			Rates: []shaper.Pace{{Rate: shaper.Rate{Limit: 600, Period: time.Minute}, Burst: 40}},
		}, simulate.Horizon, 0, 0},
		{"batches", shaper.Policy{Rate: second(20), Burst: 4, Capacity: 50}, simulate.Horizon, 0, 30},
		{"batches and a cap", shaper.Policy{Rate: second(50), Burst: 1, Capacity: 50, Concurrency: 3}, 0,
			90 * time.Millisecond, 17},
		{"a single place", shaper.Policy{Rate: second(50), Burst: 1, Capacity: 1}, simulate.Horizon, 0, 0},
		{"a cap below the rate", shaper.Policy{Rate: second(20), Burst: 1, Capacity: 60, Concurrency: 4},
			simulate.Horizon, 317 * time.Millisecond, 0},
		{"a cap about at the rate", shaper.Policy{Rate: second(50), Burst: 3, Capacity: 40, Concurrency: 10},
			simulate.Horizon, 200 * time.Millisecond, 0},
		{"a cap above the rate", shaper.Policy{Rate: second(20), Burst: 1, Capacity: 60, Concurrency: 9},
			simulate.Horizon, 317 * time.Millisecond, 0},
		{"one at a time, faster than looking ahead", shaper.Policy{Rate: second(150), Burst: 1, Capacity: 5,
			Concurrency: 1}, simulate.Horizon, 4 * time.Millisecond, 0},
		{"one at a time, late by less than the slack", shaper.Policy{Rate: second(100), Burst: 1,
			Capacity: 30, Concurrency: 1}, simulate.Horizon, 17 * time.Millisecond, 0},
		{"a cap without looking ahead", shaper.Policy{
			Rate: second(100), Burst: 2, Capacity: 30, Concurrency: 3,
		}, 0, 43 * time.Millisecond, 0},
		{"a cap and a longest wait", shaper.Policy{
			Rate: second(30), Burst: 1, Capacity: 60, Concurrency: 3, MaxWait: time.Second,
		}, 0, 150 * time.Millisecond, 0},
		{"several in a poll", shaper.Policy{Rate: second(150), Burst: 1, Capacity: 5}, simulate.Horizon, 0, 0},
	} {
		if testing.Short() && i%3 != 1 {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				trace, err := simulate.Generator{
					Shape: simulate.FlashSale, Rate: second(5), Peak: second(200), For: 20 * time.Second,
					Seed: 7,
				}.Trace()
				if err != nil {
					t.Fatal(err)
				}
				q := embedded(t, func(o *queue.Options) { o.Shards, o.Defaults = 1, c.policy })
				begin := shaper.InstantOf(time.Now()).Add(time.Second)
				for i, shift := 0, begin-trace[0].At; i < len(trace); i++ {
					trace[i].At += shift
					trace[i].At = trace[i-i%max(1, c.bunch)].At
					trace[i].Cost = 1 + int64(i%7/6) // every seventh costs 2
				}
				want, err := simulate.Shaper(trace, c.policy, simulate.Workers{Horizon: c.horizon, Service: c.service})
				if err != nil {
					t.Fatal(err)
				}
				serve(t, q, want, c.policy.Concurrency, c.horizon, c.service)
			})
		})
	}
}

// serve replays the run's trace and holds the decisions and departures against it. A job is settled
// the service after it has left, at once without one; when that is the end of being at the cap, the
// flow is looked at, for the shard's owner is woken then.
func serve(t *testing.T, q *queue.Queue, want *simulate.Run, most int64, horizon, service time.Duration) {
	t.Helper()
	c, number, left := q.Broker().Consumer("w", 0), map[string]int{}, 0
	var next shaper.Instant // when to poll
	type ending struct {
		at shaper.Instant
		queue.Settlement
	}
	var running []ending
	settle := func(ends ...queue.Settlement) {
		if _, err := q.Broker().Settle(t.Context(), ends); err != nil {
			t.Fatalf("Settle: %v", err)
		}
	}
	poll := func() {
		for more := true; more; {
			tick, err := c.Tick(t.Context(), queue.TickOptions{
				Max: 64, Lease: time.Hour, Sweep: time.Hour, Horizon: horizon,
			})
			if err != nil {
				t.Fatalf("Tick: %v", err)
			}
			var ends []queue.Settlement
			for _, l := range tick.Leases {
				i, gone := number[l.ID], max(l.Stamp, tick.Now)
				if want.Fates[i] != simulate.Departed || gone != want.Gone[i] {
					t.Fatalf("arrival %d left at %d, the simulator has %d at %d", i, gone, want.Fates[i], want.Gone[i])
				}
				end := queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: l.MaxAttempts}
				if service > 0 {
					running = append(running, ending{gone.Add(service), end})
				} else {
					ends = append(ends, end)
				}
			}
			left += len(tick.Leases)
			if len(ends) > 0 {
				settle(ends...)
			}
			if next = tick.Next; next != 0 {
				next = next.Add(-horizon / 2)
			}
			more = tick.More || len(ends) > 0
		}
	}
	until := func(end shaper.Instant) {
		for {
			switch polls := next != 0 && next <= end; {
			case len(running) > 0 && running[0].at <= end && !(polls && next < running[0].at):
				time.Sleep(time.Until(running[0].at.Time()))
				wakes := int64(len(running)) == most
				settle(running[0].Settlement)
				if running = running[1:]; wakes {
					poll()
				}
			case polls:
				time.Sleep(time.Until(next.Time()))
				poll()
			default:
				return
			}
		}
	}
	fates := map[shaper.Outcome]simulate.Fate{
		shaper.Admitted: simulate.Departed, shaper.Full: simulate.Refused,
		shaper.DeadlineUnreachable: simulate.Unreachable,
	}
	counts := map[simulate.Fate]int{}
	for i := 0; i < len(want.Trace); {
		at := want.Trace[i].At
		until(at)
		time.Sleep(time.Until(at.Time()))
		var batch []queue.Submission
		for _, a := range want.Trace[i:] {
			if a.At == at {
				job := work()
				job.Cost = a.Cost
				batch = append(batch, job)
			}
		}
		decisions, err := q.SubmitBatch(t.Context(), batch, false)
		if err != nil {
			t.Fatalf("SubmitBatch: %v", err)
		}
		first := false
		for _, v := range decisions {
			fate, known := fates[v.Outcome]
			predicted := want.Fates[i]
			if !known || fate != predicted && !(fate == simulate.Departed && predicted == simulate.Expired) {
				t.Fatalf("arrival %d is %s, the simulator has %d", i, v.Outcome, predicted)
			}
			counts[want.Fates[i]]++
			number[v.Job.ID] = i
			first = first || v.Position == 1
			i++
		}
		if first { // a job in an empty queue wakes the worker
			poll()
		}
	}
	until(want.End().Add(service))
	if left != counts[simulate.Departed] {
		t.Errorf("%d left, the simulator has %d", left, counts[simulate.Departed])
	}
	if len(want.Trace) < 300 || counts[simulate.Departed] < 100 || counts[simulate.Departed] == len(want.Trace) {
		t.Errorf("the trace shows nothing: %v", counts)
	}
}
