package main

import (
	"testing"
	"time"
)

func TestLongestGap(t *testing.T) {
	for _, c := range []struct {
		at       []instant
		from, to instant
		want     time.Duration
	}{
		{[]instant{10, 20, 30, 40}, 25, 40, 10},
		{[]instant{10, 20, 45, 50}, 25, 50, 25}, // the gap that the step falls into, from its beginning
		{[]instant{10, 20, 30, 90}, 25, 40, 60}, // and that which the end falls into, to its end
		{[]instant{5, 100, 110, 120}, 105, 120, 10},
		{[]instant{120, 20, 10, 110}, 15, 30, 90},
		{[]instant{10, 20}, 15, 60, 40},
		{nil, 15, 60, 45},
	} {
		if got := longestGap(c.at, c.from, c.to); got != c.want {
			t.Errorf("%v from %d to %d: %d, want %d", c.at, c.from, c.to, got, c.want)
		}
	}
}
