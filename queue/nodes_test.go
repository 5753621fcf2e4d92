package queue_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestDeadReplicaIsNotAsked: with a dead replica in a cluster, processes are ready, and new ones
// start.
func TestDeadReplicaIsNotAsked(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	c := redistest.StartCluster(t)
	replicas := c.AddReplicas(t.Context())
	q := open(t, queue.EngineOptions{URL: c.URL()}, defaults)
	replicas[0].Kill()
	for range 20 { // a node that is chosen at random would be the dead one
		if err := q.Ping(t.Context()); err != nil {
			t.Errorf("Ping: %v", err)
		}
		if _, err := q.StoreHealth(t.Context()); err != nil {
			t.Errorf("StoreHealth: %v", err)
		}
	}
	admit(t, open(t, queue.EngineOptions{URL: c.URL()}, defaults))
}

// TestHungNodeDelaysNoOtherTenant: while a node hangs, the intake of tenants on the other one is
// fast. Before each master had a flusher, half of their submissions took seconds.
func TestHungNodeDelaysNoOtherTenant(t *testing.T) {
	cluster := redistest.StartCluster(t)
	q := open(t, queue.EngineOptions{URL: cluster.URL()}, func(o *queue.Options) {
		o.Shards, o.Store = 16, queue.StoreBounds{FlowShare: 50, Bytes: 1 << 40}
	})
	tenant := func(i int) queue.Submission { s := work(); s.Tenant = fmt.Sprint("tenant", i); return s }
	const tenants, most, hang = 24, time.Second, 3 * time.Second
	thaw := cluster.Hang(t.Context(), 0)
	begun := time.Now()
	var mu sync.Mutex
	var took []time.Duration // until the answers that came while the node hung
	var without atomic.Int64 // submissions that had none by then
	var clients sync.WaitGroup
	for i := range tenants {
		for range 2 {
			clients.Go(func() {
				for start := begun; start.Sub(begun) < hang; {
					start = time.Now()
					v, err := q.Submit(t.Context(), tenant(i))
					if err != nil || v.Outcome != shaper.Admitted || time.Since(begun) > hang {
						without.Add(1)
					} else {
						mu.Lock()
						took = append(took, time.Since(start))
						mu.Unlock()
					}
					time.Sleep(20 * time.Millisecond)
				}
			})
		}
	}
	time.Sleep(hang)
	thaw()
	clients.Wait()
	slices.Sort(took)
	if len(took) < 100 || without.Load() == 0 {
		t.Fatalf("%d submissions were answered and %d were not", len(took), without.Load())
	}
	t.Logf("%d answered: p50 %v, p99 %v; %d not", len(took), took[len(took)/2], took[len(took)*99/100], without.Load())
	if p90 := took[len(took)*9/10]; p90 > most {
		t.Errorf("a tenth of the submissions to the other node took more than %v", p90)
	}
}

// TestForgottenNode: the map of the cluster is not taken from a node that was taken out of it and
// goes on. Its map has no master.
func TestForgottenNode(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	c := redistest.StartCluster(t)
	replicas := c.AddReplicas(t.Context())
	q := open(t, queue.EngineOptions{URL: c.URL()}, defaults)
	await(t, "the map has the replicas", func() bool { return q.Ping(t.Context()) == nil })
	c.Forget(t.Context(), replicas[0])
	cluster := store.Of(q).Fast.(*redis.ClusterClient)
	for range 40 { // each time the map is read, at a node that is chosen at random
		var masters atomic.Int64
		if err := cluster.ForEachMaster(t.Context(), func(context.Context, *redis.Client) error {
			masters.Add(1)
			return nil
		}); err != nil || masters.Load() != 2 {
			t.Fatalf("the map has %d masters, want 2: %v", masters.Load(), err)
		}
	}
	admit(t, q)
}
