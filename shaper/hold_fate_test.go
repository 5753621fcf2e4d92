package shaper_test

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// answered is a job of TestPartiesThatAreRefused whose answer is on its way.
type answered struct {
	party   int
	stamp   shaper.Instant
	at      shaper.Instant
	refused bool
	pause   time.Duration // with Retry-After; 0 for none
}

// refusing simulates a pool whose flows wait all the time.
type refusing struct {
	bucket   shaper.Bucket
	policy   shaper.Policy
	pauses   shaper.Pauses
	refusals shaper.Refusals
	served   []int64          // by party
	free     []shaper.Instant // when the flow is no longer held
	stamps   [][]shaper.Instant
	slowed   []shaper.Instant // when the pool had less than its rate, the first and the last of each time
	holds    int
}

func newRefusing(rate int64, parties int) *refusing {
	return &refusing{
		bucket: shaper.NewBucket([]shaper.Pace{{Rate: shaper.Rate{Limit: rate, Period: time.Second}, Burst: 1}}),
		policy: shaper.Policy{MaxHold: 10 * time.Second},
		served: make([]int64, parties), free: make([]shaper.Instant, parties), stamps: make([][]shaper.Instant, parties),
	}
}

// run lets jobs leave until an instant. answer decides on each what it gets, and when.
func (s *refusing) run(from, until shaper.Instant, answer func(party int, stamp shaper.Instant) answered) {
	var due []answered
	departed, now := int64(0), from
	for now < until {
		next := -1 // the party whose turn it is: the one that was served least of those that are not held
		stamp := s.bucket.Stamp(0, now)
		for i, free := range s.free {
			if free <= stamp && (next < 0 || s.served[i] < s.served[next]) {
				next = i
			}
		}
		if next < 0 {
			stamp = slices.Min(s.free)
		}
		if len(due) > 0 && due[0].at <= stamp {
			now = max(now, due[0].at)
			s.settle(due[0], departed, now)
			due = due[1:]
			continue
		}
		if now = max(now, stamp); next < 0 {
			continue
		}
		for _, n := range s.served { // idleness earns no credit
			s.served[next] = max(s.served[next], n-1)
		}
		s.bucket = s.bucket.Depart(stamp, 1)
		s.served[next]++
		departed++
		s.stamps[next] = append(s.stamps[next], stamp)
		a := answer(next, stamp)
		a.party, a.stamp = next, stamp
		at, _ := slices.BinarySearchFunc(due, a, func(d, a answered) int { return int(d.at - a.at) })
		due = slices.Insert(due, at, a)
	}
}

func (s *refusing) settle(a answered, departed int64, now shaper.Instant) {
	party := fmt.Sprint("t", a.party)
	if !a.refused {
		s.refusals = s.refusals.Succeed(party, a.stamp, departed, now)
		s.pauses, s.bucket = s.pauses.Succeed(s.policy, party, a.stamp, s.bucket, now)
		s.note(now)
		return
	}
	s.bucket, s.refusals = s.refusals.Refuse(s.bucket, party, a.stamp, departed, now)
	if a.pause > 0 {
		var until shaper.Instant
		s.pauses, _, until = s.pauses.Answer(s.policy, party, a.pause, s.bucket, now)
		if until > 0 {
			s.holds++
			s.bucket, s.refusals = s.bucket.Hold(until, now), shaper.Refusals{}
			s.bucket.Probe = now
		}
		s.free[a.party] = max(s.free[a.party], now.Add(a.pause))
	}
	s.note(now)
}

// note notes whether the pool has its whole rate.
func (s *refusing) note(now shaper.Instant) {
	slow, open := s.bucket.Pace(now) < 1 || s.bucket.HeldUntil > now, len(s.slowed)%2 == 1
	if slow != open {
		s.slowed = append(s.slowed, now)
	}
}

// TestPartiesThatAreRefused: whatever answers up to eight tenants of a pool get, with and without
// Retry-After, the others keep 99 % of their part in every window of 2 s. The exception is the
// first time that the pool is held, until it has its rate again.
func TestPartiesThatAreRefused(t *testing.T) {
	// Refusals of jobs from before the first one once hid that those of the good one had no answer
	// yet: its successes took longer.
	mixed{
		hostile: 8, good: 1, rate: 26, kinds: []int{1, 1, 1, 1, 1, 1, 0}, pauses: []time.Duration{25 * time.Millisecond},
		quick: []int{505, 3, 476}, slow: time.Second,
	}.check(t)
	rapid.Check(t, func(t *rapid.T) {
		var c mixed
		c.hostile, c.good = rapid.IntRange(1, 8).Draw(t, "hostile"), rapid.IntRange(1, 4).Draw(t, "good")
		c.rate = rapid.Int64Range(20, 400).Draw(t, "rate")
		c.kinds = rapid.SliceOfN(rapid.IntRange(0, 9), 1, 40).Draw(t, "answers")
		c.pauses = rapid.SliceOfN(rapid.SampledFrom([]time.Duration{
			time.Microsecond, 25 * time.Millisecond, time.Second, 1500 * time.Millisecond,
		}), 1, 10).Draw(t, "pauses")
		c.quick = rapid.SliceOfN(rapid.IntRange(1, 900), 1, 20).Draw(t, "ms until an answer")
		c.slow = rapid.SampledFrom([]time.Duration{time.Millisecond, 30 * time.Millisecond, time.Second}).Draw(t, "success after")
		c.check(t)
	})
}

// mixed are tenants of a pool: of the hostile ones each job gets the next of the answers, after the
// next of the times; of the good ones each succeeds.
type mixed struct {
	hostile, good int
	rate          int64 // of the pool, a second
	kinds         []int // 0 a success, up to 6 a refusal with the next pause, others one without
	pauses        []time.Duration
	quick         []int         // ms until an answer
	slow          time.Duration // until a success
}

func (c mixed) check(t rapid.TB) {
	s := newRefusing(c.rate, c.hostile+c.good)
	n := 0
	start, length := shaper.Instant(1_000_000_000), 40*time.Second
	s.run(start, start.Add(length), func(party int, stamp shaper.Instant) answered {
		if party >= c.hostile {
			return answered{at: stamp.Add(c.slow)}
		}
		n++
		a := answered{at: stamp.Add(time.Duration(c.quick[n%len(c.quick)]) * time.Millisecond), refused: true}
		switch kind := c.kinds[n%len(c.kinds)]; {
		case kind == 0:
			a.refused = false
		case kind < 7:
			a.pause = c.pauses[n%len(c.pauses)]
		}
		return a
	})
	first := shaper.Instant(math.MaxInt64)
	end := first
	if len(s.slowed) > 1 {
		first, end = s.slowed[0], s.slowed[1]
	} else if len(s.slowed) == 1 {
		first = s.slowed[0]
	}
	const window = 2 * time.Second
	part := float64(c.rate) / float64(c.hostile+c.good) * window.Seconds()
	for i := c.hostile; i < c.hostile+c.good; i++ {
		for at := start; at.Add(window) < start.Add(length-time.Second); at = at.Add(100 * time.Millisecond) {
			if at.Add(window) > first && at < end {
				continue
			}
			got := 0
			for _, stamp := range s.stamps[i] {
				if stamp >= at && stamp < at.Add(window) {
					got++
				}
			}
			if float64(got) < 0.99*part-2 {
				t.Fatalf("%+v: a good one got %d of %.0f in the 2 s from %v on; the pool was slowed at %v, and held %d times",
					c, got, part, at.Sub(start), s.slowed, s.holds)
			}
		}
	}
}

// TestCollusion: two tenants whose every request gets 429 with Retry-After: 1, sent again each
// time, take almost nothing from three others. The pool is held at most once, or until the first
// success where that takes longer than the pause.
func TestCollusion(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, 50 * time.Millisecond, 3 * time.Second} {
		s := newRefusing(100, 5)
		start := shaper.Instant(1_000_000_000)
		s.run(start, start.Add(time.Minute), func(party int, stamp shaper.Instant) answered {
			if party < 2 {
				return answered{at: stamp.Add(time.Millisecond), refused: true, pause: time.Second}
			}
			return answered{at: stamp.Add(after)}
		})
		got := len(s.stamps[2]) + len(s.stamps[3]) + len(s.stamps[4])
		t.Logf("success after %v: %d of 6000 jobs in a minute, held %d times", after, got, s.holds)
		if got < 5500 || after < time.Second && (got < 5800 || s.holds > 1) {
			t.Errorf("success after %v: %d jobs in a minute, held %d times", after, got, s.holds)
		}
	}
}

// TestOverloadedPool: an upstream that takes 40 requests a second in all of a pool of 100/s still
// slows the pool, however many tenants it has, with and without Retry-After. One that takes nothing
// for ten seconds has the pool held.
func TestOverloadedPool(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Second} {
		for _, parties := range []int{2, 7, 21, 501} {
			s := newRefusing(100, parties)
			u := &tokenBucket{burst: 5}
			start, taken, sent := shaper.Instant(1_000_000_000), 0, 0
			s.run(start, start.Add(time.Minute), func(_ int, stamp shaper.Instant) answered {
				a := answered{at: stamp.Add(20 * time.Millisecond)}
				if a.refused = !u.takes(stamp.Sub(start), 40); a.refused {
					a.pause = pause
				} else {
					taken++
				}
				sent++
				return a
			})
			t.Logf("Retry-After %v, %d tenants: %d taken of %d sent, held %d times", pause, parties, taken, sent, s.holds)
			if sent > 3500 || taken < 900 {
				t.Errorf("Retry-After %v, %d tenants: %d taken of %d sent in a minute", pause, parties, taken, sent)
			}
		}
	}
	s := newRefusing(100, 20)
	start, sent := shaper.Instant(1_000_000_000), 0
	s.run(start, start.Add(10*time.Second), func(_ int, stamp shaper.Instant) answered {
		sent++
		return answered{at: stamp.Add(20 * time.Millisecond), refused: true, pause: 2 * time.Second}
	})
	if t.Logf("closed: %d sent in 10 s, held %d times", sent, s.holds); sent > 50 || s.holds < 3 {
		t.Errorf("a closed upstream got %d requests in 10 s, held %d times", sent, s.holds)
	}
}
