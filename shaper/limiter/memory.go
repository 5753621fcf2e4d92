package limiter

import (
	"container/heap"
	"fmt"
	"sync"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Memory applies one policy to many keys, in this process alone. It is safe for concurrent use. A
// key expires once its state is that of a fresh one, so it holds only the keys in use.
//
// The number of keys is bounded. At the bound, a new key replaces the one that would have expired
// soonest, which may then exceed its limit by its former use. Displaced counts these. A bound above
// the keys used within one Reset keeps it at 0.
type Memory struct {
	policy Policy
	most   int
	// began has a monotonic part, which makes the clock: a step of the wall clock neither frees nor
	// blocks a key.
	began time.Time

	mu        sync.Mutex
	keys      map[string]*held
	soonest   byReset
	displaced int64
}

// held is a key in use.
type held struct {
	key   string
	state State
	reset shaper.Instant // when it is as if never used
	index int            // in the heap
}

// NewMemory returns a limiter that holds at most the given number of keys. The error is of type
// shaper.Problems.
func NewMemory(p Policy, most int) (*Memory, error) {
	var ps shaper.Problems
	if problems, found := p.Validate().(shaper.Problems); found {
		ps = problems
	}
	if most < 1 {
		ps = append(ps, shaper.Problem{
			Field: "most", Value: fmt.Sprint(most), Rule: "must be a whole number of at least 1",
		})
	}
	if err := ps.Err(); err != nil {
		return nil, err
	}
	return &Memory{policy: p, most: most, began: time.Now(), keys: map[string]*held{}}, nil
}

// Take decides on one request of the key, now.
func (m *Memory) Take(key string, cost int64) Decision {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := m.now()
	m.forget(now)
	h, known := m.keys[key]
	if !known {
		h = &held{key: key}
	}
	d := h.state.Take(m.policy, now, cost)
	h.reset = now.Add(d.Reset)
	switch {
	case known:
		heap.Fix(&m.soonest, h.index)
	case d.Reset > 0:
		if len(m.keys) >= m.most {
			m.displaced++
			m.drop()
		}
		m.keys[key] = h
		heap.Push(&m.soonest, h)
	}
	return d
}

// now is the instant. It is read under the lock, so that no key sees instants out of order.
func (m *Memory) now() shaper.Instant { return shaper.InstantOf(m.began).Add(time.Since(m.began)) }

// forget drops up to two keys that are as if never used: one more than a call may add, so that they
// become fewer.
func (m *Memory) forget(now shaper.Instant) {
	for range 2 {
		if len(m.soonest) == 0 || m.soonest[0].reset > now {
			return
		}
		m.drop()
	}
}

// drop forgets the key that comes first.
func (m *Memory) drop() { m.remove(m.soonest[0]) }

func (m *Memory) remove(h *held) {
	heap.Remove(&m.soonest, h.index)
	delete(m.keys, h.key)
}

// Keys returns the number of keys in memory.
func (m *Memory) Keys() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.keys)
}

// Displaced returns the number of keys that new ones have replaced because of the bound.
func (m *Memory) Displaced() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.displaced
}

// byReset is a heap of keys, the one that is soonest as if never used first.
type byReset []*held

func (b byReset) Len() int           { return len(b) }
func (b byReset) Less(i, j int) bool { return b[i].reset < b[j].reset }

func (b byReset) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].index, b[j].index = i, j
}

func (b *byReset) Push(x any) {
	h := x.(*held)
	h.index = len(*b)
	*b = append(*b, h)
}

func (b *byReset) Pop() any {
	old := *b
	h := old[len(old)-1]
	old[len(old)-1] = nil
	*b = old[:len(old)-1]
	return h
}
