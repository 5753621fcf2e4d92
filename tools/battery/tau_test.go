package main

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

func rateOf(t rapid.TB, text string) shaper.Rate {
	t.Helper()
	r, err := shaper.ParseRate(text)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestTau(t *testing.T) {
	at := func(msec ...float64) (instants []instant) {
		for _, m := range msec {
			instants = append(instants, instant(m*1e6))
		}
		return instants
	}
	for _, c := range []struct {
		name, rate string
		instants   []instant
		want       time.Duration
	}{
		{"nothing", "100/s", nil, 0},
		{"one", "100/s", at(5), 0},
		{"the grid", "100/s", at(0, 10, 20, 30), 0},
		{"slower than the rate", "100/s", at(0, 11, 25, 99), 0},
		{"one early by 3", "100/s", at(0, 10, 17, 30), 3 * time.Millisecond},
		{"a gap does not earn a burst", "100/s", at(0, 1000, 1000, 1000), 20 * time.Millisecond},
		{"small debts add up", "100/s", at(0, 9, 18, 27, 36), 4 * time.Millisecond},
		{"the order does not matter", "100/s", at(30, 17, 0, 10), 3 * time.Millisecond},
		{"T that no nanosecond divides", "7/3s", at(0, 428.571429, 857.142858), 0},
		{"before the origin", "100/s", at(-20, -10, -3), 3 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := tau(rateOf(t, c.rate), c.instants); got != c.want {
				t.Errorf("τ* is %v, want %v", got, c.want)
			}
		})
	}
}

// TestTauIsTheTextbook: the definition, in rationals, over any instants and rates.
func TestTauIsTheTextbook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rateOf(t,
			rapid.SampledFrom([]string{"200/s", "7/3s", "999/10s", "1/m", "1000000/s", "5/24h"}).Draw(t,
				"rate"))
		var instants []instant
		for _, n := range rapid.SliceOfN(rapid.Int64Range(0, 20*60*1e9), 1, 40).Draw(t, "instants") {
			instants = append(instants, instant(n))
		}
		got := tau(r, instants)
		slices.Sort(instants)
		T := big.NewRat(int64(r.Period), r.Limit)
		tat, worst := new(big.Rat), new(big.Rat)
		for _, at := range instants {
			now := new(big.Rat).SetInt64(int64(at))
			if now.Cmp(tat) > 0 {
				tat.Set(now)
			}
			if early := new(big.Rat).Sub(tat, now); early.Cmp(worst) > 0 {
				worst = early
			}
			tat.Add(tat, T)
		}
		// Rounded up to a whole nanosecond.
		over := new(big.Rat).Sub(new(big.Rat).SetInt64(int64(got)), worst)
		if over.Sign() < 0 || over.Cmp(big.NewRat(1, 1)) >= 0 {
			t.Fatalf("τ* is %v ns, got %d", worst.FloatString(3), got)
		}
	})
}

// TestTauFindsASeededFault: one departure out of a long even run that leaves too early.
func TestTauFindsASeededFault(t *testing.T) {
	r := rateOf(t, "200/s")
	var instants []instant
	for i := range 10_000 {
		instants = append(instants, instant(i)*5e6)
	}
	if got := tau(r, instants); got != 0 {
		t.Fatalf("the grid has τ* %v", got)
	}
	instants[7777] -= 2000
	if got := tau(r, instants); got != 2*time.Microsecond {
		t.Errorf("2 µs too early: τ* %v", got)
	}
}

func TestQuantile(t *testing.T) {
	var values []time.Duration
	for i := range 100 {
		values = append(values, time.Duration(100-i))
	}
	p50, p99, top := quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1)
	if p50 != 51 || p99 != 100 || top != 100 {
		t.Error(p50, p99, top)
	}
	if quantile(nil, 0.5) != 0 {
		t.Error("no values")
	}
}
