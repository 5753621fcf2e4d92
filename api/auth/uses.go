package auth

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
)

const (
	usesEvery   = time.Second     // between two looks at what is to be stored
	useAge      = time.Minute     // between two stored uses of one key
	usesTimeout = 5 * time.Second // of one exchange with the store
	usesMost    = 500             // keys of one exchange
)

// uses stores when API keys were used, in the background. A first use is stored within about a
// second, later ones within a minute.
type uses struct {
	store KeyStore
	log   *slog.Logger

	mu   sync.Mutex
	keys map[string]*use
}

// use is what is known of the uses of a key.
type use struct {
	last   time.Time // the last use
	sent   time.Time // when a use was last sent to the store
	stored time.Time // the use that was sent then
}

func newUses(store KeyStore, log *slog.Logger) *uses {
	return &uses{store: store, log: log, keys: map[string]*use{}}
}

// note records that the key is used now.
func (u *uses) note(id string) {
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	k := u.keys[id]
	if k == nil {
		k = new(use)
		u.keys[id] = k
	}
	k.last = now
}

// due returns the uses to be stored now, and forgets keys that were not used for a minute. With all
// true it returns those that were stored within a minute, too.
func (u *uses) due(now time.Time, all bool) (out []queue.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for id, k := range u.keys {
		switch late := now.Sub(k.sent) >= useAge; {
		case k.last.Equal(k.stored):
			if late {
				delete(u.keys, id)
			}
		case late || all:
			k.sent, k.stored = now, k.last
			out = append(out, queue.Use{ID: id, At: k.last})
		}
	}
	return out
}

// run stores uses until ctx ends, and then those that are left.
func (u *uses) run(ctx context.Context) {
	tick := time.NewTicker(usesEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			u.send(ctx, u.due(time.Now(), false))
		case <-ctx.Done():
			u.send(context.WithoutCancel(ctx), u.due(time.Now(), true))
			return
		}
	}
}

// send stores uses. What fails is sent again a minute later.
func (u *uses) send(ctx context.Context, list []queue.Use) {
	for len(list) > 0 {
		n := min(usesMost, len(list))
		limited, cancel := context.WithTimeout(ctx, usesTimeout)
		err := u.store.Used(limited, list[:n])
		cancel()
		if err != nil {
			u.log.Debug("the last use of API keys was not stored", "error", err)
			u.keep(list)
			return
		}
		list = list[n:]
	}
}

// keep has uses stored later that could not be stored now.
func (u *uses) keep(list []queue.Use) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, use := range list {
		if k := u.keys[use.ID]; k != nil {
			k.stored = time.Time{}
		}
	}
}
