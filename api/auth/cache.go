package auth

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/7509e464/sluice/queue/keystore"
)

const (
	keyAge        = time.Second     // how old an answer of the store may be
	lookupTimeout = 2 * time.Second // of one question to the store, which many requests may wait for
	cacheMost     = 10_000          // answers of each kind that are remembered
)

// keyCache remembers for a second what the store said of an id, and asks it once for all who want
// to know at the same time. Keys that exist are remembered apart from those that do not, so that a
// flood of ids that were never made pushes out nothing that is of use.
type keyCache struct {
	store KeyStore

	mu      sync.Mutex
	asked   map[string]*lookup // questions under way; as many as requests that wait, at the most
	known   *simplelru.LRU[string, *lookup]
	unknown *simplelru.LRU[string, *lookup]
}

// lookup is one question to the store.
type lookup struct {
	began time.Time // before the store was asked: nothing said after it can be missing in the answer by more than its age
	done  chan struct{}
	key   keystore.Key // as err, once done is closed
	err   error
}

func newKeyCache(store KeyStore) *keyCache {
	known, _ := simplelru.NewLRU[string, *lookup](cacheMost, nil) // fails only for sizes below 1
	unknown, _ := simplelru.NewLRU[string, *lookup](cacheMost, nil)
	return &keyCache{store: store, asked: map[string]*lookup{}, known: known, unknown: unknown}
}

// find returns the key as the store had it at most a second ago.
func (c *keyCache) find(ctx context.Context, id string) (keystore.Key, error) {
	l := c.lookup(ctx, id)
	select {
	case <-l.done:
		return l.key, l.err
	case <-ctx.Done():
		return keystore.Key{}, ctx.Err()
	}
}

// lookup is an answer that is young enough, a question that is, or a new one.
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
		remember(c.known, id, l)
	case errors.Is(l.err, keystore.ErrUnknownKey):
		remember(c.unknown, id, l)
	}
}

// remember stores the answer, unless a younger one is there: answers may arrive out of order.
func remember(answers *simplelru.LRU[string, *lookup], id string, l *lookup) {
	if have, known := answers.Peek(id); !known || have.began.Before(l.began) {
		answers.Add(id, l)
	}
}
