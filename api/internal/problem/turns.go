package problem

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/7509e464/sluice/shaper"
)

// maxTurns bounds the flows whose turns are remembered. The least recently used one is evicted.
const maxTurns = 10_000

// Turns holds the shaper.Turns of the flows with a full queue. Each process has its own, so n
// processes give each slot to n clients. The clients that are then rejected again get another turn.
type Turns struct {
	mu    sync.Mutex
	flows *simplelru.LRU[string, *shaper.Turns]
}

// NewTurns returns turns of no flow.
func NewTurns() *Turns {
	flows, _ := simplelru.NewLRU[string, *shaper.Turns](maxTurns, nil) // fails only for sizes below 1
	return &Turns{flows: flows}
}

// Take returns how long a client should wait before it requests size slots of the flow again; 0 if
// that is unknown. flow is its name, or "" for a flow whose turns are not remembered.
func (t *Turns) Take(flow string, a shaper.Admission, size int64) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	of, known := t.flows.Get(flow)
	if !known {
		of = &shaper.Turns{}
	}
	if !known && flow != "" {
		t.flows.Add(flow, of)
	}
	if turn := of.Take(a, size, rand.Int64N); turn != 0 {
		return turn.Sub(a.Now)
	}
	return 0
}
