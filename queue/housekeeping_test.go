package queue_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
)

// TestHousekeepingTakesTurns: all shards must apply new policies at once, here those of the start.
// All but a few wait for their turns. A poll whose shard must wait says when its turn is, so that
// the worker does not poll in between.
func TestHousekeepingTakesTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const shards = 8
		q := embedded(t, func(o *queue.Options) { o.Shards = shards })
		var retunes []time.Time
		q.AfterScript("retune", func() { retunes = append(retunes, time.Now()) })
		o := queue.TickOptions{Max: 64, Lease: time.Minute, Horizon: 20 * time.Millisecond, Sweep: time.Second}
		var consumers [shards]*queue.Consumer
		for i := range consumers {
			consumers[i] = q.Broker().Consumer("w", i)
		}
		begin, polls := time.Now(), 0
		var next [shards]time.Time // of the polls; zero: nothing is due
		for i := range next {
			next[i] = begin
		}
		for {
			i := -1
			for k, at := range next {
				if !at.IsZero() && (i < 0 || at.Before(next[i])) {
					i = k
				}
			}
			if i < 0 {
				break
			}
			time.Sleep(time.Until(next[i]))
			tick, err := consumers[i].Tick(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			switch polls++; {
			case tick.More:
				next[i] = time.Now()
			case tick.Next > 0:
				next[i] = tick.Next.Add(-o.Horizon / 2).Time()
			default:
				next[i] = time.Time{}
			}
		}
		if len(retunes) != shards || polls > 4*shards {
			t.Errorf("%d polls of %d shards, with %d retunes", polls, shards, len(retunes))
		}
		for i, at := range retunes {
			waits := time.Duration(max(0, i+1-queue.HousekeepingBurst)) * queue.HousekeepingEvery
			if want := begin.Add(waits); at.Sub(want).Abs() > time.Millisecond {
				t.Errorf("retune %d is %v after the start, want %v", i, at.Sub(begin), want.Sub(begin))
			}
		}
	})
}
