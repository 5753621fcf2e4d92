package problem

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/7509e464/sluice/shaper"
)

// maxRetrySlots bounds the flows whose slots are remembered. The least recently used one is
// evicted.
const maxRetrySlots = 10_000

// RetrySlots holds the shaper.RetrySlots of the flows with a full queue. Each process has its own,
// so n processes give each slot to n clients. The clients that are then rejected again get another
// turn.
type RetrySlots struct {
	mu    sync.Mutex
	flows *simplelru.LRU[string, *shaper.RetrySlots]
}

// NewRetrySlots returns those of no flow.
func NewRetrySlots() *RetrySlots {
	flows, _ := simplelru.NewLRU[string, *shaper.RetrySlots](maxRetrySlots, nil) // fails only for sizes below 1
	return &RetrySlots{flows: flows}
}

// Take returns how long a client should wait before it requests size slots of the flow again; 0 if
// that is unknown. flow is its name, or "" for a flow whose slots are not remembered.
func (t *RetrySlots) Take(flow string, a shaper.Admission, size int64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	of, known := t.flows.Get(flow)
	if !known {
		of = &shaper.RetrySlots{}
	}
	if !known && flow != "" {
		t.flows.Add(flow, of)
	}
	if turn := of.Take(a, size, rand.Int64N); turn != 0 {
		return turn.Sub(a.Now)
	}
	return 0
}
