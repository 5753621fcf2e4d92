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

// endOfHistory bounds how far random histories go: past it, the far end of the slowest flows leaves
// what doubles can hold.
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

// pollAt draws the instant of the next poll: ahead of E, on it, late within the slack, later, or
// after a long idle stretch. It is never before the one before.
func pollAt(t *rapid.T, b shaper.Bucket, now shaper.Instant) shaper.Instant {
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

// retuned draws paces to follow the given ones, all different: each kept or changed, the last
// dropped, one added; if moves, any may be dropped and those kept may change their places.
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
	added := paces().Draw(t, "added")
	if rapid.IntRange(0, 3).Draw(t, "add") == 0 && !slices.Contains(append(next, old...), added) {
		next = append(next, added)
	}
	if moves {
		next = rapid.Permutation(next).Draw(t, "order")
	}
	return next
}

// history lives a random life of a flow: busy and idle, looked at early and late, with costs,
// holds, resumes, retunes and jobs that were stamped but never departed.
func history(t *rapid.T, moves bool) []segment {
	segments := []segment{{paces: rapid.SliceOfNDistinct(paces(), 1, 3, rapid.ID[shaper.Pace]).Draw(t, "paces")}}
	b := shaper.NewBucket(segments[0].paces)
	now := start
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		s := &segments[len(segments)-1]
		switch rapid.SampledFrom([]string{"leave", "leave", "leave", "leave", "leave", "leave", "release",
			"hold", "ready", "retune"}).Draw(t, "step") {
		case "leave":
			next := pollAt(t, b, now)
			if next > endOfHistory {
				continue
			}
			now = next
			cost := costs(s.paces...).Draw(t, "cost")
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

// TestStampsConform: invariant 2. Within a segment the stamps of the jobs that departed conform to
// every pace in force. A pace that stays in force through a retune holds across it. A pace that is
// new gives no burst at the retune: with the last stamp before it, the stamps still conform to the
// greater of the bursts.
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
					t.Fatalf("τ* = %s µs of %v burst %d over segments %d to %d of %+v",
						m.tau().FloatString(3), p.Rate, p.Burst, from, i, segments)
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
					t.Fatalf("τ* = %s µs of %v burst %d after the retune to segment %d of %+v",
						m.tau().FloatString(3), p.Rate, p.Burst, i, segments)
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

// TestLongRun: n departures in one busy stretch take n·period/limit ± 1 µs, whatever the pattern of
// looks within the slack.
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
			poll := e
			if i > 0 { // the first starts the grid
				poll = e.Add(late())
			}
			stamp := b.Stamp(0, poll)
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

// TestWorkConserving: invariant 3. In a busy stretch a job of cost c is followed after exactly c·T,
// to the rounding.
func TestWorkConserving(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rates().Draw(t, "rate")
		p := shaper.Pace{Rate: r, Burst: 1}
		b := shaper.NewBucket([]shaper.Pace{p}).Depart(start, 1)
		for range rapid.IntRange(1, 50).Draw(t, "jobs") {
			e := b.Earliest()
			if e > endOfHistory {
				return
			}
			cost := costs(p).Draw(t, "cost")
			b = b.Depart(b.Stamp(0, e), cost)
			if b.Last != e {
				t.Fatalf("a poll at E = %d gives %d", e, b.Last)
			}
			gap := new(big.Rat).SetInt64(int64(b.Earliest() - b.Last))
			if want := interval(r, cost); !within(gap, want, 1) {
				t.Fatalf("%v: gap %s µs after cost %d, want %s", r, gap.FloatString(3), cost, want.FloatString(3))
			}
		}
	})
}

// TestDepartIsExact: TAT' = max(TAT, stamp) + cost·T as a fraction, and a refund of what was just
// charged restores max(TAT, stamp).
func TestDepartIsExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := paces().Draw(t, "pace")
		b := shaper.NewBucket([]shaper.Pace{p})
		now := start
		for range rapid.IntRange(1, 30).Draw(t, "jobs") {
			if now = pollAt(t, b, now); now > endOfHistory {
				return
			}
			cost := costs(p).Draw(t, "cost")
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

// TestRewindConforms: stamps given but not seen, taken back and given anew, conform to what came
// before and what follows.
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
			if now = pollAt(t, b, now); now > endOfHistory {
				return
			}
			stamps := grant(rapid.IntRange(1, 5).Draw(t, "jobs"))
			if rapid.Bool().Draw(t, "not seen") {
				late := micros(rapid.Int64Range(shaper.Slack.Microseconds()+1, 3600*1_000_000).Draw(t, "late"))
				now = max(now, stamps[0].Add(late))
				b = b.Rewind(stamps[0], int64(len(stamps)), int64(len(stamps)))
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

// TestNothingOverflows: every product and sum stays exact in the scripts' doubles, at the far ends
// of what is legal: the whole burst used at once and then a job of the greatest cost that is
// charged in full.
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
		cost := max(100, mostCharged(p)-1)
		want := new(big.Rat).Add(tatOf(b.Cells[0]), interval(p.Rate, cost))
		b = b.Depart(now, cost)
		if tatOf(b.Cells[0]).Cmp(want) != 0 {
			t.Fatalf("%+v: TAT = %s, want %s", p, tatOf(b.Cells[0]), want)
		}
		for name, v := range map[string]*big.Int{
			"TAT":                    big.NewInt(int64(b.Cells[0].TAT)),
			"rem + (burst−1)·period": new(big.Int).Add(full, big.NewInt(p.Rate.Limit-1)),
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
