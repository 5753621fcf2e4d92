package auth

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
)

const (
	keyAge        = time.Second     // how old an answer of the store may be
	lookupTimeout = 2 * time.Second // of one question to the store, which many requests may wait for
	cacheMost     = 10_000          // answers of each kind that are remembered, at most twice as many
)

// keyCache remembers for a second what the store said of an id, and asks it once for all who want to know at the same time. Keys that exist
// are remembered apart from those that do not, so that a flood of ids that were never made pushes out nothing that is of use.
type keyCache struct {
	store KeyStore

	mu      sync.Mutex
	asked   map[string]*lookup // questions under way; as many as requests that wait, at the most
	known   generations
	unknown generations
}

// lookup is one question to the store.
type lookup struct {
	began time.Time // before the store was asked: nothing said after it can be missing in the answer by more than its age
	done  chan struct{}
	key   queue.Key // as err, once done is closed
	err   error
}

func newKeyCache(store KeyStore) *keyCache {
	return &keyCache{store: store, asked: map[string]*lookup{}}
}

// find returns the key as the store had it at most a second ago.
func (c *keyCache) find(ctx context.Context, id string) (queue.Key, error) {
	l := c.lookup(ctx, id)
	select {
	case <-l.done:
		return l.key, l.err
	case <-ctx.Done():
		return queue.Key{}, ctx.Err()
	}
}

// lookup is an answer that is young enough, a question that is, or a new one.
func (c *keyCache) lookup(ctx context.Context, id string) *lookup {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range []*lookup{c.known.get(id), c.unknown.get(id), c.asked[id]} {
		if l != nil && now.Sub(l.began) < keyAge {
			return l
		}
	}
	l := &lookup{began: now, done: make(chan struct{})}
	c.asked[id] = l
	// The client that happened to come first may leave, the others still want the answer.
	go c.ask(context.WithoutCancel(ctx), id, l)
	return l
}

func (c *keyCache) ask(ctx context.Context, id string, l *lookup) {
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	l.key, l.err = c.store.FindKey(ctx, id)
	c.mu.Lock()
	defer c.mu.Unlock()
	close(l.done)
	if c.asked[id] == l { // else a younger question has taken its place
		delete(c.asked, id)
	}
	switch {
	case l.err == nil:
		c.known.put(id, l)
	case errors.Is(l.err, queue.ErrUnknownKey):
		c.unknown.put(id, l)
	}
}

// generations is a bounded map whose old entries go all at once: when the young generation is full or old enough, the one before is dropped.
type generations struct {
	young, old map[string]*lookup
	since      time.Time
}

// get is the younger of the two answers that there may be.
func (g *generations) get(id string) *lookup {
	if l := g.young[id]; l != nil {
		return l
	}
	return g.old[id]
}

func (g *generations) put(id string, l *lookup) {
	if g.young == nil || len(g.young) >= cacheMost || l.began.Sub(g.since) >= keyAge {
		g.young, g.old, g.since = map[string]*lookup{}, g.young, l.began
	}
	// An answer that was long on its way must not hide a younger one.
	if have := g.get(id); have == nil || have.began.Before(l.began) {
		g.young[id] = l
	}
}
