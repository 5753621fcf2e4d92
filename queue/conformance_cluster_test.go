// In make test-long alone, because it is long.

//go:build !race

package queue_test

import (
	"sync"
	"testing"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
)

// clusters are lent to the tests of one suite.
type clusters struct {
	mu   sync.Mutex
	idle []*redistest.Cluster
}

// lend is an empty cluster until the end of the test. It belongs to the suite.
func (c *clusters) lend(suite, t *testing.T) queue.EngineOptions {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var one *redistest.Cluster
	if last := len(c.idle) - 1; last >= 0 {
		one, c.idle = c.idle[last], c.idle[:last]
	} else {
		one = redistest.StartCluster(suite)
	}
	t.Cleanup(func() {
		one.Empty()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.idle = append(c.idle, one)
	})
	return queue.EngineOptions{URL: one.URL()}
}

// TestConformanceOnACluster: what holds on one Redis holds on a Redis Cluster.
func TestConformanceOnACluster(t *testing.T) {
	queuetest.Long(t)
	var c clusters
	t.Run("suite", func(suite *testing.T) {
		queuetest.Run(suite, func(t *testing.T) *queue.Engine { return openEngine(t, c.lend(suite, t)) })
	})
}
