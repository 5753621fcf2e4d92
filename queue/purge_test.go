package queue_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestPurgeAfterStepBack: jobs that a shard made while its clock stood still, Redis's having been
// set back, exist when the call begins.
func TestPurgeAfterStepBack(t *testing.T) {
	options := queue.EngineOptions{URL: redistest.Start(t).URL()}
	e, err := queue.OpenEngine(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	q := open(t, options, func(o *queue.Options) { o.Shards = 1 })
	if err := e.Client().HSet(t.Context(), "sluice:{0}:clock", scripts.ClockNumbers,
		fmt.Sprintf("%d 0 0 0 0 0 0 0 0 0 0 0 0", time.Now().Add(time.Hour).UnixMicro())).Err(); err != nil {
		t.Fatal(err)
	}
	later := work()
	later.Delay = time.Hour
	for range 3 {
		if v, err := q.Submit(t.Context(), later); err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("Submit: %+v, %v", v, err)
		}
	}
	if swept, err := q.Purge(t.Context(), "acme", queue.Filter{}); err != nil || swept.Count != 3 {
		t.Errorf("Purge: %+v, %v, want 3", swept, err)
	}
}
