package queue_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// drain leases, waits for each stamp, and settles, until n jobs have left. It polls as a worker
// does: half a horizon before what is due.
func drain(t *testing.T, q *queue.Queue, n int, visit func(queue.Lease)) {
	t.Helper()
	o := queue.TickOptions{Max: 64, Lease: 30 * time.Second, Horizon: 20 * time.Millisecond, Sweep: time.Second}
	c := q.Broker().Consumer("w", 0)
	for left := 0; left < n; {
		tick, err := c.Tick(t.Context(), o)
		if err != nil {
			t.Fatalf("Tick: %v", err)
		}
		var ends []queue.Settlement
		for _, l := range tick.Leases {
			visit(l)
			ends = append(ends, queue.Settlement{
				LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: l.MaxAttempts,
			})
		}
		left += len(ends)
		if len(ends) > 0 {
			last := tick.Leases[len(ends)-1].Stamp
			<-time.After(time.Until(last.Time()))
			if _, err := q.Broker().Settle(t.Context(), ends); err != nil {
				t.Fatalf("Settle: %v", err)
			}
		}
		if len(ends) == 0 && !tick.More {
			if tick.Next == 0 {
				t.Fatalf("nothing is due after %d jobs", left)
			}
			<-time.After(time.Until(tick.Next.Time().Add(-o.Horizon / 2)))
		}
	}
}

// TestAnHourOfGrid drains 360 jobs in virtual time: every stamp is on the grid, to the microsecond,
// and the hour is an hour.
func TestAnHourOfGrid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const jobs, apart = 360, 10 * time.Second
		q := embedded(t, func(o *queue.Options) {
			o.Shards, o.Defaults.Rate = 1, shaper.Rate{Limit: 1, Period: 10 * time.Second}
		})
		begin := time.Now()
		batch := slices.Repeat([]queue.Submission{work()}, jobs)
		if _, err := q.SubmitBatch(t.Context(), batch, true); err != nil {
			t.Fatalf("SubmitBatch: %v", err)
		}
		n := 0
		drain(t, q, jobs, func(l queue.Lease) {
			if want := shaper.InstantOf(begin).Add(time.Duration(n) * apart); l.Stamp != want {
				t.Errorf("stamp %d is %v after the start", n, l.Stamp.Sub(shaper.InstantOf(begin)))
			}
			n++
		})
		if d := time.Since(begin); d != (jobs-1)*apart {
			t.Errorf("%d jobs took %v", jobs, d)
		}
	})
}

// TestThirdsInVirtualTime: at 3 per second the remainders are carried, and a poll late by less than
// the slack keeps the grid.
func TestThirdsInVirtualTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := embedded(t, func(o *queue.Options) {
			o.Shards, o.Defaults.Rate = 1, shaper.Rate{Limit: 3, Period: time.Second}
		})
		begin := shaper.InstantOf(time.Now())
		for range 30 {
			if _, err := q.Submit(t.Context(), work()); err != nil {
				t.Fatalf("Submit: %v", err)
			}
		}
		n := 0
		drain(t, q, 30, func(l queue.Lease) {
			if want := begin.Add(time.Duration(n) * time.Second / 3); l.Stamp != want {
				t.Errorf("stamp %d is %v after the start", n, l.Stamp.Sub(begin))
			}
			<-time.After(time.Duration(n%10) * time.Millisecond)
			n++
		})
	})
}
