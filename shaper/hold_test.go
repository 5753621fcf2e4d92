package shaper_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/7509e464/sluice/shaper"
)

// aPool is a bucket of 100/s.
func aPool() shaper.Bucket {
	return shaper.NewBucket([]shaper.Pace{{Rate: shaper.Rate{Limit: 100, Period: time.Second}, Burst: 1}})
}

// TestAnswers: what answers with Retry-After hold.
func TestAnswers(t *testing.T) {
	const now, minute = shaper.Instant(1_000_000_000), shaper.Instant(60_000_000)
	flows := shaper.Policy{MaxHold: time.Minute}
	pool := shaper.Policy{MaxHold: time.Minute, HoldPool: true}
	of := func(until, since shaper.Instant, before int64, parties ...string) shaper.Pauses {
		return shaper.Pauses{Until: until, Party: parties[0], Since: since, Before: before, Parties: parties[1:]}
	}
	first, whole := of(now+minute, now, 0, "a", "a"), of(now+minute, 0, 0, "a")
	unresolved := of(0, now-9, 1_000_000, "", "a", "b")
	slower, held := aPool().Hold(now-1, now-2), aPool().Hold(now+5, now-2)
	for name, tt := range map[string]struct {
		before shaper.Pauses
		policy shaper.Policy
		party  string
		delay  time.Duration
		bucket shaper.Bucket
		next   shaper.Pauses
		flow   bool
		pool   shaper.Instant
	}{
		"the first":                   {shaper.Pauses{}, flows, "a", time.Hour, aPool(), first, true, 0},
		"a short one":                 {shaper.Pauses{}, flows, "a", time.Second, aPool(), of(now+minute/60, now, 0, "a", "a"), true, 0},
		"another of the same party":   {first, flows, "a", time.Hour, aPool(), first, true, 0},
		"of a second party":           {first, flows, "b", time.Hour, aPool(), of(0, now, 1_000_000, "", "a", "b"), true, now + minute},
		"of a second one, short":      {first, flows, "b", time.Second, aPool(), of(0, now, 1_000_000, "", "a", "b"), true, now + minute/60},
		"of a second one, too late":   {of(now, now-9, 0, "a", "a"), flows, "b", time.Hour, aPool(), of(now+minute, now, 0, "b", "b"), true, 0},
		"while it is held":            {unresolved, flows, "c", time.Hour, held, of(0, now-9, 1_000_000, "", "a", "b", "c"), true, 0},
		"the first after a hold":      {unresolved, flows, "b", time.Hour, slower, of(now+minute, now-9, 1_000_000, "b", "a", "b"), true, 0},
		"the first after a recovery":  {unresolved, flows, "b", time.Hour, aPool(), of(now+minute, now, 0, "b", "b"), true, 0},
		"the second after a hold":     {of(now+1, now-9, 1_000_000, "b", "a", "b"), flows, "a", time.Second, slower, unresolved, true, now + minute/60},
		"in the grace":                {of(now+1, 0, 0, ""), flows, "b", time.Hour, aPool(), of(now+1, now, 0, "", "b"), true, 0},
		"another one in the grace":    {of(now+1, now-1, 0, "", "b"), flows, "a", time.Hour, aPool(), of(now+1, now-1, 0, "", "b", "a"), true, 0},
		"every one, in the grace":     {of(now+1, 0, 0, ""), pool, "b", time.Hour, aPool(), of(now+1, 0, 0, ""), true, 0},
		"every one: the first":        {shaper.Pauses{}, pool, "a", time.Hour, aPool(), whole, false, now + minute},
		"every one: not beyond a max": {of(now+9, 0, 0, "a"), pool, "b", time.Hour, held, of(now+9, 0, 0, "a"), false, now + 9},
		"every one: held by others":   {shaper.Pauses{}, pool, "b", time.Hour, held, shaper.Pauses{}, false, now + 5},
	} {
		next, flow, until := tt.before.Answer(tt.policy, tt.party, tt.delay, tt.bucket, now)
		if diff := cmp.Diff(tt.next, next, cmpopts.EquateEmpty()); diff != "" || flow != tt.flow || until != tt.pool {
			t.Errorf("%s: %v, %v, want %v, %v\n%s", name, flow, until, tt.flow, tt.pool, diff)
		}
	}
}

// TestContradictions: what a success says of earlier answers with Retry-After.
func TestContradictions(t *testing.T) {
	const now, minute = shaper.Instant(1_000_000_000), shaper.Instant(60_000_000)
	flows := shaper.Policy{MaxHold: time.Minute}
	held := aPool().Hold(now+minute, now-100)
	held.Probe = now + 5
	over := aPool().Hold(now-50, now-100)
	evidence := shaper.Pauses{Until: now + minute, Party: "a", Since: now - 100, Parties: []string{"a"}}
	hold := shaper.Pauses{Since: now - 100, Before: 1_000_000, Parties: []string{"a", "b"}}
	many := hold
	many.Parties = strings.Split("abcdefghi", "")
	grace := shaper.Pauses{Until: now + minute}
	watched := shaper.Pauses{Until: now + 7, Since: now - 100, Parties: []string{"a"}}
	for name, tt := range map[string]struct {
		before shaper.Pauses
		bucket shaper.Bucket
		party  string
		stamp  shaper.Instant
		next   shaper.Pauses
		held   bool
		share  float64 // at the end
	}{
		"of another party, before a hold":      {evidence, aPool(), "c", now - 100, shaper.Pauses{}, false, 1},
		"of another one that had left before":  {evidence, aPool(), "c", now - 101, evidence, false, 1},
		"of the same party":                    {evidence, aPool(), "a", now - 10, evidence, false, 1},
		"of another party, in the hold":        {hold, held, "c", now - 10, grace, false, 1},
		"of a refused party, in the hold":      {hold, held, "a", now - 10, hold, false, 0.5},
		"of a third party, in that of many":    {many, held, "z", now - 10, many, false, 0.5},
		"of one that left after the hold":      {hold, over, "c", now - 10, grace, false, 0.5},
		"of one that left in the hold":         {hold, over, "c", now - 60, grace, false, 1},
		"of a refused party, after the hold":   {hold, over, "a", now - 10, hold, false, 0.5},
		"of a refused party, after a recovery": {hold, aPool(), "a", now - 10, shaper.Pauses{}, false, 1},
		"of another party, in the grace":       {watched, aPool(), "c", now - 10, grace, false, 1},
		"of a refused party, in the grace":     {watched, aPool(), "a", now - 10, watched, false, 1},
		"where nothing was refused":            {grace, aPool(), "a", now - 10, grace, false, 1},
	} {
		next, b := tt.before.Succeed(flows, tt.party, tt.stamp, tt.bucket, now)
		if diff := cmp.Diff(tt.next, next, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if is := b.HeldUntil > now; is != tt.held || math.Abs(b.Pace(now)-tt.share) > 1e-5 {
			t.Errorf("%s: held %v with %v of the rate, want %v with %v", name, is, b.Pace(now), tt.held, tt.share)
		}
	}
}

// TestRefusalsOfParties: refusals slow a pool as far as the party that is refused least is refused.
func TestRefusalsOfParties(t *testing.T) {
	many := func(n int) (list []string) {
		for i := range n {
			list = append(list, fmt.Sprint("t", i))
		}
		return list
	}
	for name, tt := range map[string]struct {
		parties []string         // each in turn
		refused func(i int) bool // the i-th job
		slows   bool
	}{
		"one tenant alone":                 {many(1), func(int) bool { return true }, false},
		"all of two tenants":               {many(2), func(int) bool { return true }, true},
		"half of the jobs of five":         {many(5), func(i int) bool { return i*7%10 < 5 }, true},
		"a fifth of those of three":        {many(3), func(i int) bool { return i%5 == 0 }, true},
		"half of those of 1000":            {many(1000), func(i int) bool { return i%2 == 0 }, true},
		"all of those of 1000":             {many(1000), func(int) bool { return true }, true},
		"two of five tenants":              {many(5), func(i int) bool { return i%5 < 2 }, false},
		"four of five tenants":             {many(5), func(i int) bool { return i%5 < 4 }, false},
		"eight of nine tenants":            {many(9), func(i int) bool { return i%9 < 8 }, false},
		"two of five, and a few of all":    {many(5), func(i int) bool { return i%5 < 2 || i%64 == 0 }, false},
		"two of 40 tenants, one mostly":    {many(40), func(i int) bool { return i%40 == 0 || i%40 == 1 && i%3 == 0 }, false},
		"a tenth of the jobs of a hundred": {many(100), func(i int) bool { return i%10 == i/100%10 }, true},
	} {
		b, r, now := aPool(), shaper.Refusals{}, shaper.Instant(1_000_000_000)
		slowed := false
		for i := range 1000 {
			now = now.Add(10 * time.Millisecond)
			if party := tt.parties[i%len(tt.parties)]; tt.refused(i) {
				b, r = r.Refuse(b, party, now, int64(i+1), now)
			} else {
				r = r.Succeed(party, now, int64(i+1), now)
			}
			slowed = slowed || b.Share != 0
		}
		if slowed != tt.slows {
			t.Errorf("%s: slowed %v, %+v", name, slowed, r)
		}
	}
}

// TestProbes: while several tenants' answers hold a pool, a job leaves at once and then every five
// seconds, until the hold ends.
func TestProbes(t *testing.T) {
	now := shaper.Instant(1_000_000_000)
	b := aPool().Hold(now.Add(12*time.Second), now)
	b.Probe = now
	for ahead, after := range []time.Duration{0, 5 * time.Second, 10 * time.Second, 12 * time.Second} {
		n := int64(ahead)
		if wait := b.Start(n, n, now).Sub(now); wait < after || wait > after+time.Duration(n)*10*time.Millisecond {
			t.Errorf("behind %d jobs the estimate is %v, want %v and what their pace takes", n, wait, after)
		}
	}
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

// TestSuspendKeepsTheShare: a hold that says nothing of the rate leaves the share as it is, however
// often it comes again; one that a hold has reduced goes on to grow when the flow goes on.
func TestSuspendKeepsTheShare(t *testing.T) {
	now := start
	b := shaper.NewBucket([]shaper.Pace{pace("10/s", 1)})
	for range 5 {
		b = b.Suspend(now.Add(time.Second), now)
		now = now.Add(time.Second)
	}
	if got := b.Pace(now); got != 1 {
		t.Errorf("after five waits for a token the flow has %g of its rate, want all of it", got)
	}
	b = b.Hold(now.Add(time.Second), now)
	now = now.Add(3 * time.Second)
	reduced := b.Pace(now)
	b = b.Suspend(now.Add(time.Minute), now)
	if got := b.Pace(now.Add(time.Minute)); got != reduced || got >= 1 {
		t.Errorf("a flow with %g of its rate has %g of it after a wait for a token", reduced, got)
	}
	if early, want := b.Earliest(), now.Add(time.Minute); early != want {
		t.Errorf("the next job may leave %v after the end of the wait", early.Sub(want))
	}
}
