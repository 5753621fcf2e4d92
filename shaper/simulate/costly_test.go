package simulate

import (
	"fmt"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// TestCostlyJobsLeaveOthersTheirPart: flows use less than their part of the pool, and their own
// rate is a little above that. They keep all of it beside a flow whose jobs take the pool for many
// of their intervals. That flow uses a part of what they leave.
func TestCostlyJobsLeaveOthersTheirPart(t *testing.T) {
	t.Parallel()
	const seconds = 30
	for _, cost := range []int64{1, 2, 3, 4, 7, 20, 62, 200, 400} {
		for _, reserve := range []string{"", "40/s"} {
			t.Run(fmt.Sprint("cost ", cost, " reserve ", reserve), func(t *testing.T) {
				members := []Member{{Name: "costly", Backlog: cost, Policy: shaper.Policy{
					Rate: rate("200/s"), Burst: 1, Capacity: 1000, Weight: 1, MaxCost: shaper.MaxCost,
				}}}
				for i := range 3 {
					m := Member{Name: fmt.Sprint("quiet", i), Policy: shaper.Policy{
						Rate: rate("50/s"), Burst: 1, Capacity: 10_000, Weight: 1, MaxCost: shaper.MaxCost,
					}}
					if reserve != "" {
						m.Policy.Reserve = rate(reserve)
					}
					for k := range int64(40 * seconds) {
						m.Trace = append(m.Trace, Arrival{At: shaper.Instant(k*25_000 + int64(i)*3_000), Cost: 1})
					}
					members = append(members, m)
				}
				pool := shaper.Policy{Rate: rate("200/s"), Burst: 1, Capacity: 100_000, MaxCost: shaper.MaxCost}
				run, err := Pool(members, pool, 0)
				if err != nil {
					t.Fatal(err)
				}
				window := shaper.Instant((2*time.Second + time.Duration(cost)*5*time.Millisecond).Microseconds())
				used := int64(0)
				for _, d := range run.Departures {
					if d.Member == 0 && d.At < seconds*1_000_000 {
						used += d.Cost
					}
				}
				for i := 1; i < 4; i++ {
					for at := shaper.Instant(0); at+window < seconds*1_000_000; at += 100_000 {
						got := 0
						for _, d := range run.Departures {
							if d.Member == i && d.At >= at && d.At < at+window {
								got++
							}
						}
						if got < 77 { // of the 80 that come in 2 s
							t.Fatalf("%d jobs of flow %d in the %d ms from %d ms on", got, i, window/1000, at/1000)
						}
					}
				}
				if used < 40*seconds {
					t.Errorf("the costly flow used %d a second of 80 that are left", used/seconds)
				}
			})
		}
	}
}
