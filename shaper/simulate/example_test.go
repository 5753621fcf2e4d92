package simulate_test

import (
	"fmt"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// Ten requests arrive at once. The shaper lets two a second leave, and its queue holds eight.
func ExampleShaper() {
	trace := make(simulate.Trace, 10)
	for i := range trace {
		trace[i].Cost = 1
	}
	policy := shaper.DefaultPolicy()
	policy.Rate, policy.Burst, policy.Capacity = shaper.Rate{Limit: 2, Period: time.Second}, 1, 8
	run, err := simulate.Shaper(trace, policy, simulate.Workers{})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := run.Report()
	fmt.Println("admitted", r.Admitted, "refused", r.Refused, "longest wait", r.WaitMax, "peak depth",
		r.PeakDepth)
	// Output:
	// admitted 8 refused 2 longest wait 3.5s peak depth 8
}

// The smallest rate at which every request of a flash sale is admitted and 99 % wait at most 30 s.
func ExampleRecommend() {
	trace, err := simulate.Generator{
		Shape: simulate.FlashSale, Rate: shaper.Rate{Limit: 5, Period: time.Second},
		Peak: shaper.Rate{Limit: 50, Period: time.Second},
		For:  5 * time.Minute, Seed: 1,
	}.Trace()
	if err != nil {
		fmt.Println(err)
		return
	}
	best, err := simulate.Recommend(trace, simulate.Goals{WaitP99: 30 * time.Second, Burst: 1}, nil)
	fmt.Println(best.Rate, best.Reached, best.WaitP99 <= 30*time.Second, best.Refused, err)
	// Output:
	// 19/s true true 0 <nil>
}
