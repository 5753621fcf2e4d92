package problem

import (
	"net/http"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

func TestDrainPolicyIsInWholeSeconds(t *testing.T) {
	for rate, want := range map[string][2]int64{
		"10/s": {10, 1}, "5/24h": {5, 86400}, "7/500ms": {14, 1}, "7/1500ms": {14, 3}, "1/1ms": {1000, 1},
		"1000/1ms": {1_000_000, 1},
		"7/3s":     {7, 3}, "1/1001ms": {1000, 1001}, "1/366d": {1, 31622400}, "10/60s": {10, 60},
	} {
		r, err := shaper.ParseRate(rate)
		if err != nil {
			t.Fatal(err)
		}
		if q, w := wholeWindow(r); q != want[0] || w != want[1] {
			t.Errorf("%s: q=%d w=%d, want %v", rate, q, w, want)
		}
	}
	// Where the exact quota would not fit a structured field.
	q, w := wholeWindow(shaper.Rate{Limit: 31_000_000_000_000, Period: shaper.MaxPeriod - time.Millisecond})
	if q != 31_000_000_000_000 || w != 31622400 {
		t.Errorf("q=%d w=%d", q, w)
	}
}

func TestLimitHeaders(t *testing.T) {
	a := shaper.Admission{
		Capacity: 1000, Remaining: 983, NextSlot: 1500 * time.Millisecond,
		Rate: shaper.Rate{Limit: 5, Period: 24 * time.Hour},
	}
	ietf := map[string]string{
		"Ratelimit-Policy": `"queue";q=1000, "drain";q=5;w=86400`, "Ratelimit": `"queue";r=983;t=2`,
	}
	legacy := map[string]string{
		"X-Ratelimit-Limit": "1000", "X-Ratelimit-Remaining": "983", "X-Ratelimit-Retry-After": "0",
	}
	for mode, want := range map[HeaderMode][]map[string]string{
		IETF: {ietf}, Legacy: {legacy}, Both: {ietf, legacy}, None: nil,
	} {
		h := http.Header{}
		mode.Queue(h, a, 0)
		n := 0
		for _, set := range want {
			for name, value := range set {
				n++
				if h.Get(name) != value {
					t.Errorf("%s: %s: %q, want %q", mode, name, h.Get(name), value)
				}
			}
		}
		if len(h) != n {
			t.Errorf("%s: %v", mode, h)
		}
	}
	a.Remaining = 0
	h := http.Header{}
	Both.Queue(h, a, 0)
	if h.Get("X-RateLimit-Retry-After") != "2" {
		t.Errorf("the last place taken: %v", h)
	}
	h = http.Header{}
	Both.Queue(h, shaper.Admission{Capacity: 1}, 30)
	if h.Get("RateLimit") != `"queue";r=0` || h.Get("RateLimit-Policy") != `"queue";q=1` ||
		h.Get("X-RateLimit-Retry-After") != "30" {
		t.Errorf("nothing known but the capacity: %v", h)
	}
}

func TestRetryAfterIsNeverEarlyAndScattered(t *testing.T) {
	for _, wait := range []time.Duration{
		time.Millisecond, time.Second, 1001 * time.Millisecond, time.Minute, 24 * time.Hour,
	} {
		seen := map[int64]bool{}
		for range 1000 {
			s := RetryAfter(wait)
			if time.Duration(s)*time.Second < wait {
				t.Fatalf("%v: %d s is early", wait, s)
			}
			if time.Duration(s)*time.Second > wait+wait/10+3*time.Second {
				t.Fatalf("%v: %d s is far too late", wait, s)
			}
			seen[s] = true
		}
		if len(seen) < 2 {
			t.Errorf("%v: all answers have %v", wait, seen)
		}
	}
}
