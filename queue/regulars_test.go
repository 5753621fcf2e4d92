package queue_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestRegularsInACrowd: the jobs of thousands of tenants become due within 40 ms, and it takes
// dozens of polls to lease them. A tenant whose jobs leave every 20 ms before, meanwhile and after
// loses no departure, although its flow becomes due in their midst; nor does one whose route is in
// a pool.
func TestRegularsInACrowd(t *testing.T) {
	t.Parallel()
	for _, pooled := range []bool{false, true} {
		t.Run(fmt.Sprint("pooled ", pooled), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const crowd, interval = 3000, 20 * time.Millisecond
				route := "crowd"
				q := embedded(t, func(o *queue.Options) {
					o.Shards, o.Defaults.Rate = 1, shaper.Rate{Limit: 50, Period: time.Second}
					if pooled {
						route = "pooled"
						o.Pools = map[string]shaper.PoolSettings{"p": {
							Routes: []string{route}, Overrides: shaper.Overrides{Rate: &o.Defaults.Rate},
						}}
					}
				})
				submit := func(s queue.Submission) {
					if v, err := q.Submit(t.Context(), s); err != nil || v.Outcome != shaper.Admitted {
						t.Fatalf("Submit: %+v, %v", v, err)
					}
				}
				due := time.Now().Add(time.Second)
				for i := range crowd {
					s := work()
					s.Tenant, s.Route = fmt.Sprint("crowd", i), "crowd"
					s.Delay = time.Until(due) + time.Duration(i)*40*time.Millisecond/crowd
					submit(s)
				}
				for range 150 {
					s := work()
					s.Tenant, s.Route = "regular", route
					submit(s)
				}
				o := queue.TickOptions{Max: 128, Lease: time.Minute, Horizon: interval, Sweep: time.Second}
				c := q.Broker().Consumer("w", 0)
				left, last := crowd, shaper.Instant(0)
				for left > 0 {
					tick, err := c.Tick(t.Context(), o)
					if err != nil {
						t.Fatalf("Tick: %v", err)
					}
					for _, l := range tick.Leases {
						if l.Tenant != "regular" {
							left--
							continue
						}
						if last != 0 && l.Stamp.Sub(last) > interval+shaper.Slack {
							t.Errorf("with %d jobs of the crowd left, the regular tenant waits for %v", left,
								l.Stamp.Sub(last))
						}
						last = l.Stamp
					}
					<-time.After(9 * time.Millisecond)
				}
			})
		})
	}
}

// TestRegularsGiveWay: in an overload that lasts, regulars that would take all slots are preferred
// for a few seconds alone, also where polls without capacity come between.
func TestRegularsGiveWay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const crowd, regulars = 400, 8
		q := embedded(t, func(o *queue.Options) {
			o.Shards, o.Defaults = 1, shaper.DefaultPolicy()
			o.Defaults.Rate, o.Defaults.Concurrency = shaper.Rate{Limit: 10, Period: time.Second}, 0
		})
		submit := func(tenant string, delay time.Duration) {
			s := work()
			s.Tenant, s.Delay = tenant, delay
			if v, err := q.Submit(t.Context(), s); err != nil || v.Outcome != shaper.Admitted {
				t.Fatalf("Submit: %+v, %v", v, err)
			}
		}
		for i := range crowd {
			submit(fmt.Sprint("crowd", i), time.Second)
		}
		for i := range regulars {
			for range 200 {
				submit(fmt.Sprint("regular", i), 0)
			}
		}
		c := q.Broker().Consumer("w", 0)
		left := crowd
		for polls := 0; left > 0; polls++ {
			o := queue.TickOptions{Max: 4, Lease: time.Hour, Horizon: 20 * time.Millisecond, Sweep: time.Second}
			if polls%20 == 19 {
				o.Max = 0
			}
			tick, err := c.Tick(t.Context(), o)
			if err != nil {
				t.Fatalf("Tick: %v", err)
			}
			for _, l := range tick.Leases {
				if strings.HasPrefix(l.Tenant, "crowd") {
					left--
				}
			}
			if polls == 300 {
				t.Fatalf("fourteen seconds after it came, %d jobs of the crowd are left", left)
			}
			<-time.After(50 * time.Millisecond)
		}
	})
}

// TestManyRegulars: where hundreds of flows bring jobs poll after poll, none is preferred.
func TestManyRegulars(t *testing.T) {
	t.Parallel()
	var leases []queue.Lease
	for i := range 257 {
		leases = append(leases, queue.Lease{Tenant: fmt.Sprint("t", i), Route: "r"})
	}
	if names := queue.RegularsOf(leases[:256], leases[:256]); len(names) != 256 {
		t.Errorf("of 256 flows %d are preferred", len(names))
	}
	if names := queue.RegularsOf(leases, leases); len(names) != 0 {
		t.Errorf("of 257 flows %d are preferred", len(names))
	}
	if names := queue.RegularsOf(leases, leases[:3]); len(names) != 3 {
		t.Errorf("of flows that brought jobs once or twice %q are preferred", names)
	}
}
