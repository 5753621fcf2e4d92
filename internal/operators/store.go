package operators

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// Errors that callers distinguish with errors.Is.
var (
	// ErrUnknown means that there is no such operator.
	ErrUnknown = errors.New("operators: no such operator")
	// ErrExists means that an operator has the name.
	ErrExists = errors.New("operators: an operator has this name")
	// ErrTooMany means that there are MaxAccounts operators.
	ErrTooMany = errors.New("operators: the maximum number of operators")
)

const (
	// MaxAccounts bounds the operators. Each process reads all of them at once.
	MaxAccounts = 1000
	// expiredAge is how long an expired account stays in the list, to show why it is refused.
	expiredAge = 24 * time.Hour
	// maxChanges is how often a change is tried while others change the accounts.
	maxChanges = 10
)

// Store stores the accounts in Redis, for all processes. It is safe for concurrent use.
type Store struct{ store *store.Store }

// NewStore returns the accounts in the store of a queue.
func NewStore(s *store.Store) Store { return Store{s} }

// stored is an account as JSON.
type stored struct {
	Name     string         `json:"name"`
	Role     Role           `json:"role"`
	Hash     string         `json:"hash"`
	Created  int64          `json:"created"` // Unix milliseconds
	By       string         `json:"by"`
	Expires  int64          `json:"expires,omitempty"` // Unix milliseconds
	Networks []netip.Prefix `json:"networks,omitempty"`
}

// CreateOperator stores an account. It deletes those that expired more than a day ago. Errors:
// ErrExists, ErrTooMany, store.ErrUnavailable; after the latter the account may be stored.
func (s Store) CreateOperator(ctx context.Context, a Account) error {
	now := time.Now()
	record := stored{
		Name: a.Name, Role: a.Role, Hash: hex.EncodeToString(a.Hash[:]), Created: a.Created.UnixMilli(), By: a.By,
		Networks: a.Networks,
	}
	if !a.Expires.IsZero() {
		record.Expires = a.Expires.UnixMilli()
	}
	text, err := json.Marshal(record)
	if err != nil {
		return fmt.Errorf("operators: encode: %w", err)
	}
	return s.change(ctx, func(all []Account, p redis.Pipeliner) error {
		kept := 0
		for _, have := range all {
			if have.Expired(now.Add(-expiredAge)) {
				drop(ctx, p, have.ID)
				continue
			}
			if kept++; have.Name == a.Name {
				return ErrExists
			}
		}
		if kept >= MaxAccounts {
			return fmt.Errorf("%w: %d", ErrTooMany, MaxAccounts)
		}
		p.HSet(ctx, store.OperatorsKey, a.ID, text)
		return nil
	})
}

// RevokeOperator deletes an account and returns it. Errors: ErrUnknown, store.ErrUnavailable.
func (s Store) RevokeOperator(ctx context.Context, id string) (revoked Account, err error) {
	err = s.change(ctx, func(all []Account, p redis.Pipeliner) error {
		i := slices.IndexFunc(all, func(a Account) bool { return a.ID == id })
		if i < 0 {
			return ErrUnknown
		}
		revoked = all[i]
		drop(ctx, p, id)
		return nil
	})
	if errors.Is(err, ErrUnknown) {
		// An earlier call may have deleted it.
		if unsure := s.store.Confirm(ctx, store.OperatorsKey); unsure != nil {
			return Account{}, unsure
		}
	}
	return revoked, err
}

func drop(ctx context.Context, p redis.Pipeliner, id string) {
	p.HDel(ctx, store.OperatorsKey, id)
	p.HDel(ctx, store.OperatorsUsedKey, id)
}

// change sends the commands that decide adds, unless the accounts change meanwhile: then it decides
// again.
func (s Store) change(ctx context.Context, decide func(all []Account, p redis.Pipeliner) error) error {
	once := func(tx *redis.Tx) error {
		fields, err := tx.HGetAll(ctx, store.OperatorsKey).Result()
		if err != nil {
			return err
		}
		all, err := accountsOf(fields, nil)
		if err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return decide(all, p) })
		return err
	}
	var err error
	for range maxChanges {
		if err = s.store.Fast.Watch(ctx, once, store.OperatorsKey); !errors.Is(err, redis.TxFailedErr) {
			break
		}
	}
	switch {
	case err == nil:
		return s.store.Confirm(ctx, store.OperatorsKey)
	case errors.Is(err, ErrUnknown), errors.Is(err, ErrExists), errors.Is(err, ErrTooMany), errors.Is(err, store.ErrSchema):
		return err
	default:
		return store.Unavailable(fmt.Errorf("operators: change: %w", err))
	}
}

// ListOperators returns all accounts, the oldest first. Errors: store.ErrUnavailable.
func (s Store) ListOperators(ctx context.Context) ([]Account, error) {
	var all, used *redis.MapStringStringCmd
	if _, err := s.store.Fast.Pipelined(ctx, func(p redis.Pipeliner) error {
		all, used = p.HGetAll(ctx, store.OperatorsKey), p.HGetAll(ctx, store.OperatorsUsedKey)
		return nil
	}); err != nil {
		return nil, store.Unavailable(err)
	}
	return accountsOf(all.Val(), used.Val())
}

// UseOperator stores that a token was used at that time. Errors: store.ErrUnavailable.
func (s Store) UseOperator(ctx context.Context, id string, at time.Time) error {
	return store.Unavailable(s.store.Fast.HSet(ctx, store.OperatorsUsedKey, id, at.UnixMilli()).Err())
}

// accountsOf decodes accounts and the times of their last uses. An unreadable account is an error:
// what it allows is not known.
func accountsOf(fields, used map[string]string) ([]Account, error) {
	all := make([]Account, 0, len(fields))
	for id, text := range fields {
		var r stored
		err := json.Unmarshal([]byte(text), &r)
		sum, noHash := hex.DecodeString(r.Hash)
		if err = errors.Join(err, noHash); err != nil || len(sum) != sha256.Size || r.Name == "" || !r.Role.May(Viewer) {
			return nil, fmt.Errorf("%w: the stored operator %s cannot be read by this version", store.ErrSchema, id)
		}
		a := Account{ID: id, Name: r.Name, Role: r.Role, Created: time.UnixMilli(r.Created).UTC(), By: r.By,
			Networks: r.Networks}
		copy(a.Hash[:], sum)
		if r.Expires != 0 {
			a.Expires = time.UnixMilli(r.Expires).UTC()
		}
		if at, err := strconv.ParseInt(used[id], 10, 64); err == nil {
			a.Used = time.UnixMilli(at).UTC()
		}
		all = append(all, a)
	}
	slices.SortFunc(all, func(a, b Account) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	})
	return all, nil
}
