package shaper_test

import (
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// TestAnswers: what answers with Retry-After hold.
func TestAnswers(t *testing.T) {
	const now, minute = shaper.Instant(1_000_000_000), shaper.Instant(60_000_000)
	flows := shaper.Policy{MaxHold: time.Minute}
	pool := shaper.Policy{MaxHold: time.Minute, HoldPool: true}
	first := shaper.Pauses{Until: now + minute, Tenant: "a"}
	for name, tt := range map[string]struct {
		asked  shaper.Pauses
		policy shaper.Policy
		tenant string
		delay  time.Duration
		held   shaper.Instant
		next   shaper.Pauses
		flow   bool
		pool   shaper.Instant
	}{
		"the first":                           {shaper.Pauses{}, flows, "a", time.Hour, 0, first, true, 0},
		"a short one":                         {shaper.Pauses{}, flows, "a", time.Second, 0, shaper.Pauses{Until: now + minute/60, Tenant: "a"}, true, 0},
		"another of the same tenant":          {first, flows, "a", time.Hour, 0, first, true, 0},
		"of a second tenant":                  {first, flows, "b", time.Hour, 0, shaper.Pauses{}, true, now + minute},
		"of a second tenant, short":           {first, flows, "b", time.Second, 0, shaper.Pauses{}, true, now + minute/60},
		"of a second one, too late":           {shaper.Pauses{Until: now, Tenant: "a"}, flows, "b", time.Hour, 0, shaper.Pauses{Until: now + minute, Tenant: "b"}, true, 0},
		"while it is held":                    {shaper.Pauses{}, flows, "c", time.Hour, now + 1, shaper.Pauses{}, true, 0},
		"in the grace":                        {shaper.Pauses{Until: now + 1}, flows, "b", time.Hour, 0, shaper.Pauses{Until: now + 1}, true, 0},
		"every one, in the grace":             {shaper.Pauses{Until: now + 1}, pool, "b", time.Hour, 0, shaper.Pauses{Until: now + 1}, true, 0},
		"every one: the first":                {shaper.Pauses{}, pool, "a", time.Hour, 0, first, false, now + minute},
		"every one: not beyond a max":         {shaper.Pauses{Until: now + 9, Tenant: "a"}, pool, "b", time.Hour, now + 5, shaper.Pauses{Until: now + 9, Tenant: "a"}, false, now + 9},
		"every one: held by an older process": {shaper.Pauses{}, pool, "b", time.Hour, now + 5, shaper.Pauses{}, false, now + 5},
	} {
		next, flow, until := tt.asked.Answer(tt.policy, tt.tenant, tt.delay, tt.held, now)
		if next != tt.next || flow != tt.flow || until != tt.pool {
			t.Errorf("%s: %+v, %v, %v, want %+v, %v, %v", name, next, flow, until, tt.next, tt.flow, tt.pool)
		}
	}
}

// TestRefusalsOfTenants: those of one tenant alone do not slow a pool, those of several do, however
// uneven.
func TestRefusalsOfTenants(t *testing.T) {
	for name, tt := range map[string]struct {
		refused []string
		slows   bool
	}{
		"one tenant":                  {[]string{"a"}, false},
		"two tenants":                 {[]string{"a", "b"}, true},
		"mostly one, a fifth another": {[]string{"a", "a", "a", "b", "a"}, true},
		"ten tenants":                 {[]string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"}, true},
	} {
		b, trial := shaper.NewBucket([]shaper.Pace{{Rate: shaper.Rate{Limit: 100, Period: time.Second}, Burst: 1}}), shaper.Trial{}
		now := shaper.Instant(1_000_000_000)
		for i := range int64(200) {
			now = now.Add(10 * time.Millisecond)
			b, trial = b.RefuseOf(trial, tt.refused[int(i)%len(tt.refused)], i+1, now)
		}
		if slowed := b.Share != 0; slowed != tt.slows {
			t.Errorf("refusals of %s: slowed %v, share %d", name, slowed, b.Share)
		}
	}
}

// TestProbes: while several tenants' answers hold a pool, a job leaves at once and then every five
// seconds, until the hold ends.
func TestProbes(t *testing.T) {
	now := shaper.Instant(1_000_000_000)
	b := shaper.NewBucket([]shaper.Pace{{Rate: shaper.Rate{Limit: 100, Period: time.Second}, Burst: 1}})
	b = b.Hold(now.Add(12*time.Second), now)
	b.Probe = now
	for _, after := range []time.Duration{0, 5 * time.Second, 10 * time.Second, 12 * time.Second} {
		stamp := b.Stamp(0, now)
		if want := now.Add(after); stamp != want {
			t.Errorf("the next job leaves %v after the first, want %v", stamp.Sub(now), after)
		}
		b = b.Depart(stamp, 1)
	}
	if b = b.Hold(now.Add(time.Hour), now.Add(time.Minute)).Resume(now.Add(time.Minute)); b.Earliest() > now.Add(time.Minute) {
		t.Errorf("held after its end")
	}
}
