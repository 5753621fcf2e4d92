package operators

import (
	"context"
	"maps"
	"sync"
	"time"
)

const (
	// fresh is how old what was read of the store may be: a token that another process revoked is
	// refused within this time.
	fresh = time.Second
	// AwayAge is how long tokens that were read of the store stay valid while it is unavailable.
	AwayAge = 10 * time.Minute
	// readWait bounds one call of the store.
	readWait = time.Second
	// usedEvery is how often a process stores the last use of a token.
	usedEvery = 30 * time.Second
)

// Accounts stores accounts; Store does.
type Accounts interface {
	CreateOperator(ctx context.Context, a Account) error
	RevokeOperator(ctx context.Context, id string) (Account, error)
	ListOperators(ctx context.Context) ([]Account, error)
	UseOperator(ctx context.Context, id string, at time.Time) error
}

// Ring finds accounts. It caches all of them, so that a known token costs no call of the store, and
// a flood of invented ones costs few.
type Ring struct {
	store Accounts

	mu     sync.Mutex // held during a read of the store
	read   time.Time  // when the read began of which the accounts are
	failed time.Time  // when the last read failed; zero if it did not
	err    error
	known  map[string]Account
	used   map[string]time.Time // when this process stored the last use
}

// NewRing returns the accounts of a store.
func NewRing(s Accounts) *Ring { return &Ring{store: s, used: map[string]time.Time{}} }

// Find returns the account with this id in the state of at most a second ago. For an id that is not
// cached it calls look, and then reads the store again. An error of look is returned as it is.
// Errors: ErrUnknown, and those of the store where it was last read more than AwayAge ago.
func (r *Ring) Find(ctx context.Context, id string, look func() error) (Account, error) {
	now := time.Now()
	if a, found, err := r.find(ctx, id, now.Add(-fresh)); found || err != nil {
		return a, err
	}
	if err := look(); err != nil {
		return Account{}, err
	}
	a, found, err := r.find(ctx, id, now)
	if err == nil && !found {
		err = ErrUnknown
	}
	return a, err
}

// find looks in accounts that were read since the instant, or later.
func (r *Ring) find(ctx context.Context, id string, since time.Time) (a Account, found bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.read.After(since) && now.Sub(r.failed) >= fresh {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWait)
		defer cancel()
		var all []Account
		if all, r.err = r.store.ListOperators(ctx); r.err != nil {
			r.failed = time.Now() // not tried again for a while, because each try may take readWait
		} else {
			r.read, r.failed, r.known = now, time.Time{}, map[string]Account{}
			for _, a := range all {
				r.known[a.ID] = a
			}
			maps.DeleteFunc(r.used, func(id string, _ time.Time) bool { return r.known[id].ID == "" })
		}
	}
	a, found = r.known[id]
	if !r.read.After(since) && r.err != nil && (!found || now.Sub(r.read) >= AwayAge) { // so the last read failed
		return Account{}, false, r.err
	}
	return a, found, nil
}

// Create stores an account, which this process knows at once.
func (r *Ring) Create(ctx context.Context, a Account) error {
	if err := r.store.CreateOperator(ctx, a); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known != nil {
		r.known[a.ID] = a
	}
	return nil
}

// Revoke deletes an account and returns it. This process refuses its token from then on, others
// within a second.
func (r *Ring) Revoke(ctx context.Context, id string) (Account, error) {
	a, err := r.store.RevokeOperator(ctx, id)
	if err != nil {
		return Account{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, id)
	delete(r.used, id)
	return a, nil
}

// List returns all accounts, the oldest first.
func (r *Ring) List(ctx context.Context) ([]Account, error) { return r.store.ListOperators(ctx) }

// Use notes that a token was used. The store has it once in half a minute.
func (r *Ring) Use(ctx context.Context, a Account) {
	now := time.Now()
	r.mu.Lock()
	due := now.Sub(a.Used) >= usedEvery && now.Sub(r.used[a.ID]) >= usedEvery
	if due {
		r.used[a.ID] = now
	}
	r.mu.Unlock()
	if due {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), readWait)
		defer cancel()
		_ = r.store.UseOperator(ctx, a.ID, now) // it is only shown
	}
}
