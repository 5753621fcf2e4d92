package queue_test

import (
	"errors"
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestMovesMissNoJob: whenever a job of a route that moves to a pool in another shard is submitted,
// either the file is refused or the job is in the pool's shard. No job stays outside of its pool.
func TestMovesMissNoJob(t *testing.T) {
	t.Parallel()
	const shards = 16
	keys := store.NewKeyspace(shards)
	if keys.ShardOf("acme") == keys.ShardOf("+erp") {
		t.Fatal("the tenant and the pool are in one shard")
	}
	step := 3
	if testing.Short() {
		step = 9
	}
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for at := 1; at <= 3*shards; at += step { // scripts that scan a shard before the submission
				e, err := queue.OpenEngine(t.Context(), options(t))
				if err != nil {
					t.Fatal(err)
				}
				q, err := queue.Open(t.Context(), e, queue.Options{
					Shards: shards, Defaults: perSecond(1000), Horizon: time.Minute,
					Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
				})
				if err != nil {
					t.Fatal(err)
				}
				q.StopKeeping()
				job := work()
				job.Route = "erp"
				scans := 0
				var submitted error
				q.AfterScript("scan", func() {
					if scans++; scans == at {
						_, submitted = q.Submit(t.Context(), job)
					}
				})
				pooled := shaper.Baseline{
					Defaults: shaper.Policy{Rate: perSecond(1000).Rate, Burst: 1, Capacity: 1000},
					Pools:    map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}}},
				}
				err = q.SetPolicies(t.Context(), pooled, nil)
				var moves *queue.MoveError
				old := e.Client().ZCard(t.Context(), keys.ShardOf("acme").Queue("acme/erp")).Val()
				switch {
				case err == nil && old > 0:
					t.Errorf("after %d scans: a job stays outside of its pool", at)
				case err != nil && !errors.As(err, &moves):
					t.Errorf("after %d scans: %v", at, err)
				case submitted != nil && !errors.Is(submitted, queue.ErrUnavailable):
					t.Errorf("after %d scans: submit: %v", at, submitted)
				}
				if v, err := q.Submit(t.Context(), job); err != nil || v.Outcome != shaper.Admitted {
					t.Errorf("after %d scans, and the change: %v, %v", at, v.Outcome, err)
				}
				if err := errors.Join(q.Close(), e.Close()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
