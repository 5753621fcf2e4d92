package limiter_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/internal/limitertest"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

func memory(t *testing.T, p limiter.Policy, most int) *limiter.Memory {
	t.Helper()
	m, err := limiter.NewMemory(p, most)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestMemoryKeepsKeysApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t, limiter.Policy{Algorithm: limiter.SlidingLog, Rate: rate("2/s")}, 10)
		for i, want := range []bool{true, true, false} {
			for _, key := range []string{"a", "b"} {
				if got := m.Take(key, 1).Allowed; got != want {
					t.Errorf("request %d of %s: %v", i, key, got)
				}
			}
		}
		time.Sleep(time.Second)
		if !m.Take("a", 2).Allowed {
			t.Error("after the period: refused")
		}
	})
}

func TestMemoryForgetsIdleKeys(t *testing.T) {
	for _, a := range limiter.Algorithms() {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := memory(t, limiter.Policy{Algorithm: a, Rate: rate("10/s")}, 1000)
				for i := range 1000 {
					m.Take(fmt.Sprint("key ", i), 5)
				}
				if m.Keys() != 1000 || m.Displaced() != 0 {
					t.Errorf("%d keys, %d displaced", m.Keys(), m.Displaced())
				}
				m.Take("never fits", 1000)
				m.Take("asks", 0)
				if m.Keys() != 1000 {
					t.Errorf("%d keys: one that took nothing is held", m.Keys())
				}
				time.Sleep(2 * time.Second)
				for range 600 {
					m.Take("another", 0)
				}
				if m.Keys() != 0 {
					t.Errorf("%d idle keys are still there", m.Keys())
				}
			})
		})
	}
}

// At the bound a new key takes the place of the one that would have been forgotten soonest, and
// idle keys go first.
func TestMemoryBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := memory(t, limiter.Policy{Algorithm: limiter.TokenBucket, Rate: rate("10/s")}, 3)
		m.Take("some", 1)
		m.Take("much", 10)
		m.Take("little", 2)
		m.Take("some", 4) // no longer the one that is soonest as if never used
		m.Take("new", 2)
		if m.Keys() != 3 || m.Displaced() != 1 {
			t.Fatalf("%d keys, %d displaced", m.Keys(), m.Displaced())
		}
		for key, remaining := range map[string]int64{"much": 0, "some": 5, "new": 8, "little": 10} {
			if got := m.Take(key, 0).Remaining; got != remaining {
				t.Errorf("%s has %d left, want %d", key, got, remaining)
			}
		}
		time.Sleep(500 * time.Millisecond) // new and some are as if never used
		m.Take("a", 1)
		m.Take("b", 1)
		if m.Keys() != 3 || m.Displaced() != 1 || m.Take("much", 0).Remaining != 5 {
			t.Errorf("%d keys, %d displaced", m.Keys(), m.Displaced())
		}
	})
}

func TestMemoryRefusesBadSettings(t *testing.T) {
	_, err := limiter.NewMemory(limiter.Policy{Algorithm: "none", Rate: rate("1/s")}, 0)
	var ps shaper.Problems
	if !errors.As(err, &ps) || len(ps) != 2 {
		t.Errorf("%v", err)
	}
}

// TestMemoryUnderAThousandCallers: however many ask at once, no window holds more than the limiter
// promises.
func TestMemoryUnderAThousandCallers(t *testing.T) {
	const goroutines, callers, rounds = 64, 1000, 4
	for _, a := range limiter.Algorithms() {
		t.Run(string(a), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := limiter.Policy{Algorithm: a, Rate: rate("50/s")}
				m := memory(t, p, 100)
				var passed []int64 // in each quarter of the period
				for range 4 * rounds {
					var allowed atomic.Int64
					var wg sync.WaitGroup
					for g := range goroutines {
						wg.Go(func() {
							for i := g; i < callers; i += goroutines {
								if m.Take("one", 1).Allowed {
									allowed.Add(1)
								}
								m.Take(fmt.Sprint("other ", i%50), 1)
							}
						})
					}
					wg.Wait()
					passed = append(passed, allowed.Load())
					time.Sleep(p.Rate.Period / 4)
				}
				if passed[0] != p.Limit() {
					t.Errorf("%d of %d passed at first", passed[0], p.Limit())
				}
				for i := 4; i <= len(passed); i++ {
					if sum := passed[i-4] + passed[i-3] + passed[i-2] + passed[i-1]; sum > limitertest.Most(p) {
						t.Errorf("%d passed within one period, of at most %d: %v", sum, limitertest.Most(p), passed)
					}
				}
			})
		})
	}
}

func BenchmarkTake(b *testing.B) {
	for _, a := range limiter.Algorithms() {
		b.Run(string(a), func(b *testing.B) {
			p := limiter.Policy{Algorithm: a, Rate: rate("1000/s")}
			var s limiter.State
			now := start
			b.ReportAllocs()
			for b.Loop() {
				now += 500
				s.Take(p, now, 1)
			}
		})
	}
}

func BenchmarkMemory(b *testing.B) {
	m, err := limiter.NewMemory(limiter.Policy{Algorithm: limiter.TokenBucket, Rate: rate("1000/s")}, 10_000)
	if err != nil {
		b.Fatal(err)
	}
	keys := make([]string, 1000)
	for i := range keys {
		keys[i] = fmt.Sprint("key ", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		m.Take(keys[i%len(keys)], 1)
	}
}
