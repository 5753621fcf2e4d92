package shaper_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// crowd counts what the clients of a full queue do until each has a slot.
type crowd struct {
	attempts int // of all clients
	fullest  int // attempts in one second
	idle     int // departures that found the queue empty while clients waited
}

// retry simulates clients that find a queue full within one second. They retry at the instant that
// turn returns, rounded up to whole seconds of waiting. The queue drains at 10/s.
func retry(
	clients int, capacity int64, turn func(now shaper.Instant, a shaper.Admission) shaper.Instant,
) (c crowd) {
	const interval = 100 * time.Millisecond
	policy := shaper.DefaultPolicy()
	policy.Capacity = capacity
	flow := waiting(sent(1, pace("10/s", 1)), capacity, 1)
	due := make([]shaper.Instant, clients)
	for i := range due {
		due[i] = start.Add(time.Duration(i) * time.Second / time.Duration(clients))
	}
	seconds := map[time.Duration]int{}
	for now := start; clients > 0; now = now.Add(time.Millisecond) {
		if now > start && now.Sub(start)%interval == 0 {
			if flow.Queued == 0 {
				c.idle++
			} else {
				flow.Bucket = flow.Depart(now, 1)
				flow.Queued, flow.Cost, flow.Depth = flow.Queued-1, flow.Cost-1, flow.Depth-1
			}
		}
		for i, at := range due {
			if at == 0 || at > now {
				continue
			}
			c.attempts++
			seconds[now.Sub(start)/time.Second]++
			var a shaper.Admission
			flow, a = shaper.Admit(flow, policy, now, shaper.Request{Size: 1, Cost: 1}, nil)
			if a.Outcome == shaper.Admitted {
				due[i], clients = 0, clients-1
				continue
			}
			wait := turn(now, a).Sub(now)
			due[i] = now.Add((wait + time.Second - 1).Truncate(time.Second))
		}
	}
	for second, n := range seconds {
		if second > 0 { // in the first one clients arrive, none retries
			c.fullest = max(c.fullest, n)
		}
	}
	return c
}

// TestRetrySlots simulates 1,000 rejected clients. With the exact wait, the same for each, they
// return as a herd at every slot. With slots they return about as fast as the queue drains, and the
// queue never runs empty while they wait.
func TestRetrySlots(t *testing.T) {
	for _, tt := range []struct {
		capacity          int64
		attempts, fullest int // the most
	}{
		{1000, 2 * 1000, 25},  // each client gets a slot of its own
		{100, 12 * 1000, 250}, // one in ten does
	} {
		same := retry(1000, tt.capacity, func(now shaper.Instant, a shaper.Admission) shaper.Instant {
			return now.Add(a.RetryAfter)
		})
		random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a simulation that repeats
		var slots shaper.RetrySlots
		spread := retry(1000, tt.capacity, func(_ shaper.Instant, a shaper.Admission) shaper.Instant {
			return slots.Take(a, 1, random.Int64N)
		})
		t.Logf("capacity %d: the same wait %+v, slots %+v", tt.capacity, same, spread)
		if spread.attempts > tt.attempts || spread.fullest > tt.fullest || spread.idle > 0 {
			t.Errorf("capacity %d: %+v", tt.capacity, spread)
		}
		if same.attempts < 2*spread.attempts || same.fullest < 4*spread.fullest {
			t.Errorf("capacity %d: the simulation shows no herd: %+v", tt.capacity, same)
		}
	}
}

// No turn is before its slots are free, or after the end of the drain.
func TestRetrySlotsAreNeitherEarlyNorBeyondTheDrain(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var slots shaper.RetrySlots
		now := start
		for range rapid.IntRange(1, 50).Draw(t, "refusals") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "later")))
			a := shaper.Admission{
				Now: now, Depth: rapid.Int64Range(0, 1000).Draw(t, "depth"),
				RetryAfter: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "retry after")),
				Start:      now.Add(time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "drain"))),
			}
			slot := slots.Take(a, rapid.Int64Range(1, 1000).Draw(t, "size"), func(n int64) int64 {
				return rapid.Int64Range(0, n-1).Draw(t, "random")
			})
			free := now.Add(a.RetryAfter)
			switch {
			case a.RetryAfter == 0 && slot != 0:
				t.Fatalf("the slot is %v although it is unknown when a slot frees", slot)
			case a.RetryAfter > 0 && (slot < free || slot > max(free, a.Start)):
				t.Fatalf("the slot is %v, free at %v, drained at %v", slot, free, a.Start)
			}
		}
	})
}
