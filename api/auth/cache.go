package auth

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/7509e464/sluice/queue"
)

const (
	keyAge        = time.Second     // how old an answer of the store may be
	lookupTimeout = 2 * time.Second // of one lookup in the store, which many requests may wait for
	cacheMost     = 10_000          // answers of each kind that are cached
)

// keyCache caches lookups of the store for a second, and shares a lookup among concurrent requests.
// Known and unknown keys have separate caches, so that a flood of invented ids evicts no real key.
type keyCache struct {
	store KeyStore

	mu      sync.Mutex
	asked   map[string]*lookup // lookups in flight; at most one per waiting request
	known   *simplelru.LRU[string, *lookup]
	unknown *simplelru.LRU[string, *lookup]
}

// lookup is one lookup in the store.
type lookup struct {
	began time.Time // before the call of the store, so that the answer is never older than it seems
	done  chan struct{}
	key   queue.Key // as err, once done is closed
	err   error
}

func newKeyCache(store KeyStore) *keyCache {
	known, _ := simplelru.NewLRU[string, *lookup](cacheMost, nil) // fails only for sizes below 1
	unknown, _ := simplelru.NewLRU[string, *lookup](cacheMost, nil)
	return &keyCache{store: store, asked: map[string]*lookup{}, known: known, unknown: unknown}
}

// find returns the key in the state of at most a second ago.
func (c *keyCache) find(ctx context.Context, id string) (queue.Key, error) {
	l := c.lookup(ctx, id)
	select {
	case <-l.done:
		return l.key, l.err
	case <-ctx.Done():
		return queue.Key{}, ctx.Err()
	}
}

// lookup returns a cached answer or a lookup in flight that is young enough, or starts one.
func (c *keyCache) lookup(ctx context.Context, id string) *lookup {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	known, _ := c.known.Get(id)
	unknown, _ := c.unknown.Get(id)
	for _, l := range []*lookup{known, unknown, c.asked[id]} {
		if l != nil && now.Sub(l.began) < keyAge {
			return l
		}
	}
	l := &lookup{began: now, done: make(chan struct{})}
	c.asked[id] = l
	// The first client may disconnect while others wait for the answer.
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
	if c.asked[id] == l { // else a younger lookup has replaced it
		delete(c.asked, id)
	}
	switch {
	case l.err == nil:
		remember(c.known, id, l)
	case errors.Is(l.err, queue.ErrUnknownKey):
		remember(c.unknown, id, l)
	}
}

// remember caches the answer, unless a younger one is cached: answers may arrive out of order.
func remember(answers *simplelru.LRU[string, *lookup], id string, l *lookup) {
	if have, known := answers.Peek(id); !known || have.began.Before(l.began) {
		answers.Add(id, l)
	}
}
