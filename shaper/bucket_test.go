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

// leave is a look that finds a job of the given cost.
func leave(cost int64) action {
	return func(b shaper.Bucket, now shaper.Instant) (shaper.Bucket, shaper.Instant) {
		stamp := b.Stamp(0, now)
		return b.Depart(stamp, cost), stamp
	}
}

// leaveSince is a look that finds a job that became eligible at the given time of the story.
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

// rewind takes back stamps that nobody has seen: the first of them, and their cost.
func rewind(first time.Duration, cost int64) action {
	return func(b shaper.Bucket, _ shaper.Instant) (shaper.Bucket, shaper.Instant) {
		return b.Rewind(start.Add(first), cost), 0
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

// TestBucketStories tells what leaves when. In every story a look is a row, whether or not something else happens with it.
func TestBucketStories(t *testing.T) {
	one, hour := leave(1), time.Hour
	for _, story := range []struct {
		name  string
		paces []shaper.Pace
		steps []step
	}{
		{"pure spacing, looks ahead of time", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {0, one, 100 * ms}, {80 * ms, one, 200 * ms}, {190 * ms, one, 300 * ms},
		}},
		{"a look late by less than the slack keeps the grid", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {109 * ms, one, 100 * ms}, {207 * ms, one, 200 * ms}, {300 * ms, one, 300 * ms},
		}},
		{"late by exactly the slack keeps the grid", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {110 * ms, one, 100 * ms}, {200 * ms, one, 200 * ms},
		}},
		{"later by a microsecond restarts the grid at now", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {110*ms + time.Microsecond, one, 110*ms + time.Microsecond}, {200 * ms, one, 210*ms + time.Microsecond},
		}},
		{"missed slots are gone, never bunched", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {950 * ms, one, 950 * ms}, {950 * ms, one, 1050 * ms}, {950 * ms, one, 1150 * ms},
		}},
		{"within the slack a fast flow catches up with its own grid, not beyond", []shaper.Pace{pace("200/s", 1)}, []step{
			{0, one, 0}, {15 * ms, one, 5 * ms}, {15 * ms, one, 10 * ms}, {15 * ms, one, 15 * ms}, {15 * ms, one, 20 * ms},
		}},
		{"an idle flow sends at once and starts its grid then", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * sec, ready, none}, {10*sec + 6*ms, one, 10*sec + 6*ms}, {10*sec + 6*ms, one, 10*sec + 106*ms},
		}},
		{"a job leaves no earlier than it is eligible", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {480 * ms, leaveSince(500 * ms), 500 * ms}, {605 * ms, leaveSince(603 * ms), 605 * ms},
			{605 * ms, leaveSince(620 * ms), 705 * ms}, {820 * ms, leaveSince(809 * ms), 820 * ms},
		}},
		{"T that no microsecond divides keeps its remainder", []shaper.Pace{pace("7/3s", 1)}, []step{
			{0, one, 0}, {0, one, 428_571 * time.Microsecond}, {0, one, 857_142 * time.Microsecond}, {0, one, 1_285_714 * time.Microsecond},
			{0, one, 1_714_285 * time.Microsecond}, {0, one, 2_142_857 * time.Microsecond}, {0, one, 2_571_428 * time.Microsecond}, {0, one, 3 * sec},
		}},
		{"a burst, then spacing", []shaper.Pace{pace("10/s", 3)}, []step{
			{0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 100 * ms}, {0, one, 200 * ms},
		}},
		{"a burst comes back one by one", []shaper.Pace{pace("10/s", 3)}, []step{
			{0, one, 0}, {0, one, 0}, {0, one, 0}, {250 * ms, one, 250 * ms}, {250 * ms, one, 250 * ms}, {250 * ms, one, 300 * ms},
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
		{"a hold keeps everything back; after it half the rate is in force, and a twentieth more each second", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {50 * ms, hold(sec), none}, {60 * ms, one, sec}, {60 * ms, one, 1200 * ms}, {60 * ms, one, 1396_079 * us},
			{10900 * ms, one, 10900 * ms}, {10900 * ms, one, 11000_503 * us}, {10900 * ms, one, 11100_503 * us},
		}},
		{"an earlier end of a hold changes nothing", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {50 * ms, hold(sec), none}, {60 * ms, hold(500 * ms), none}, {60 * ms, one, sec},
		}},
		{"no burst leaves after a hold until the rate is back", []shaper.Pace{pace("10/s", 2)}, []step{
			{0, one, 0}, {0, hold(sec), none}, {985 * ms, one, sec}, {985 * ms, one, 1200 * ms},
			{20 * sec, one, 20 * sec}, {20 * sec, one, 20 * sec}, {20 * sec, one, 20*sec + 100*ms},
		}},
		{"of several holds at once the first alone slows down; each later one halves again, down to a sixteenth", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {0, hold(sec), none}, {0, hold(sec), none}, {sec, one, sec}, {sec, hold(sec), none}, {sec, one, 1200 * ms}, {sec, one, 1584_616 * us},
			{1600 * ms, hold(1600 * ms), none}, {1600 * ms, hold(1600 * ms), none}, {1600 * ms, hold(1600 * ms), none}, {1600 * ms, hold(1600 * ms), none},
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
			{0, one, 0}, {85 * ms, one, 100 * ms}, {90 * ms, release(100*ms, 1), none}, {90 * ms, one, 100 * ms}, {90 * ms, one, 200 * ms},
		}},
		{"but only of the last", []shaper.Pace{pace("100/s", 1)}, []step{
			{0, one, 0}, {0, one, 10 * ms}, {0, one, 20 * ms}, {5 * ms, release(10*ms, 1), none}, {5 * ms, one, 30 * ms},
		}},
		{"all of a burst may be given back", []shaper.Pace{pace("10/s", 3)}, []step{
			{0, one, 0}, {0, leave(2), 0}, {0, release(0, 2), none}, {0, release(0, 1), none},
			{0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 100 * ms},
		}},
		{"stamps nobody saw move later, with all that follows", []shaper.Pace{pace("10/s", 1)}, []step{
			{80 * ms, one, 80 * ms}, {80 * ms, one, 180 * ms}, {250 * ms, rewind(80*ms, 2), none}, {250 * ms, one, 250 * ms}, {250 * ms, one, 350 * ms}, {350 * ms, one, 450 * ms},
		}},

		// The stories of retuning.
		{"50 → 400 → 20/s", []shaper.Pace{pace("50/s", 1)}, []step{
			{0, one, 0}, {15 * ms, one, 20 * ms}, {25 * ms, retune(pace("400/s", 1)), none},
			{25 * ms, one, 25 * ms}, {25 * ms, one, 27500 * time.Microsecond}, {28 * ms, retune(pace("20/s", 1)), none},
			{28 * ms, one, 77500 * time.Microsecond}, {28 * ms, one, 127500 * time.Microsecond},
		}},
		{"5/24h → 10/s: the backlog obeys at once", []shaper.Pace{pace("5/24h", 1)}, []step{
			{0, one, 0}, {hour, retune(pace("10/s", 1)), none}, {hour, one, hour}, {hour, one, hour + 100*ms}, {hour, one, hour + 200*ms},
		}},
		{"5/24h → 10/s soon after a departure: no shorter gap than the new T", []shaper.Pace{pace("5/24h", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 1)), none}, {10 * ms, one, 100 * ms}, {10 * ms, one, 200 * ms},
		}},
		{"10/s → 5/24h", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("5/24h", 1)), none}, {10 * ms, one, 4*hour + 48*time.Minute}, {10 * ms, one, 9*hour + 36*time.Minute},
		}},
		{"there and back again", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("5/24h", 1)), none}, {20 * ms, retune(pace("10/s", 1)), none}, {20 * ms, one, 100 * ms}, {20 * ms, one, 200 * ms},
		}},
		{"burst 1 → 5 amid a backlog gives no burst", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 5)), none}, {10 * ms, one, 100 * ms}, {10 * ms, one, 200 * ms}, {10 * ms, one, 300 * ms},
			{10 * sec, one, 10 * sec}, {10 * sec, one, 10 * sec}, {10 * sec, one, 10 * sec}, {10 * sec, one, 10 * sec}, {10 * sec, one, 10 * sec},
			{10 * sec, one, 10*sec + 100*ms},
		}},
		{"burst 5 → 1 after the burst is used neither stalls nor bursts", []shaper.Pace{pace("10/s", 5)}, []step{
			{0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 0}, {0, one, 0}, {10 * ms, retune(pace("10/s", 1)), none},
			{10 * ms, one, 100 * ms}, {10 * ms, one, 200 * ms}, {10 * ms, one, 300 * ms},
		}},
		{"burst 5 → 1 with burst unused lets at most one of it leave", []shaper.Pace{pace("10/s", 5)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 1)), none}, {10 * ms, one, 10 * ms}, {10 * ms, one, 110 * ms}, {10 * ms, one, 210 * ms},
		}},
		{"the wait after a job of cost 3 is scaled whole", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, leave(3), 0}, {10 * ms, retune(pace("20/s", 1)), none}, {10 * ms, leave(3), 150 * ms},
			{160 * ms, retune(pace("5/s", 1)), none}, {160 * ms, one, 750 * ms}, {160 * ms, one, 950 * ms},
		}},
		{"7 per 3 s ↔ 10/s, rounded up", []shaper.Pace{pace("7/3s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 1)), none}, {10 * ms, one, 100 * ms},
			{110 * ms, retune(pace("7/3s", 1)), none}, {110 * ms, one, 528_572 * time.Microsecond}, {110 * ms, one, 957_143 * time.Microsecond},
		}},
		{"1000/24h laid beside 10/s starts one interval after the last stamp", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 1), pace("1000/24h", 1)), none}, {10 * ms, one, 86400 * ms}, {10 * ms, one, 2 * 86400 * ms},
			{hour, retune(pace("10/s", 1)), none}, {hour, one, hour}, {hour, one, hour + 100*ms},
		}},
		{"1000/24h with a burst leaves 10/s alone until it is used", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {10 * ms, retune(pace("10/s", 1), pace("1000/24h", 3)), none},
			{10 * ms, one, 100 * ms}, {10 * ms, one, 200 * ms}, {10 * ms, one, 86400 * ms},
		}},
		{"changing 10/s leaves the 1000/24h beside it as it was", []shaper.Pace{pace("10/s", 1), pace("1000/24h", 2)}, []step{
			{0, one, 0}, {0, one, 100 * ms}, {110 * ms, retune(pace("20/s", 1), pace("1000/24h", 2)), none}, {110 * ms, one, 86400 * ms},
		}},
		{"a retune of a flow that never sent", []shaper.Pace{pace("5/24h", 1)}, []step{
			{0, retune(pace("10/s", 2), pace("1/m", 3)), none}, {0, one, 0}, {0, one, 0}, {0, one, 100 * ms}, {0, one, 60 * sec},
		}},
		{"a retune to the same is none: the look may still be late", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {105 * ms, retune(pace("10/s", 1)), none}, {107 * ms, one, 100 * ms},
		}},
		{"a slot given back after a retune is one of the new rate", []shaper.Pace{pace("10/s", 1)}, []step{
			{0, one, 0}, {85 * ms, leave(2), 100 * ms}, {90 * ms, retune(pace("5/s", 1)), none}, {95 * ms, release(100*ms, 2), none},
			{95 * ms, one, 100 * ms}, {95 * ms, one, 300 * ms},
		}},

		// A rate that stays in force must hold across the retune, wherever in the list it stands then.
		{"removing an earlier rate does not fill up a later one", []shaper.Pace{pace("10/s", 1), pace("600/m", 3), pace("1000/24h", 3)}, []step{
			{0, one, 0}, {0, one, 100 * ms}, {0, one, 200 * ms}, {sec, retune(pace("10/s", 1), pace("1000/24h", 3)), none},
			{sec, one, 86400 * ms}, {sec, one, 2 * 86400 * ms},
		}},
		{"nor does putting rates in another order", []shaper.Pace{pace("10/s", 1), pace("600/m", 3), pace("1000/24h", 3)}, []step{
			{0, one, 0}, {0, one, 100 * ms}, {0, one, 200 * ms}, {sec, retune(pace("10/s", 1), pace("1000/24h", 3), pace("600/m", 3)), none},
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

// endOfHistory bounds how far random histories go: past it, the far end of the slowest flows leaves what doubles can hold.
var endOfHistory = start.Add(24 * 365 * 24 * time.Hour)

// departure is one stamp in a history.
type departure struct {
	stamp    shaper.Instant
	cost     int64
	refunded bool
}

// segment is the stretch of a history between two retunes.
type segment struct {
	paces      []shaper.Pace
	departures []departure
}

// look draws the instant of the next look: ahead of E, on it, late within the slack, later, or after a long idle stretch.
// It is never before the one before.
func look(t *rapid.T, b shaper.Bucket, now shaper.Instant) shaper.Instant {
	e := b.Earliest()
	if b.Last == 0 {
		e = now
	}
	late := rapid.OneOf(
		rapid.Just(time.Duration(0)),
		rapid.Just(shaper.Slack),
		rapid.Map(rapid.Int64Range(-horizon.Microseconds(), 0), micros),
		rapid.Map(rapid.Int64Range(0, shaper.Slack.Microseconds()), micros),
		rapid.Map(rapid.Int64Range(0, 40_000), micros),
		rapid.Map(rapid.Int64Range(0, 5*24*3600*1_000_000), micros),
	).Draw(t, "late")
	return max(now, e.Add(late))
}

func micros(us int64) time.Duration { return time.Duration(us) * time.Microsecond }

// retuned draws paces to follow the given ones, all different: each kept or changed, the last dropped, one added; if moves, any
// may be dropped and those kept may change their places.
func retuned(t *rapid.T, old []shaper.Pace, moves bool) []shaper.Pace {
	var next []shaper.Pace
	for i, p := range old {
		switch rapid.IntRange(0, 3).Draw(t, "change") {
		case 0:
			p = paces().Draw(t, "pace")
		case 1:
			p.Burst = min(maxBurst(p.Rate), rapid.Int64Range(1, 8).Draw(t, "burst"))
		case 2:
			if i > 0 && (moves || i == len(old)-1) {
				continue
			}
		}
		if p != old[i] && slices.Contains(old, p) {
			p = old[i]
		}
		if !slices.Contains(next, p) {
			next = append(next, p)
		}
	}
	if added := paces().Draw(t, "added"); rapid.IntRange(0, 3).Draw(t, "add") == 0 && !slices.Contains(append(next, old...), added) {
		next = append(next, added)
	}
	if moves {
		next = rapid.Permutation(next).Draw(t, "order")
	}
	return next
}

// history lives a random life of a flow: busy and idle, looked at early and late, with costs, holds, resumes, retunes and
// jobs that were stamped but never departed.
func history(t *rapid.T, moves bool) []segment {
	segments := []segment{{paces: rapid.SliceOfNDistinct(paces(), 1, 3, rapid.ID[shaper.Pace]).Draw(t, "paces")}}
	b := shaper.NewBucket(segments[0].paces)
	now := start
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		s := &segments[len(segments)-1]
		switch rapid.SampledFrom([]string{"leave", "leave", "leave", "leave", "leave", "leave", "release", "hold", "ready", "retune"}).Draw(t, "step") {
		case "leave":
			next := look(t, b, now)
			if next > endOfHistory {
				continue
			}
			now = next
			cost := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(1, 5), rapid.Int64Range(1, shaper.MaxCost)).Draw(t, "cost")
			eligible := max(0, now.Add(micros(rapid.Int64Range(-40_000, 20_000).Draw(t, "eligible"))))
			if rapid.Bool().Draw(t, "eligible long since") {
				eligible = 0
			}
			stamp := b.Stamp(eligible, now)
			if stamp < b.Last || stamp < eligible || stamp < b.HeldUntil || stamp < now.Add(-shaper.Slack) {
				t.Fatalf("stamp %d at %d: last %d, eligible %d, held until %d", stamp, now, b.Last, eligible, b.HeldUntil)
			}
			b = b.Depart(stamp, cost)
			s.departures = append(s.departures, departure{stamp: stamp, cost: cost})
		case "release":
			if n := len(s.departures); n > 0 {
				i := max(0, n-rapid.IntRange(1, 2).Draw(t, "back"))
				if d := &s.departures[i]; !d.refunded {
					b = b.Refund(d.stamp, d.cost)
					d.refunded = true
				}
			}
		case "hold":
			b = b.Hold(now.Add(micros(rapid.Int64Range(0, 3600*1_000_000).Draw(t, "hold"))), now)
		case "ready":
			b = b.MarkReady(now)
		case "retune":
			next := retuned(t, s.paces, moves)
			var changed bool
			if b, changed = b.Retune(next, now); changed {
				segments = append(segments, segment{paces: next})
			}
		}
	}
	return segments
}

// TestStampsConform: invariant 2. Within a segment the stamps of the jobs that departed conform to every pace in force. A pace
// that stays in force through a retune holds across it. A pace that is new gives no burst at the retune: with the last
// stamp before it, the stamps still conform to the greater of the bursts.
func TestStampsConform(t *testing.T) {
	conform := func(t *rapid.T, moves bool) {
		segments := history(t, moves)
		feed := func(m *meter, ds []departure) {
			for _, d := range ds {
				if !d.refunded {
					m.see(d.stamp, d.cost)
				}
			}
		}
		for i, s := range segments {
			for _, p := range s.paces {
				m, from := newMeter(p), i
				for from > 0 && slices.Contains(segments[from-1].paces, p) {
					from--
				}
				for _, kept := range segments[from : i+1] {
					feed(m, kept.departures)
				}
				if !m.conforms() {
					t.Fatalf("τ* = %s µs of %v burst %d over segments %d to %d of %+v", m.tau().FloatString(3), p.Rate, p.Burst, from, i, segments)
				}
				if from < i || i == 0 || len(segments[i-1].departures) == 0 {
					continue
				}
				last := segments[i-1].departures[len(segments[i-1].departures)-1]
				if last.refunded {
					continue
				}
				for _, old := range segments[i-1].paces {
					p.Burst = max(p.Burst, old.Burst)
				}
				m = newMeter(p)
				m.see(last.stamp, 1)
				feed(m, s.departures)
				if !m.conforms() {
					t.Fatalf("τ* = %s µs of %v burst %d after the retune to segment %d of %+v", m.tau().FloatString(3), p.Rate, p.Burst, i, segments)
				}
			}
		}
	}
	t.Run("rates keep their places", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { conform(t, false) })
	})
	t.Run("rates change their places", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { conform(t, true) })
	})
}

// TestMeterNotices: the judge itself is not blind.
func TestMeterNotices(t *testing.T) {
	for _, tt := range []struct {
		name   string
		pace   shaper.Pace
		stamps []time.Duration
		tau    string
	}{
		{"spaced", pace("10/s", 1), []time.Duration{0, 100 * ms, 200 * ms}, "0.000"},
		{"rounded down", pace("7/3s", 1), []time.Duration{0, 428_571 * time.Microsecond}, "0.429"},
		{"two microseconds early", pace("10/s", 1), []time.Duration{0, 100*ms - 2*time.Microsecond}, "2.000"},
		{"a burst in bounds", pace("10/s", 3), []time.Duration{0, 0, 0, 100 * ms}, "0.000"},
		{"a burst too many", pace("10/s", 2), []time.Duration{0, 0, 0, 100 * ms}, "100000.000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := newMeter(tt.pace)
			for _, s := range tt.stamps {
				m.see(start.Add(s), 1)
			}
			if got := m.tau().FloatString(3); got != tt.tau {
				t.Errorf("τ* = %s µs, want %s", got, tt.tau)
			}
		})
	}
}

// TestLongRun: n departures in one busy stretch take n·period/limit ± 1 µs, whatever the pattern of looks within the slack.
func TestLongRun(t *testing.T) {
	run := func(t rapid.TB, p shaper.Pace, n int64, late func() time.Duration) {
		t.Helper()
		b := shaper.NewBucket([]shaper.Pace{p}).MarkReady(start)
		for i := range p.Burst - 1 {
			if stamp := b.Stamp(0, start); stamp != start {
				t.Fatalf("burst job %d leaves at %v", i, stamp.Sub(start))
			}
			b = b.Depart(start, 1)
		}
		for i := range n {
			e := b.Earliest()
			want := interval(p.Rate, i)
			want.Add(want, new(big.Rat).SetInt64(int64(start)))
			if got := new(big.Rat).SetInt64(int64(e)); !within(got, want, 1) {
				t.Fatalf("%v: departure %d is at %s, want %s", p.Rate, i, got.FloatString(3), want.FloatString(3))
			}
			if e > endOfHistory {
				return
			}
			look := e
			if i > 0 { // the first starts the grid
				look = e.Add(late())
			}
			stamp := b.Stamp(0, look)
			if stamp != e {
				t.Fatalf("%v: departure %d is stamped %d, not E = %d", p.Rate, i, stamp, e)
			}
			b = b.Depart(stamp, 1)
		}
	}
	prompt := func() time.Duration { return 0 }
	for _, text := range extremes {
		t.Run(text, func(t *testing.T) { run(t, pace(text, 1), 20_000, prompt) })
	}
	t.Run("any rate", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			p := shaper.Pace{Rate: rates().Draw(t, "rate")}
			p.Burst = min(maxBurst(p.Rate), rapid.Int64Range(1, 5).Draw(t, "burst"))
			run(t, p, rapid.Int64Range(1, 300).Draw(t, "n"), func() time.Duration {
				return micros(rapid.Int64Range(-horizon.Microseconds(), shaper.Slack.Microseconds()).Draw(t, "late"))
			})
		})
	})
}

// TestWorkConserving: invariant 3. In a busy stretch a job of cost c is followed after exactly c·T, to the rounding.
func TestWorkConserving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rates().Draw(t, "rate")
		b := shaper.NewBucket([]shaper.Pace{{Rate: r, Burst: 1}}).Depart(start, 1)
		for range rapid.IntRange(1, 50).Draw(t, "jobs") {
			e := b.Earliest()
			if e > endOfHistory {
				return
			}
			cost := rapid.Int64Range(1, shaper.MaxCost).Draw(t, "cost")
			b = b.Depart(b.Stamp(0, e), cost)
			if b.Last != e {
				t.Fatalf("a look at E = %d gives %d", e, b.Last)
			}
			gap := new(big.Rat).SetInt64(int64(b.Earliest() - b.Last))
			if want := interval(r, cost); !within(gap, want, 1) {
				t.Fatalf("%v: gap %s µs after cost %d, want %s", r, gap.FloatString(3), cost, want.FloatString(3))
			}
		}
	})
}

// TestDepartIsExact: TAT' = max(TAT, stamp) + cost·T as a fraction, and a refund of what was just charged restores max(TAT, stamp).
func TestDepartIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paces().Draw(t, "pace")
		b := shaper.NewBucket([]shaper.Pace{p})
		now := start
		for range rapid.IntRange(1, 30).Draw(t, "jobs") {
			if now = look(t, b, now); now > endOfHistory {
				return
			}
			cost := rapid.Int64Range(1, shaper.MaxCost).Draw(t, "cost")
			stamp := b.Stamp(0, now)
			base := new(big.Rat).SetInt64(int64(stamp))
			if tat := tatOf(b.Cells[0]); tat.Cmp(base) > 0 {
				base = tat
			}
			b = b.Depart(stamp, cost)
			if want := new(big.Rat).Add(base, interval(p.Rate, cost)); tatOf(b.Cells[0]).Cmp(want) != 0 {
				t.Fatalf("TAT = %s, want %s", tatOf(b.Cells[0]), want)
			}
			if got := tatOf(b.Refund(stamp, cost).Cells[0]); got.Cmp(base) != 0 {
				t.Fatalf("TAT after the refund = %s, want %s", got, base)
			}
			if diff := cmp.Diff(b, b.Refund(stamp-1, cost)); diff != "" {
				t.Fatalf("a refund of another stamp changed the bucket:\n%s", diff)
			}
		}
	})
}

// TestRewindConforms: stamps given but not seen, taken back and given anew, conform to what came before and what follows.
func TestRewindConforms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paces().Draw(t, "pace")
		b, m, now := shaper.NewBucket([]shaper.Pace{p}), newMeter(p), start
		grant := func(n int) (stamps []shaper.Instant) {
			for range n {
				stamp := b.Stamp(0, now)
				if len(stamps) > 0 && stamp > now.Add(horizon) {
					break
				}
				b = b.Depart(stamp, 1)
				stamps = append(stamps, stamp)
			}
			return stamps
		}
		for range rapid.IntRange(1, 10).Draw(t, "grants") {
			if now = look(t, b, now); now > endOfHistory {
				return
			}
			stamps := grant(rapid.IntRange(1, 5).Draw(t, "jobs"))
			if rapid.Bool().Draw(t, "not seen") {
				late := micros(rapid.Int64Range(shaper.Slack.Microseconds()+1, 3600*1_000_000).Draw(t, "late"))
				now = max(now, stamps[0].Add(late))
				b = b.Rewind(stamps[0], int64(len(stamps)))
				if next := b.Stamp(0, now); next != now {
					t.Fatalf("taken back at %d, the next stamp is %d: the slot was lost", now, next)
				}
				stamps = grant(len(stamps))
			}
			for _, stamp := range stamps {
				m.see(stamp, 1)
			}
		}
		if !m.conforms() {
			t.Fatalf("τ* = %s µs", m.tau().FloatString(3))
		}
	})
}

// TestNothingOverflows: every product and sum stays exact in the scripts' doubles, at the far ends of what is legal: the whole
// burst used at once and then a job of the greatest cost.
func TestNothingOverflows(t *testing.T) {
	worst := func(t rapid.TB, p shaper.Pace, now shaper.Instant) {
		t.Helper()
		period, credit := p.Rate.Period.Microseconds(), p.Burst-1
		// The worst TAT at which a job may still leave now is now + (burst − 1)·T.
		full := new(big.Int).Mul(big.NewInt(credit), big.NewInt(period))
		var rem big.Int
		whole, _ := new(big.Int).QuoRem(full, big.NewInt(p.Rate.Limit), &rem)
		b := shaper.NewBucket([]shaper.Pace{p})
		b.Last = now
		b.Cells[0].TAT, b.Cells[0].Rem = now+shaper.Instant(whole.Int64()), rem.Int64()
		if e := b.Earliest(); e != now {
			t.Fatalf("%+v: E = %d, want %d", p, e, now)
		}
		want := new(big.Rat).Add(tatOf(b.Cells[0]), interval(p.Rate, shaper.MaxCost))
		b = b.Depart(now, shaper.MaxCost)
		if tatOf(b.Cells[0]).Cmp(want) != 0 {
			t.Fatalf("%+v: TAT = %s, want %s", p, tatOf(b.Cells[0]), want)
		}
		for name, v := range map[string]*big.Int{
			"TAT":                    big.NewInt(int64(b.Cells[0].TAT)),
			"rem + (burst−1)·period": new(big.Int).Add(full, big.NewInt(p.Rate.Limit-1)),
			"rem + cost·period":      big.NewInt(p.Rate.Limit - 1 + shaper.MaxCost*period),
		} {
			if v.CmpAbs(big.NewInt(doubles)) >= 0 {
				t.Errorf("%+v: %s = %s passes 2⁵³", p, name, v)
			}
		}
		if c := b.Cells[0]; c.Rem < 0 || c.Rem >= p.Rate.Limit {
			t.Errorf("%+v: remainder %d", p, c.Rem)
		}
	}
	for _, text := range extremes {
		for _, burst := range []int64{1, 2, maxBurst(rate(text))} {
			t.Run(fmt.Sprintf("%s burst %d", text, burst), func(t *testing.T) {
				worst(t, pace(text, burst), start)
				worst(t, pace(text, burst), endOfHistory)
			})
		}
	}
	t.Run("any pace", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { worst(t, paces().Draw(t, "pace"), start) })
	})
}

// TestRetuneArithmetic: e' = L + (e − L)·T'/T rounded up and TAT' = e' + (burst' − 1)·T', to two microseconds, for any two
// legal paces; and the new state stays where the scripts' doubles are exact. A TAT before the last
// stamp means the same as the last stamp, because every charge starts from the later of the two.
func TestRetuneArithmetic(t *testing.T) {
	check := func(t rapid.TB, from, to shaper.Pace, cost int64) {
		t.Helper()
		b := shaper.NewBucket([]shaper.Pace{from}).Depart(start, cost)
		last := new(big.Rat).SetInt64(int64(b.Last))
		wait := new(big.Rat).Sub(tatOf(b.Cells[0]), interval(from.Rate, from.Burst-1))
		wait.Sub(wait, last)
		wait.Mul(wait, interval(to.Rate, 1)).Quo(wait, interval(from.Rate, 1))
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
	} {
		t.Run(fmt.Sprintf("%v burst %d to %v burst %d", tt.from.Rate, tt.from.Burst, tt.to.Rate, tt.to.Burst), func(t *testing.T) {
			check(t, tt.from, tt.to, tt.cost)
		})
	}
	t.Run("any two paces", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			check(t, paces().Draw(t, "from"), paces().Draw(t, "to"), rapid.Int64Range(1, shaper.MaxCost).Draw(t, "cost"))
		})
	})
}

// TestStartTellsTheStamp: with the same waiting before it and prompt looks, a job leaves when Start said.
func TestStartTellsTheStamp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rapid.SliceOfN(paces(), 1, 3).Draw(t, "paces")
		b, now := shaper.NewBucket(list), start
		for range rapid.IntRange(0, 10).Draw(t, "departed") {
			now = look(t, b, now)
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
		now = max(now, look(t, b, now))
		b = b.MarkReady(now)
		waiting := b
		for ahead := range rapid.Int64Range(1, 40).Draw(t, "backlog") {
			stamp := b.Stamp(0, max(now, b.Earliest()))
			if stamp > endOfHistory {
				return
			}
			if got := waiting.Start(ahead, now); got != stamp {
				t.Fatalf("with %d ahead Start = %d, but it leaves at %d (%v)", ahead, got, stamp, stamp.Sub(got))
			}
			b = b.Depart(stamp, 1)
		}
	})
}

func TestStart(t *testing.T) {
	// With T = 1 ms, this many ahead bring the estimate to the last millisecond that a double can count in µs.
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
		{"to the end of the calendar", shaper.NewBucket([]shaper.Pace{pace("1/ms", 1)}), farthest, 0, time.Duration(farthest) * ms},
		{"and not beyond", shaper.NewBucket([]shaper.Pace{pace("1/ms", 1)}), farthest + 1, 0, none},
		{"beyond every calendar", busy(1, pace("1/366d", 1)), 1000, 0, none},
		{"far beyond", busy(1, pace("1/366d", 1)), shaper.MaxCapacity * shaper.MaxCost, 0, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := shaper.Instant(0)
			if tt.want != none {
				want = start.Add(tt.want)
			}
			if got := tt.bucket.Start(tt.ahead, start.Add(tt.at)); got != want {
				t.Errorf("Start = %d (%v), want %d (%v)", got, got.Sub(start), want, tt.want)
			}
		})
	}
}
