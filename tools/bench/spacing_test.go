package main

import (
	"math/big"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestSpace(t *testing.T) {
	even := space(parse("200/s"), grid(0, 5, 1001))
	if want := (spacing{Count: 1001, GapP1: 5, GapP50: 5, GapP99: 5, Rate: 1, Fullest: 20}); even != want {
		t.Errorf("the grid: %+v, want %+v", even, want)
	}
	// 200 at once, then the same a second later: what a counter per second lets pass.
	bursts := space(parse("200/s"), append(make([]time.Duration, 200),
		slices.Repeat([]time.Duration{time.Second}, 200)...))
	if bursts.TauMax != 995 || bursts.Fullest != 200 || bursts.GapP50 != 0 || bursts.Deviates != 5 {
		t.Errorf("bursts: %+v", bursts)
	}
	if one := space(parse("200/s"), at(3)); one != (spacing{Count: 1}) {
		t.Errorf("one: %+v", one)
	}
	// One that comes 3 ms late leaves the next one 3 ms too early, which is not the same as one
	// that is early by itself.
	late := grid(0, 5, 101)
	late[50] += 3 * time.Millisecond
	if s := space(parse("200/s"), late); s.TauMax != 3 || s.Rate != 1 {
		t.Errorf("one late: %+v", s)
	}
}

// TestTolerancesAreTheTextbook: the definition, in rationals, over any instants.
func TestTolerancesAreTheTextbook(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := parse(rapid.SampledFrom([]string{"200/s", "7/3s", "999/10s", "1/m", "5000/s"}).Draw(t, "rate"))
		var at []time.Duration
		for _, n := range rapid.SliceOfN(rapid.Int64Range(0, 20*60*1e9), 1, 40).Draw(t, "instants") {
			at = append(at, time.Duration(n))
		}
		slices.Sort(at)
		got := tolerances(r, at)
		interval, tat := big.NewRat(int64(r.Period), r.Limit), new(big.Rat)
		for i, instant := range at {
			now := new(big.Rat).SetInt64(int64(instant))
			if now.Cmp(tat) > 0 {
				tat.Set(now)
			}
			early := new(big.Rat).Sub(tat, now)
			over := new(big.Rat).Sub(new(big.Rat).SetInt64(int64(got[i])), early)
			if over.Sign() < 0 || over.Cmp(big.NewRat(1, 1)) >= 0 {
				t.Fatalf("departure %d: τ is %s ns, got %d", i, early.FloatString(3), got[i])
			}
			tat.Add(tat, interval)
		}
	})
}

func TestQuantileAndMedian(t *testing.T) {
	values := grid(1, 1, 100)
	a, b, c := quantile(values, 0.01), quantile(values, 0.99), quantile(values, 1)
	if a != 2*time.Millisecond || b != 100*time.Millisecond || c != b {
		t.Error(a, b, c)
	}
	if quantile[time.Duration](nil, 0.5) != 0 {
		t.Error("no values")
	}
	if m := median([]float64{9, 1, 5}); m != 5 {
		t.Error(m)
	}
}

// A figure may have a range for a target, or none.
func TestJudgeARange(t *testing.T) {
	for value, want := range map[float64]bool{0.9989: false, 0.999: true, 1: true, 1.001: true, 1.0011: false} {
		if r := (figure{target: 0.999, upTo: 1.001}).judge([]float64{value}); r.Pass != want || r.UpTo != 1.001 {
			t.Errorf("%v: %+v", value, r)
		}
	}
	if r := (figure{info: true}).judge([]float64{-1}); !r.Pass {
		t.Error("a figure without a target was missed")
	}
}

// What several figures share is measured once, also when it fails.
func TestOnce(t *testing.T) {
	b, calls := &bench{}, 0
	for range 3 {
		if n, err := once(b, "a", func() (int, error) { calls++; return calls, nil }); n != 1 || err != nil {
			t.Error(n, err)
		}
	}
	for range 2 {
		if _, err := once(b, "b", func() (int, error) { calls++; return 0, absent{"no"} }); err == nil {
			t.Error("the error was forgotten")
		}
	}
	if calls != 2 {
		t.Errorf("measured %d times", calls)
	}
}
