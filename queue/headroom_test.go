package queue_test

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// slowReadings delays every pipeline, as a distant Redis does.
type slowReadings struct{ by atomic.Int64 }

func (*slowReadings) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*slowReadings) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *slowReadings) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		time.Sleep(time.Duration(h.by.Load()))
		return next(ctx, cmds)
	}
}

// TestNoAdmissionByAnOldReading: after a pause, submissions wait for a new reading of how much is
// stored, all of them. They are not refused for what was stored before the pause.
func TestNoAdmissionByAnOldReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e, slow := embeddedEngine(t), &slowReadings{}
		e.AddHook(slow)
		q := beside(t, e, queue.Options{Defaults: perSecond(100), Store: queue.StoreBounds{Bytes: 2000}})
		w := work()
		w.Payload = make([]byte, 3000)
		first, err := q.Submit(t.Context(), w)
		if err != nil || first.Outcome != shaper.Admitted {
			t.Fatalf("the first job: %v, %v", first.Outcome, err)
		}
		time.Sleep(2 * time.Second)
		if v, err := q.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.StoreFull {
			t.Fatalf("into a full store: %v, %v", v.Outcome, err)
		}
		if _, err := q.Cancel(t.Context(), w.Tenant, first.Job.ID); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second)
		slow.by.Store(int64(50 * time.Millisecond))
		outcomes := make(chan shaper.Outcome, 2)
		for range cap(outcomes) {
			go func() {
				v, err := q.Submit(t.Context(), work())
				if err != nil {
					t.Error(err)
				}
				outcomes <- v.Outcome
			}()
		}
		for range cap(outcomes) {
			if got := <-outcomes; got != shaper.Admitted {
				t.Errorf("after the job was cancelled: %v, want it admitted", got)
			}
		}
	})
}
