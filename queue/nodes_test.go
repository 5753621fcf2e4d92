package queue_test

import (
	"testing"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/redistest"
)

// TestDeadReplicaIsNotAsked: with a dead replica in a cluster, processes are ready, and new ones
// start.
func TestDeadReplicaIsNotAsked(t *testing.T) {
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
