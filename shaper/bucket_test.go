package shaper_test

import (
	"fmt"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// An action happens to a bucket at an instant; it tells the stamp it gave, 0 if none.
type action func(b shaper.Bucket, now shaper.Instant) (shaper.Bucket, shaper.Instant)

// leave is a poll that finds a job of the given cost.
func leave(cost int64) action {
	return func(b shaper.Bucket, now shaper.Instant) (shaper.Bucket, shaper.Instant) {
		stamp := b.Stamp(0, now)
		return b.Depart(stamp, cost), stamp
	}
}

// leaveSince is a poll that finds a job that became eligible at the given time of the story.
func leaveSince(eligible time.Duration) action {
	return func(b shaper.Bucket, now shaper.Instant) (shaper.Bucket, shaper.Instant) {
		stamp := b.Stamp(start.Add(eligible), now)
		return b.Depart(stamp, 1), stamp
	}
}

// ready is an admission into the empty queue, or a resume.
func ready(b shaper.Bucket, now shaper.Instant) (shaper.Bucket, shaper.Instant) {
	return b.MarkReady(now), 0
}

func hold(until time.Duration) action {
	return func(b shaper.Bucket, now shaper.Instant) (shaper.Bucket, shaper.Instant) {
		return b.Hold(start.Add(until), now), 0
	}
}

// release gives back the slot of a job stamped at the given time of the story.
func release(stamp time.Duration, cost int64) action {
	return func(b shaper.Bucket, _ shaper.Instant) (shaper.Bucket, shaper.Instant) {
		return b.Refund(start.Add(stamp), cost), 0
	}
}

// rewind takes back stamps of jobs of cost 1 that nobody has seen: the first of them, and their
// number.
func rewind(first time.Duration, jobs int64) action {
	return func(b shaper.Bucket, _ shaper.Instant) (shaper.Bucket, shaper.Instant) {
		return b.Rewind(start.Add(first), jobs, jobs), 0
	}
}

func retune(paces ...shaper.Pace) action {
	return func(b shaper.Bucket, now shaper.Instant) (shaper.Bucket, shaper.Instant) {
		b, _ = b.Retune(paces, now)
		return b, 0
	}
}

// none stands for no stamp in a story.
const none = time.Duration(-1)

type step struct {
	at   time.Duration // since the start of the story
	do   action
	want time.Duration // the stamp, since the start of the story
}

const (
	us  = time.Microsecond
	ms  = time.Millisecond
	sec = time.Second
)

// TestBucketStories tells what leaves when. In every story a poll is a row, whether or not
// something else happens with it.
func TestBucketStories(t *testing.T) {
	one, hour := leave(1), time.Hour
	for _, story := range []struct {
		name  string
		paces []shaper.Pace
		steps []step
	}{
		{"pure spacing, polls ahead of time", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {0, one, 100 * ms}, {80 * ms, one, 200 * ms}, {190 * ms, one, 300 * ms},
		}},
		{"a poll late by less than the slack keeps the grid", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {109 * ms, one, 100 * ms}, {207 * ms, one, 200 * ms}, {300 * ms, one, 300 * ms},
		}},
		{"late by exactly the slack keeps the grid", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {110 * ms, one, 100 * ms}, {200 * ms, one, 200 * ms},
		}},
		{"later by a microsecond restarts the grid at now", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {110*ms + time.Microsecond, one, 110*ms + time.Microsecond},
			{200 * ms, one, 210*ms + time.Microsecond},
		}},
		{"missed slots are gone, never bunched", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {950 * ms, one, 950 * ms}, {950 * ms, one, 1050 * ms}, {950 * ms, one, 1150 * ms},
		}},
		{"within the slack a fast flow catches up with its own grid, not beyond",
			[]shaper.Pace{pace("200/s", 1)}, []step{
				{0, one, 0}, {15 * ms, one, 5 * ms}, {15 * ms, one, 10 * ms}, {15 * ms, one, 15 * ms},
				{15 * ms, one, 20 * ms},
			}},
		{"an idle flow sends at once and starts its grid then", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * sec, ready, none}, {10*sec + 6*ms, one, 10*sec + 6*ms},
			{10*sec + 6*ms, one, 10*sec + 106*ms},
		}},
		{"a job leaves no earlier than it is eligible", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {480 * ms, leaveSince(500 * ms), 500 * ms}, {605 * ms, leaveSince(603 * ms), 605 * ms},
			{605 * ms, leaveSince(620 * ms), 705 * ms}, {820 * ms, leaveSince(809 * ms), 820 * ms},
		}},
		{"T that no microsecond divides keeps its remainder", []shaper.Pace{pace("7/3s", 1)}, []step{
			{0, one, 0}, {0, one, 428_571 * time.Microsecond}, {0, one, 857_142 * time.Microsecond},
			{0, one, 1_285_714 * time.Microsecond},
			{0, one, 1_714_285 * time.Microsecond}, {0, one, 2_142_857 * time.Microsecond},
			{0, one, 2_571_428 * time.Microsecond}, {0, one, 3 * sec},
		}},
		{"a burst, then spacing", []shaper.Pace{pace("10/s", 3)}, []step{
			{0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 100 * ms}, {0, one, 200 * ms},
		}},
		{"a burst comes back one by one", []shaper.Pace{pace("10/s", 3)}, []step{
			{0, one, 0}, {0, one, 0}, {0, one, 0}, {250 * ms, one, 250 * ms}, {250 * ms, one, 250 * ms},
			{250 * ms, one, 300 * ms},
		}},
		{"and to no more than it was", []shaper.Pace{pace("10/s", 3)}, []step{
			{0, one, 0}, {hour, one, hour}, {hour, one, hour}, {hour, one, hour}, {hour, one, hour + 100*ms},
		}},
		{"a job of cost 3 takes three intervals after it", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, leave(3), 0}, {0, one, 300 * ms}, {0, leave(3), 400 * ms}, {0, one, 700 * ms},
		}},
		{"cost draws on the burst", []shaper.Pace{pace("10/s", 3)}, []step{
			{0, leave(2), 0}, {0, leave(2), 0}, {0, one, 200 * ms}, {0, one, 300 * ms},
		}},
		{"the strictest of several paces wins", []shaper.Pace{pace("10/s", 1), pace("3/m", 3)}, []step{
			{0, one, 0}, {0, one, 100 * ms}, {0, one, 200 * ms}, {0, one, 20 * sec}, {0, one, 40 * sec},
			{hour, one, hour}, {hour, one, hour + 100*ms}, {hour, one, hour + 200*ms}, {hour, one, hour + 20*sec},
		}},
		{"a hold keeps everything back; after it half the rate is in force, and a twentieth more each second",
			[]shaper.Pace{pace("10/s", 1)}, []step{
				{0, one, 0}, {50 * ms, hold(sec), none}, {60 * ms, one, sec}, {60 * ms, one, 1200 * ms},
				{60 * ms, one, 1396_079 * us},
				{10900 * ms, one, 10900 * ms}, {10900 * ms, one, 11000_503 * us}, {10900 * ms, one, 11100_503 * us},
			}},
		{"an earlier end of a hold changes nothing", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {50 * ms, hold(sec), none}, {60 * ms, hold(500 * ms), none}, {60 * ms, one, sec},
		}},
		{"no burst leaves after a hold until the rate is back", []shaper.Pace{pace("10/s", 2)}, []step{
			{0, one, 0}, {0, hold(sec), none}, {985 * ms, one, sec}, {985 * ms, one, 1200 * ms},
			{20 * sec, one, 20 * sec}, {20 * sec, one, 20 * sec}, {20 * sec, one, 20*sec + 100*ms},
		}},
		{"of several holds at once the first alone slows down; each later one halves again, down to a " +
			"sixteenth", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {0, hold(sec), none}, {0, hold(sec), none}, {sec, one, sec}, {sec, hold(sec), none},
			{sec, one, 1200 * ms}, {sec, one, 1584_616 * us},
			{1600 * ms, hold(1600 * ms), none}, {1600 * ms, hold(1600 * ms), none},
			{1600 * ms, hold(1600 * ms), none}, {1600 * ms, hold(1600 * ms), none},
			{1600 * ms, one, 1942_744 * us}, {1600 * ms, one, 3198_442 * us},
		}},
		{"a retune ends the long gap of a slow share", []shaper.Pace{pace("5/24h", 1)}, []step{
			{0, hold(0), none}, {0, one, 0}, {0, retune(pace("10/s", 1)), none}, {0, one, 100 * ms},
		}},
		{"after a resume one leaves, not all that were missed", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * sec, ready, none}, {10 * sec, one, 10 * sec}, {10 * sec, one, 10*sec + 100*ms},
		}},
		{"a resume does not skip the wait that is left", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {40 * ms, ready, none}, {40 * ms, one, 100 * ms},
		}},
		{"the slot of a job that never departed is used again", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {85 * ms, one, 100 * ms}, {90 * ms, release(100*ms, 1), none},
			{90 * ms, one, 100 * ms}, {90 * ms, one, 200 * ms},
		}},
		{"but only of the last", []shaper.Pace{pace("100/s", 1)}, []step{
			{0, one, 0}, {0, one, 10 * ms}, {0, one, 20 * ms}, {5 * ms, release(10*ms, 1), none},
			{5 * ms, one, 30 * ms},
		}},
		{"all of a burst may be given back", []shaper.Pace{pace("10/s", 3)}, []step{
			{0, one, 0}, {0, leave(2), 0}, {0, release(0, 2), none}, {0, release(0, 1), none},
			{0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 100 * ms},
		}},
		{"stamps nobody saw move later, with all that follows", []shaper.Pace{pace("10/s", 1)}, []step{
			{80 * ms, one, 80 * ms}, {80 * ms, one, 180 * ms}, {250 * ms, rewind(80*ms, 2), none},
			{250 * ms, one, 250 * ms}, {250 * ms, one, 350 * ms}, {350 * ms, one, 450 * ms},
		}},

		// The stories of retuning.
		{"50 → 400 → 20/s", []shaper.Pace{pace("50/s", 1)}, []step{
			{0, one, 0}, {15 * ms, one, 20 * ms}, {25 * ms, retune(pace("400/s", 1)), none},
			{25 * ms, one, 25 * ms}, {25 * ms, one, 27500 * time.Microsecond},
			{28 * ms, retune(pace("20/s", 1)), none},
			{28 * ms, one, 77500 * time.Microsecond}, {28 * ms, one, 127500 * time.Microsecond},
		}},
		{"5/24h → 10/s: the backlog obeys at once", []shaper.Pace{pace("5/24h", 1)}, []step{
			{0, one, 0}, {hour, retune(pace("10/s", 1)), none}, {hour, one, hour}, {hour, one, hour + 100*ms},
			{hour, one, hour + 200*ms},
		}},
		{"5/24h → 10/s soon after a departure: no shorter gap than the new T",
			[]shaper.Pace{pace("5/24h", 1)}, []step{
				{0, one, 0}, {10 * ms, retune(pace("10/s", 1)), none}, {10 * ms, one, 100 * ms}, {10 * ms, one, 200 * ms},
			}},
		{"10/s → 5/24h", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("5/24h", 1)), none}, {10 * ms, one, 4*hour + 48*time.Minute},
			{10 * ms, one, 9*hour + 36*time.Minute},
		}},
		{"there and back again", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("5/24h", 1)), none}, {20 * ms, retune(pace("10/s", 1)), none},
			{20 * ms, one, 100 * ms}, {20 * ms, one, 200 * ms},
		}},
		{"burst 1 → 5 amid a backlog gives no burst", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 5)), none}, {10 * ms, one, 100 * ms},
			{10 * ms, one, 200 * ms}, {10 * ms, one, 300 * ms},
			{10 * sec, one, 10 * sec}, {10 * sec, one, 10 * sec}, {10 * sec, one, 10 * sec},
			{10 * sec, one, 10 * sec}, {10 * sec, one, 10 * sec},
			{10 * sec, one, 10*sec + 100*ms},
		}},
		{"burst 5 → 1 after the burst is used neither stalls nor bursts", []shaper.Pace{pace("10/s", 5)}, []step{
			{0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 0}, {10 * ms, retune(pace("10/s", 1)), none},
			{10 * ms, one, 100 * ms}, {10 * ms, one, 200 * ms}, {10 * ms, one, 300 * ms},
		}},
		{"burst 5 → 1 with burst unused lets at most one of it leave", []shaper.Pace{pace("10/s", 5)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 1)), none}, {10 * ms, one, 10 * ms},
			{10 * ms, one, 110 * ms}, {10 * ms, one, 210 * ms},
		}},
		{"the wait after a job of cost 3 is scaled whole", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, leave(3), 0}, {10 * ms, retune(pace("20/s", 1)), none}, {10 * ms, leave(3), 150 * ms},
			{160 * ms, retune(pace("5/s", 1)), none}, {160 * ms, one, 750 * ms}, {160 * ms, one, 950 * ms},
		}},
		{"7 per 3 s ↔ 10/s, rounded up", []shaper.Pace{pace("7/3s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 1)), none}, {10 * ms, one, 100 * ms},
			{110 * ms, retune(pace("7/3s", 1)), none}, {110 * ms, one, 528_572 * time.Microsecond},
			{110 * ms, one, 957_143 * time.Microsecond},
		}},
		{"1000/24h laid beside 10/s starts one interval after the last stamp", []shaper.Pace{pace("10/s", 1)},
			[]step{
				{0, one, 0}, {10 * ms, retune(pace("10/s", 1), pace("1000/24h", 1)), none},
				{10 * ms, one, 86400 * ms}, {10 * ms, one, 2 * 86400 * ms},
				{hour, retune(pace("10/s", 1)), none}, {hour, one, hour}, {hour, one, hour + 100*ms},
			}},
		{"1000/24h with a burst leaves 10/s alone until it is used", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 1), pace("1000/24h", 3)), none},
			{10 * ms, one, 100 * ms}, {10 * ms, one, 200 * ms}, {10 * ms, one, 86400 * ms},
		}},
		{"changing 10/s leaves the 1000/24h beside it as it was",
			[]shaper.Pace{pace("10/s", 1), pace("1000/24h", 2)}, []step{
				{0, one, 0}, {0, one, 100 * ms}, {110 * ms, retune(pace("20/s", 1), pace("1000/24h", 2)), none},
				{110 * ms, one, 86400 * ms},
			}},
		{"a retune of a flow that never sent", []shaper.Pace{pace("5/24h", 1)}, []step{
			{0, retune(pace("10/s", 2), pace("1/m", 3)), none}, {0, one, 0}, {0, one, 0}, {0, one, 100 * ms},
			{0, one, 60 * sec},
		}},
		{"a retune to the same is none: the poll may still be late", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {105 * ms, retune(pace("10/s", 1)), none}, {107 * ms, one, 100 * ms},
		}},
		{"a slot given back after a retune is one of the new rate", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {85 * ms, leave(2), 100 * ms}, {90 * ms, retune(pace("5/s", 1)), none},
			{95 * ms, release(100*ms, 2), none},
			{95 * ms, one, 100 * ms}, {95 * ms, one, 300 * ms},
		}},

		// A rate that stays in force must hold across the retune, wherever in the list it stands
		// then.
		{"removing an earlier rate does not fill up a later one",
			[]shaper.Pace{pace("10/s", 1), pace("600/m", 3), pace("1000/24h", 3)}, []step{
				{0, one, 0}, {0, one, 100 * ms}, {0, one, 200 * ms},
				{sec, retune(pace("10/s", 1), pace("1000/24h", 3)), none},
				{sec, one, 86400 * ms}, {sec, one, 2 * 86400 * ms},
			}},
		{"nor does putting rates in another order", []shaper.Pace{pace("10/s", 1), pace("600/m", 3),
			pace("1000/24h", 3)}, []step{
			{0, one, 0}, {0, one, 100 * ms}, {0, one, 200 * ms},
			{sec, retune(pace("10/s", 1), pace("1000/24h", 3), pace("600/m", 3)), none},
			{sec, one, 86400 * ms}, {sec, one, 2 * 86400 * ms},
		}},
	} {
		t.Run(story.name, func(t *testing.T) {
			b := shaper.NewBucket(story.paces)
			for i, s := range story.steps {
				before := slices.Clone(b.Cells)
				next, stamp := s.do(b, start.Add(s.at))
				if diff := cmp.Diff(before, b.Cells); diff != "" {
					t.Errorf("step %d changed the bucket it was given:\n%s", i, diff)
				}
				want := shaper.Instant(0)
				if s.want != none {
					want = start.Add(s.want)
				}
				if stamp != want {
					t.Fatalf("step %d at %v: stamp %v, want %v", i, s.at, stamp.Sub(start), s.want)
				}
				b = next
			}
		})
	}
}

func TestRetuneReportsChange(t *testing.T) {
	b := shaper.NewBucket([]shaper.Pace{pace("10/s", 1), pace("5/m", 5)}).Depart(start, 1)
	for _, tt := range []struct {
		name  string
		paces []shaper.Pace
		want  bool
	}{
		{"same", []shaper.Pace{pace("10/s", 1), pace("5/m", 5)}, false},
		{"rate", []shaper.Pace{pace("20/s", 1), pace("5/m", 5)}, true},
		{"burst", []shaper.Pace{pace("10/s", 1), pace("5/m", 4)}, true},
		{"fewer", []shaper.Pace{pace("10/s", 1)}, true},
		{"more", []shaper.Pace{pace("10/s", 1), pace("5/m", 5), pace("9/d", 1)}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			now := start.Add(sec)
			got, changed := b.Retune(tt.paces, now)
			if changed != tt.want || (got.Ready == now) != tt.want {
				t.Errorf("changed = %v, ready = %v", changed, got.Ready)
			}
			for i, c := range got.Cells {
				if c.Pace != tt.paces[i] {
					t.Errorf("cell %d has %v, want %v", i, c.Pace, tt.paces[i])
				}
			}
		})
	}
}

func TestInstant(t *testing.T) {
	at := time.Date(2026, time.March, 1, 12, 0, 0, 123_456_789, time.FixedZone("", 3600))
	i := shaper.InstantOf(at)
	if want := at.Truncate(time.Microsecond); !i.Time().Equal(want) || i.Time().Location() != time.UTC {
		t.Errorf("%v comes back as %v", at, i.Time())
	}
	if !shaper.Instant(0).Time().IsZero() {
		t.Error("0 is not the zero time")
	}
	if got := i.Add(1999 * time.Nanosecond).Sub(i); got != time.Microsecond {
		t.Errorf("Add(1999ns) adds %v", got)
	}
	if got := i.Add(-time.Second).Sub(i); got != -time.Second {
		t.Errorf("Add(-1s) adds %v", got)
	}
}

// TestChargeIsBounded: a job is charged for its cost times T exactly, but for at most 20 years, and
// with the burst for at most 200, as far as 100 intervals take less.
func TestChargeIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p, cost := paces().Draw(t, "pace"), rapid.OneOf(rapid.Int64Range(1, shaper.MaxCost),
			rapid.Just(int64(shaper.MaxCost))).Draw(t, "cost")
		c := shaper.NewBucket([]shaper.Pace{p}).Depart(start, cost).Cells[0]
		charged := tatOf(c)
		charged.Sub(charged, new(big.Rat).SetInt64(int64(start)))
		if most := mostCharged(p); cost <= most-1 && charged.Cmp(interval(p.Rate, cost)) != 0 {
			t.Fatalf("%+v cost %d: charged for %s µs", p, cost, charged.FloatString(6))
		} else if cost > most && !within(charged, interval(p.Rate, most), interval(p.Rate, 1).Num().Int64()) {
			t.Fatalf("%+v cost %d: charged for %s µs, at most %d intervals are", p, cost, charged.FloatString(6), most)
		}
	})
}

// TestRetuneArithmetic: e' = L + (e − L)·T'/T rounded up and TAT' = e' + (burst' − 1)·T', to two
// microseconds, for any two legal paces; and the new state stays where the scripts' doubles are
// exact. A TAT before the last stamp means the same as the last stamp, because every charge starts
// from the later of the two.
func TestRetuneArithmetic(t *testing.T) {
	check := func(t rapid.TB, from, to shaper.Pace, cost int64) {
		t.Helper()
		b := shaper.NewBucket([]shaper.Pace{from}).Depart(start, cost)
		last := new(big.Rat).SetInt64(int64(b.Last))
		wait := new(big.Rat).Sub(tatOf(b.Cells[0]), interval(from.Rate, from.Burst-1))
		wait.Sub(wait, last)
		wait.Mul(wait, interval(to.Rate, 1)).Quo(wait, interval(from.Rate, 1))
		if longest := interval(to.Rate, mostCharged(to)); wait.Cmp(longest) > 0 {
			wait = longest
		}
		want := new(big.Rat).Add(last, wait)
		want.Add(want, interval(to.Rate, to.Burst-1))
		if want.Cmp(last) < 0 {
			want = last
		}
		b, _ = b.Retune([]shaper.Pace{to}, start)
		c := b.Cells[0]
		got := tatOf(c)
		if got.Cmp(last) < 0 {
			got = last
		}
		if !within(got, want, 2) {
			t.Errorf("%v burst %d → %v burst %d after cost %d: TAT = %s, want %s, all µs",
				from.Rate, from.Burst, to.Rate, to.Burst, cost, got.FloatString(3), want.FloatString(3))
		}
		if max(int64(c.TAT), -int64(c.TAT)) >= doubles || c.TAT == -c.TAT || c.Rem < 0 || c.Rem >= to.Rate.Limit {
			t.Errorf("%v burst %d → %v burst %d after cost %d: TAT = %d + %d/%d passes 2⁵³",
				from.Rate, from.Burst, to.Rate, to.Burst, cost, c.TAT, c.Rem, to.Rate.Limit)
		}
	}
	for _, tt := range []struct {
		from, to shaper.Pace
		cost     int64
	}{
		{pace("50/s", 1), pace("400/s", 1), 1},
		{pace("5/24h", 1), pace("10/s", 1), 1},
		{pace("7/3s", 1), pace("31622400000000/366d", 1), 1},
		{pace("1000000/s", 1), pace("1/366d", 1), 100},
		{pace("1/366d", 1), pace("1/365d", 1), 100},
		{pace("7/3s", 5), pace("100/366d", 1), 3},
		{pace("1000/s", 1_000_000), pace("1/d", 1), 1},
		{pace("1/ms", maxBurst(rate("1/ms"))), pace("1/366d", 99), 1},
		{pace("1/366d", 99), pace("1/ms", 1), 1},
		{pace("1000000/s", 1), pace("1/366d", 1), 1_000_000},
		{pace("1/366d", 1), pace("1/365d", 1), 1_000_000},
	} {
		t.Run(fmt.Sprintf("%v burst %d to %v burst %d", tt.from.Rate, tt.from.Burst, tt.to.Rate, tt.to.Burst),
			func(t *testing.T) {
				check(t, tt.from, tt.to, tt.cost)
			})
	}
	t.Run("any two paces", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			check(t, paces().Draw(t, "from"), paces().Draw(t, "to"),
				rapid.OneOf(rapid.Int64Range(1, 100), rapid.Int64Range(1, shaper.MaxCost)).Draw(t, "cost"))
		})
	})
}

// TestStartPredictsTheStamp: with the same waiting before it and prompt looks, a job leaves when
// Start said.
func TestStartPredictsTheStamp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(paces(), 1, 3).Draw(t, "paces")
		b, now := shaper.NewBucket(list), start
		for range rapid.IntRange(0, 10).Draw(t, "departed") {
			now = pollAt(t, b, now)
			b = b.Depart(b.Stamp(0, now), rapid.Int64Range(1, 3).Draw(t, "cost"))
			if b.Last > endOfHistory {
				return
			}
		}
		if rapid.Bool().Draw(t, "held") {
			b = b.Hold(now.Add(micros(rapid.Int64Range(0, 3600*1_000_000).Draw(t, "hold"))), now)
			b.Share = 0 // estimates go by the whole rate
		}
		// The backlog comes into an empty queue at now.
		now = max(now, pollAt(t, b, now))
		b = b.MarkReady(now)
		waiting := b
		for ahead := range rapid.Int64Range(1, 40).Draw(t, "backlog") {
			stamp := b.Stamp(0, max(now, b.Earliest()))
			if stamp > endOfHistory {
				return
			}
			if got := waiting.Start(ahead, ahead, now); got != stamp {
				t.Fatalf("with %d ahead Start = %d, but it leaves at %d (%v)", ahead, got, stamp, stamp.Sub(got))
			}
			b = b.Depart(stamp, 1)
		}
	})
}

func TestStart(t *testing.T) {
	// With T = 1 ms, this many ahead bring the estimate to the last millisecond that a double can
	// count in µs.
	farthest := (doubles - 1 - int64(start)) / 1000
	busy := func(cost int64, paces ...shaper.Pace) shaper.Bucket {
		return shaper.NewBucket(paces).Depart(start, cost)
	}
	for _, tt := range []struct {
		name   string
		bucket shaper.Bucket
		ahead  int64
		at     time.Duration
		want   time.Duration // none: no estimate
	}{
		{"idle", shaper.NewBucket([]shaper.Pace{pace("10/s", 1)}), 0, 0, 0},
		{"idle with three ahead", shaper.NewBucket([]shaper.Pace{pace("10/s", 1)}), 3, 0, 300 * ms},
		{"burst covers those ahead", shaper.NewBucket([]shaper.Pace{pace("10/s", 5)}), 4, 0, 0},
		{"and not the next", shaper.NewBucket([]shaper.Pace{pace("10/s", 5)}), 5, 0, 100 * ms},
		{"busy", busy(1, pace("10/s", 1)), 0, 20 * ms, 100 * ms},
		{"busy with a cost of 7 ahead", busy(3, pace("10/s", 1)), 7, 20 * ms, sec},
		{"the strictest pace tells", busy(1, pace("10/s", 1), pace("1/m", 3)), 2, 0, time.Minute},
		{"held", busy(1, pace("10/s", 1)).Hold(start.Add(sec), start), 2, 0, 1200 * ms},
		{"a long queue at a whole rate", busy(1, pace("10/s", 1)), 999_999_999, 0, 100_000_000 * sec},
		{"to the end of the calendar", shaper.NewBucket([]shaper.Pace{pace("1/ms", 1)}), farthest, 0,
			time.Duration(farthest) * ms},
		{"and not beyond", shaper.NewBucket([]shaper.Pace{pace("1/ms", 1)}), farthest + 1, 0, none},
		{"beyond every calendar", busy(1, pace("1/366d", 1)), 1000, 0, none},
		{"far beyond", busy(1, pace("1/366d", 1)), shaper.MaxCapacity * shaper.MaxCost, 0, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := shaper.Instant(0)
			if tt.want != none {
				want = start.Add(tt.want)
			}
			if got := tt.bucket.Start(tt.ahead, tt.ahead, start.Add(tt.at)); got != want {
				t.Errorf("Start = %d (%v), want %d (%v)", got, got.Sub(start), want, tt.want)
			}
		})
	}
}
