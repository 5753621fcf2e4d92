package limiter

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/7509e464/sluice/shaper"
)

// MemoryStore is a Store in this process alone: a Memory for each rule. A restart forgets
// everything.
type MemoryStore struct {
	most int

	mu    sync.Mutex
	rules map[string]*Memory // by name; one with another policy than that of the request is from before a change
}

// NewMemoryStore returns a store that holds at most the given number of keys of each rule: see
// Memory for what happens at the bound. The error is of type shaper.Problems.
func NewMemoryStore(most int) (*MemoryStore, error) {
	if most < 1 {
		return nil, shaper.Problems{{
			Field: "most", Value: fmt.Sprint(most), Rule: "must be a whole number of at least 1",
		}}
	}
	return &MemoryStore{most: most, rules: map[string]*Memory{}}, nil
}

// Take implements Store. The error is that of a policy that is not legal, of type shaper.Problems.
func (s *MemoryStore) Take(_ context.Context, r Rule, key string, cost int64) (Decision, error) {
	m, err := s.memory(r)
	if err != nil {
		return Decision{}, err
	}
	return m.Take(key, cost), nil
}

// Clear implements Store.
func (s *MemoryStore) Clear(_ context.Context, r Rule, key string) (bool, error) {
	m, err := s.memory(r)
	if err != nil {
		return false, err
	}
	return m.Clear(key), nil
}

// Blocked implements Store.
func (s *MemoryStore) Blocked(_ context.Context, r Rule, most int) ([]Blocked, error) {
	m, err := s.memory(r)
	if err != nil {
		return nil, err
	}
	list := m.Blocked()
	return list[:max(0, min(len(list), most))], nil
}

// memory is that of the rule, a new one if its policy has changed.
func (s *MemoryStore) memory(r Rule) (*Memory, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.rules[r.Name]; m != nil && m.policy == r.Policy {
		return m, nil
	}
	m, err := NewMemory(r.Policy, s.most)
	if err != nil {
		return nil, err
	}
	s.rules[r.Name] = m
	return m, nil
}

// Clear deletes the state of the key, and with it a block. It reports whether there was any.
func (m *Memory) Clear(key string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, known := m.keys[key]
	if !known {
		return false
	}
	m.remove(h)
	return true
}

// Blocked lists the keys that are blocked, those that are free soonest first. It reads all keys.
func (m *Memory) Blocked() []Blocked {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []Blocked
	now := m.now()
	for key, h := range m.keys {
		if left := until(h.state.Until, now); left > 0 {
			list = append(list, Blocked{Key: key, Left: left})
		}
	}
	slices.SortFunc(list, func(a, b Blocked) int {
		return cmp.Or(cmp.Compare(a.Left, b.Left), cmp.Compare(a.Key, b.Key))
	})
	return list
}
