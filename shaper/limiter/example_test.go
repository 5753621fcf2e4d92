package limiter_test

import (
	"fmt"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// A policy and a state decide; nothing else is needed, and no clock.
func ExampleDecide() {
	p := limiter.Policy{Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 2, Period: time.Minute}}
	now := shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	var s limiter.State // never used
	for range 3 {
		var d limiter.Decision
		s, d = limiter.Decide(s, p, now, 1)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter)
		now = now.Add(10 * time.Second)
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 40s
}

// Five logins a quarter of an hour for each name, for up to 100,000 names.
func ExampleMemory() {
	logins, err := limiter.NewMemory(limiter.Policy{
		Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 5, Period: 15 * time.Minute}, Block: time.Hour,
	}, 100_000)
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 5 {
		logins.Take("alice", 1)
	}
	d := logins.Take("alice", 1)
	fmt.Println(d.Allowed, d.RetryAfter)
	fmt.Println(logins.Take("bob", 1).Allowed)
	// Output:
	// false 1h0m0s
	// true
}
