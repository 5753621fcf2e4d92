package shaper_test

import (
	"fmt"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// A flow that lets two jobs a second leave and holds at most three: the fourth job is refused, with
// the time after which it fits.
func ExampleAdmit() {
	policy := shaper.DefaultPolicy()
	policy.Rate, policy.Burst, policy.Capacity = shaper.Rate{Limit: 2, Period: time.Second}, 1, 3
	now := shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	flow := shaper.Flow{Bucket: shaper.NewBucket(policy.Paces())}
	for range 4 {
		var a shaper.Admission
		flow, a = shaper.Admit(flow, policy, now, shaper.Request{Size: 1, Cost: 1}, nil)
		fmt.Println(a.Outcome, a.Position, a.Start.Sub(now), a.RetryAfter)
	}
	// Output:
	// admitted 1 0s 0s
	// admitted 2 500ms 0s
	// admitted 3 1s 0s
	// full 0 1.5s 1ms
}

// Stamp gives the instant at which a job leaves, Depart charges the bucket for it.
func ExampleBucket() {
	pace := shaper.Pace{Rate: shaper.Rate{Limit: 3, Period: time.Second}, Burst: 1}
	now := shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	bucket := shaper.NewBucket([]shaper.Pace{pace}).MarkReady(now)
	for range 4 {
		stamp := bucket.Stamp(now, now)
		bucket = bucket.Depart(stamp, 1)
		fmt.Println(stamp.Sub(now))
	}
	// Output:
	// 0s
	// 333.333ms
	// 666.666ms
	// 1s
}

func ExampleParseRate() {
	rate, err := shaper.ParseRate("90/m")
	fmt.Println(rate, err, rate.Limit, rate.Period)
	_, err = shaper.ParseRate("fast")
	fmt.Println(err)
	// Output:
	// 90/m <nil> 90 1m0s
	// not a rate: want LIMIT/PERIOD, such as 10/s or 5/24h
}
