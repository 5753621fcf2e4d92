package shaper_test

import (
	"math"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// upstream takes some requests a second and refuses the others with 503, without a Retry-After.
type upstream interface {
	takes(at time.Duration, perSecond float64) bool
}

// tokenBucket is an upstream behind a limiter with a burst.
type tokenBucket struct {
	burst, tokens float64
	last          time.Duration
}

func (u *tokenBucket) takes(at time.Duration, perSecond float64) bool {
	u.tokens = min(u.burst, u.tokens+(at-u.last).Seconds()*perSecond)
	u.last = at
	if u.tokens < 1 {
		return false
	}
	u.tokens--
	return true
}

// window is an upstream that counts by fixed windows: it takes everything first, then nothing until
// the window ends.
type window struct {
	length time.Duration
	number time.Duration
	taken  float64
}

func (u *window) takes(at time.Duration, perSecond float64) bool {
	if n := at / u.length; n != u.number {
		u.number, u.taken = n, 0
	}
	if u.taken >= perSecond*u.length.Seconds() {
		return false
	}
	u.taken++
	return true
}

// TestRefusalsTeachTheRate simulates a flow of 100/s with a backlog before an upstream whose
// capacity steps from 100 to 40 to 80/s. At least 90 % of what the upstream takes arrives, and the
// part that it refuses falls well below what the configured rate would have refused. A breaker
// would open on none of these upstreams: none refuses everything for ten seconds.
func TestRefusalsTeachTheRate(t *testing.T) {
	const rate, answerAfter = 100.0, 50 * time.Millisecond
	phases := []struct {
		takes  float64
		length time.Duration
	}{{100, time.Minute}, {40, 2 * time.Minute}, {80, 2 * time.Minute}}
	for _, c := range []struct {
		name    string
		u       upstream
		refused float64 // of the departures in the second and third phases, at most
	}{
		{"a limiter with a small burst", &tokenBucket{burst: 5}, 0.15},
		{"a limiter with a large burst", &tokenBucket{burst: 40}, 0.15},
		{"windows of a second", &window{length: time.Second}, 0.15},
		{"windows of five seconds", &window{length: 5 * time.Second}, 0.35},
		{"windows of ten seconds", &window{length: 10 * time.Second}, 0.35},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := shaper.NewBucket([]shaper.Pace{{Rate: shaper.Rate{Limit: rate, Period: time.Second}, Burst: 1}})
			var trial shaper.Trial
			var departed int64
			var refusals []time.Duration // answers that are on their way, by when they arrive
			start := shaper.Instant(1_000_000_000)
			at, ends := time.Duration(0), time.Duration(0)
			longest, streak := time.Duration(0), time.Duration(-1) // without a success
			for i, phase := range phases {
				ends += phase.length
				taken, sent := 0, 0
				for at < ends {
					for len(refusals) > 0 && refusals[0] <= at {
						b, trial = b.Refuse(trial, departed, start.Add(refusals[0]))
						refusals = refusals[1:]
					}
					now := start.Add(at)
					stamp := b.Stamp(0, now)
					if stamp > now {
						at = stamp.Sub(start)
						continue
					}
					b = b.Depart(stamp, 1)
					departed++
					sent++
					switch {
					case c.u.takes(at, phase.takes):
						taken++
						streak = -1
					case streak < 0:
						streak = at
						fallthrough
					default:
						refusals = append(refusals, at+answerAfter)
						longest = max(longest, at-streak)
					}
				}
				goodput := float64(taken) / (math.Min(rate, phase.takes) * phase.length.Seconds())
				refused := 1 - float64(taken)/float64(sent)
				t.Logf("%.0f/s: %.1f %% of what the upstream takes, %.1f %% of the departures refused",
					phase.takes, 100*goodput, 100*refused)
				if goodput < 0.9 {
					t.Errorf("%.0f/s: only %.1f %% of what the upstream takes arrives", phase.takes, 100*goodput)
				}
				if i > 0 && refused > c.refused {
					t.Errorf("%.0f/s: %.1f %% of the departures are refused", phase.takes, 100*refused)
				}
			}
			if longest >= 10*time.Second {
				t.Errorf("nothing was taken for %v: a breaker would open", longest)
			}
		})
	}
}

// TestRefuse is the arithmetic of a trial, case by case.
func TestRefuse(t *testing.T) {
	at := func(d time.Duration) shaper.Instant { return shaper.Instant(1_000_000_000).Add(d) }
	fresh := shaper.NewBucket([]shaper.Pace{{Rate: shaper.Rate{Limit: 10, Period: time.Second}, Burst: 1}})
	for _, c := range []struct {
		name     string
		trial    shaper.Trial
		departed int64
		now      time.Duration
		held     time.Duration
		share    int64 // 0: all of the rate
		refused  int64 // of the trial afterwards
	}{
		{"the first refusal begins a trial", shaper.Trial{}, 100, 0, 0, 0, 0},
		{"within a second nothing is decided", shaper.Trial{Since: at(0), Departed: 100}, 200,
			999 * time.Millisecond, 0, 0, 1},
		{"nor after nine departures", shaper.Trial{Since: at(0), Departed: 100}, 109, time.Hour, 0, 0, 1},
		{"one of twenty is tolerated", shaper.Trial{Since: at(0), Departed: 100}, 120, time.Second, 0, 0, 0},
		{"two of twenty are not", shaper.Trial{Since: at(0), Departed: 100, Refused: 1}, 120, time.Second, 0,
			900_000, 0},
		{"the share falls by half at most", shaper.Trial{Since: at(0), Departed: 100, Refused: 29}, 120,
			time.Second, 0, 500_000, 0},
		{"a trial that is long over begins anew", shaper.Trial{Since: at(0), Departed: 100, Refused: 29}, 131,
			3001 * time.Millisecond, 0, 0, 0},
		{"counts that were set back begin anew", shaper.Trial{Since: at(0), Departed: 100, Refused: 29}, 99,
			time.Second, 0, 0, 0},
		{"a hold slows down by itself", shaper.Trial{Since: at(0), Departed: 100, Refused: 29}, 120,
			time.Second, time.Minute, 0, 0},
	} {
		b := fresh
		if c.held > 0 {
			b.HeldUntil = at(c.held)
		}
		got, trial := b.Refuse(c.trial, c.departed, at(c.now))
		if got.Share != c.share || trial.Refused != c.refused {
			t.Errorf("%s: the share is %d and the trial %+v", c.name, got.Share, trial)
		}
		if c.share > 0 && got.HeldUntil != at(c.now) {
			t.Errorf("%s: the share climbs from %v on, want now", c.name, got.HeldUntil)
		}
	}
}
