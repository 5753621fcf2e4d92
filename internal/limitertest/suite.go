// Package limitertest is the conformance suite of limiter.Store: one named test per promise of a
// store. It runs on every store; a new promise is added here first.
//
// A store owns its clock, so time is real here. The tests either use policies that restore nothing
// while they run, or repeat a call until it succeeds. The microseconds of decisions are tested with
// the pure functions and with the scripts.
package limitertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Run runs the suite. fresh makes a store for each test, which must end with that test.
func Run(t *testing.T, fresh func(t *testing.T) limiter.Store) {
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, a := range limiter.Algorithms() {
				if ofBlocks[name] && a != limiter.SlidingLog {
					continue // which has no block
				}
				t.Run(string(a), func(t *testing.T) {
					tests[name](&suite{T: t, ctx: t.Context(), store: fresh(t), algorithm: a})
				})
			}
		})
	}
}

var tests = map[string]func(*suite){
	"the limit passes, then nothing":               theLimit,
	"a cost of 0 takes nothing":                    questions,
	"more than the limit never passes":             neverFits,
	"keys and rules have separate counts":          apart,
	"any text may be a key":                        anyText,
	"a changed policy starts with a fresh state":   changed,
	"it passes after retry-after":                  again,
	"a cleared key is fresh":                       cleared,
	"a thousand callers get the limit":             thousand,
	"no window exceeds the policy":                 windows,
	"a block is listed, and cleared":               blocked,
	"a list of blocked keys is bounded and sorted": blockedList,
	"an illegal policy is an error":                illegal,
}

// ofBlocks are the tests that need a policy with a block.
var ofBlocks = map[string]bool{
	"a block is listed, and cleared": true, "a list of blocked keys is bounded and sorted": true,
}

// suite is one test with its own store.
type suite struct {
	*testing.T
	ctx       context.Context
	store     limiter.Store
	algorithm limiter.Algorithm
}

// slow is a policy that restores nothing during a test, and whose window does not end.
func (s *suite) slow(limit int64) limiter.Rule {
	return s.rule(limit, shaper.MaxPeriod)
}

func (s *suite) rule(limit int64, period time.Duration) limiter.Rule {
	s.Helper()
	r := limiter.Rule{
		Name:   "test",
		Policy: limiter.Policy{Algorithm: s.algorithm, Rate: shaper.Rate{Limit: limit, Period: period}},
	}
	if err := r.Policy.Validate(); err != nil {
		s.Fatal(err)
	}
	return r
}

// blocking is a rule with a block of an hour.
func (s *suite) blocking(limit int64) limiter.Rule {
	r := s.rule(limit, time.Hour)
	r.Policy.Block = time.Hour
	return r
}

func (s *suite) take(r limiter.Rule, key string, cost int64) limiter.Decision {
	s.Helper()
	d, err := s.store.Take(s.ctx, r, key, cost)
	if err != nil {
		s.Fatalf("Take: %v", err)
	}
	return d
}

func theLimit(s *suite) {
	r := s.slow(5)
	for i := range int64(5) {
		if d := s.take(r, "k", 1); !d.Allowed || d.Limit != 5 || d.Remaining != 4-i || d.RetryAfter != 0 ||
			d.Reset <= 0 {
			s.Errorf("request %d: %+v", i, d)
		}
	}
	for range 3 {
		if d := s.take(r, "k", 1); d.Allowed || d.Remaining != 0 || d.RetryAfter <= 0 ||
			d.RetryAfter > 2*shaper.MaxPeriod {
			s.Errorf("after the limit: %+v", d)
		}
	}
}

func questions(s *suite) {
	r := s.slow(3)
	if d := s.take(r, "k", 0); d != (limiter.Decision{Allowed: true, Limit: 3, Remaining: 3}) {
		s.Errorf("of a key never used: %+v", d)
	}
	s.take(r, "k", 2)
	if d := s.take(r, "k", -7); !d.Allowed || d.Remaining != 1 {
		s.Errorf("of a key in use: %+v", d)
	}
}

func neverFits(s *suite) {
	r := s.slow(3)
	for range 2 {
		if d := s.take(r, "k", 4); d.Allowed || d.RetryAfter != 0 || d.Remaining != 3 {
			s.Errorf("%+v", d)
		}
	}
}

func apart(s *suite) {
	r := s.slow(1)
	other := r
	other.Name = "another"
	for _, at := range []struct {
		rule limiter.Rule
		key  string
	}{{r, "a"}, {r, "b"}, {other, "a"}, {other, "b"}, {other, "testa"}} {
		if d := s.take(at.rule, at.key, 1); !d.Allowed {
			s.Errorf("%s of %s: %+v", at.key, at.rule.Name, d)
		}
	}
}

func anyText(s *suite) {
	r := s.slow(1)
	for _, key := range []string{
		"", " ", "a", "a ", "{x}", "{y}", "a:b", "\x00", "\x00\x00", "\xff", "é", strings.Repeat("x", 10_000),
		"sluice:{0}:limit:x",
	} {
		if d := s.take(r, key, 1); !d.Allowed {
			s.Errorf("%.20q: %+v", key, d)
		}
		if d := s.take(r, key, 1); d.Allowed {
			s.Errorf("%.20q once more: %+v", key, d)
		}
	}
}

func changed(s *suite) {
	s.take(s.slow(2), "k", 2)
	if d := s.take(s.slow(3), "k", 1); !d.Allowed || d.Remaining != 2 {
		s.Errorf("%+v", d)
	}
}

func again(s *suite) {
	r := s.rule(2, 100*time.Millisecond)
	s.take(r, "k", 2)
	var refused limiter.Decision
	var before time.Time
	for { // a window may just have ended
		before = time.Now()
		if refused = s.take(r, "k", 2); !refused.Allowed {
			break
		}
	}
	if refused.RetryAfter <= 0 || refused.RetryAfter > 200*time.Millisecond {
		s.Errorf("%+v", refused)
	}
	for !s.take(r, "k", 2).Allowed {
	}
	// The refusal was decided before its answer arrived, so at least this time has passed on the
	// store's clock.
	if passed := time.Since(before); passed < refused.RetryAfter-time.Millisecond {
		s.Errorf("it passed after %v, retry-after was %v", passed, refused.RetryAfter)
	}
}

func cleared(s *suite) {
	r := s.slow(2)
	clear := func(want bool) {
		s.Helper()
		if known, err := s.store.Clear(s.ctx, r, "k"); err != nil || known != want {
			s.Errorf("Clear: %v, %v", known, err)
		}
	}
	clear(false)
	s.take(r, "k", 2)
	s.take(r, "other", 2)
	clear(true)
	if d := s.take(r, "k", 2); !d.Allowed {
		s.Errorf("after Clear: %+v", d)
	}
	if d := s.take(r, "other", 1); d.Allowed {
		s.Errorf("of another key: %+v", d)
	}
}

// Callers in the concurrent tests.
const goroutines, callers = 64, 1000

func thousand(s *suite) {
	const limit = 90
	r := s.slow(limit)
	var allowed atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := g; i < callers; i += goroutines {
				d, err := s.store.Take(s.ctx, r, "k", 1)
				if err != nil {
					s.Errorf("Take: %v", err)
				}
				if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	// The buckets regain a token after at least four days.
	if allowed.Load() != limit {
		s.Errorf("%d of %d callers passed, the limit is %d", allowed.Load(), callers, limit)
	}
}

// Most is the greatest cost that a limiter allows within any window of one period.
func Most(p limiter.Policy) int64 {
	switch p.Algorithm {
	case limiter.FixedWindow:
		return 2 * p.Rate.Limit
	case limiter.SlidingCounter:
		return 2*p.Rate.Limit - 1
	case limiter.SlidingLog:
		return p.Rate.Limit
	default:
		return p.Limit() + p.Rate.Limit
	}
}

// windows sends requests for several windows. Requests that were sent and answered within one
// period were decided in it, so their number must not exceed the policy.
func windows(s *suite) {
	r := s.rule(20, 100*time.Millisecond)
	type passed struct{ asked, answered time.Duration }
	var mu sync.Mutex
	var all []passed
	var sent atomic.Int64
	began := time.Now()
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for sent.Add(1) <= callers || time.Since(began) < 5*r.Policy.Rate.Period {
				p := passed{asked: time.Since(began)}
				d, err := s.store.Take(s.ctx, r, "k", 1)
				if err != nil {
					s.Errorf("Take: %v", err)
					return
				}
				if p.answered = time.Since(began); d.Allowed {
					mu.Lock()
					all = append(all, p)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if int64(len(all)) < 2*r.Policy.Rate.Limit {
		s.Errorf("only %d passed", len(all))
	}
	for _, first := range all {
		n := int64(0)
		for _, p := range all {
			// Instants are cut to µs, and clocks are slewed.
			if p.asked >= first.asked && p.answered < first.asked+r.Policy.Rate.Period-time.Millisecond {
				n++
			}
		}
		if n > Most(r.Policy) {
			s.Fatalf("%d passed within one period, of at most %d", n, Most(r.Policy))
		}
	}
}

func (s *suite) blocks(r limiter.Rule, most int) []limiter.Blocked {
	s.Helper()
	list, err := s.store.Blocked(s.ctx, r, most)
	if err != nil {
		s.Fatalf("Blocked: %v", err)
	}
	return list
}

func blocked(s *suite) {
	r := s.blocking(2)
	s.take(r, "k", 2)
	if list := s.blocks(r, 10); len(list) != 0 {
		s.Errorf("before an overflow: %v", list)
	}
	if d := s.take(r, "k", 3); d.RetryAfter != 0 || len(s.blocks(r, 10)) != 0 {
		s.Errorf("a cost above the limit blocks: %+v", d)
	}
	first := s.take(r, "k", 1)
	if second := s.take(r, "k", 1); first.Allowed || second.Allowed || second.RetryAfter > first.RetryAfter {
		s.Errorf("a request extends the block: %+v, then %+v", first, second)
	}
	if d := s.take(r, "k", 0); d.Allowed || d.Remaining != 0 {
		s.Errorf("a cost of 0 while blocked: %+v", d)
	}
	list := s.blocks(r, 10)
	if len(list) != 1 || list[0].Key != "k" || list[0].Left <= 0 || list[0].Left > time.Hour {
		s.Errorf("blocked: %v", list)
	}
	other := r
	other.Name = "another"
	if list := s.blocks(other, 10); len(list) != 0 {
		s.Errorf("of another rule: %v", list)
	}
	if known, err := s.store.Clear(s.ctx, r, "k"); err != nil || !known {
		s.Errorf("Clear: %v, %v", known, err)
	}
	if list := s.blocks(r, 10); len(list) != 0 {
		s.Errorf("after Clear: %v", list)
	}
	if d := s.take(r, "k", 2); !d.Allowed {
		s.Errorf("after Clear: %+v", d)
	}
}

func blockedList(s *suite) {
	r := s.blocking(1)
	for i := range 20 {
		s.take(r, fmt.Sprint("k", i), 1)
		s.take(r, fmt.Sprint("k", i), 1)
	}
	if n := len(s.blocks(r, 0)); n != 0 {
		s.Errorf("%d of a limit of 0", n)
	}
	list := s.blocks(r, 12)
	if len(list) != 12 ||
		!slices.IsSortedFunc(list, func(a, b limiter.Blocked) int { return int(a.Left - b.Left) }) {
		s.Errorf("12 of them: %v", list)
	}
	if n := len(s.blocks(r, 100)); n != 20 {
		s.Errorf("%d of 20", n)
	}
}

func illegal(s *suite) {
	_, err := s.store.Take(s.ctx, limiter.Rule{Name: "r", Policy: limiter.Policy{Algorithm: s.algorithm}},
		"k", 1)
	var ps shaper.Problems
	if !errors.As(err, &ps) {
		s.Errorf("%v", err)
	}
}
