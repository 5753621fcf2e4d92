package queue

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// MaxNotBefore bounds the tenants and subjects whose older tokens are refused.
const MaxNotBefore = 10_000

// ErrTooManyRevocations means that MaxNotBefore is reached.
var ErrTooManyRevocations = errors.New("queue: the most revocations allowed")

// Tokens stores from which instant on the tokens of tenants and of their subjects are accepted. It
// is safe for concurrent use.
type Tokens struct{ store *store.Store }

// Tokens returns the revocations of tokens in the queue's store.
func (q *Queue) Tokens() *Tokens { return &Tokens{q.store} }

// NotBefore is the instants from which tokens are accepted, by tenant, or by tenant and subject.
type NotBefore map[string]time.Time

// Of returns the instant for a subject of a tenant; zero without one.
func (n NotBefore) Of(tenant, subject string) time.Time {
	at := n[tenant]
	if of := n[subjectField(tenant, subject)]; of.After(at) {
		return of
	}
	return at
}

// subjectField names a subject of a tenant, or with an empty one the tenant. No name of a tenant
// has a NUL.
func subjectField(tenant, subject string) string {
	if subject == "" {
		return tenant
	}
	return tenant + "\x00" + subject
}

// revision is the field that changes with every other one. No tenant has the empty name.
const revisionField = ""

// RevokeTokens has tokens of the tenant refused that were issued before the instant: of one
// subject, or of all if subject is empty. It returns the instant in force, which may be a later one
// of before. Errors: ErrTooManyRevocations, ErrUnavailable.
func (t *Tokens) RevokeTokens(ctx context.Context, tenant, subject string, at time.Time) (time.Time, error) {
	field, at := subjectField(tenant, subject), at.UTC().Truncate(time.Millisecond)
	found, err := t.store.Fast.HGet(ctx, store.TokensKey, field).Result()
	switch {
	case errors.Is(err, redis.Nil):
		n, err := t.store.Fast.HLen(ctx, store.TokensKey).Result()
		if err != nil {
			return time.Time{}, store.Unavailable(err)
		}
		if n > MaxNotBefore {
			return time.Time{}, ErrTooManyRevocations
		}
	case err != nil:
		return time.Time{}, store.Unavailable(err)
	default:
		if before, err := instantOf(found); err == nil && before.After(at) {
			at = before
		}
	}
	_, err = t.store.Durable.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HSet(ctx, store.TokensKey, field, at.UnixMilli())
		p.HIncrBy(ctx, store.TokensKey, revisionField, 1)
		return nil
	})
	return at, store.Unavailable(err)
}

// erase deletes the instants of a tenant and of its subjects, and returns how many there were.
func (t *Tokens) erase(ctx context.Context, tenant string) (n int64, err error) {
	all, err := t.store.Patient.HKeys(ctx, store.TokensKey).Result()
	if err != nil {
		return 0, store.Unavailable(err)
	}
	of := slices.DeleteFunc(all, func(field string) bool {
		return field != tenant && !strings.HasPrefix(field, tenant+"\x00")
	})
	if len(of) == 0 {
		return 0, nil
	}
	_, err = t.store.Patient.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.HDel(ctx, store.TokensKey, of...)
		p.HIncrBy(ctx, store.TokensKey, revisionField, 1)
		return nil
	})
	return int64(len(of)), store.Unavailable(err)
}

// NotBefore returns the instants in force with their revision. While the revision is the known one,
// it returns no list. Errors: ErrUnavailable.
func (t *Tokens) NotBefore(ctx context.Context, known string) (revision string, list NotBefore, err error) {
	revision, err = t.store.Reads.HGet(ctx, store.TokensKey, revisionField).Result()
	switch {
	case errors.Is(err, redis.Nil):
		revision = "0"
	case err != nil:
		return "", nil, store.Unavailable(err)
	}
	if revision == known {
		return known, nil, nil
	}
	fields, err := t.store.Reads.HGetAll(ctx, store.TokensKey).Result()
	if err != nil {
		return "", nil, store.Unavailable(err)
	}
	list = NotBefore{}
	for field, text := range fields {
		if field == revisionField {
			revision = text
			continue
		}
		if list[field], err = instantOf(text); err != nil {
			return "", nil, err
		}
	}
	return revision, list, nil
}

func instantOf(millis string) (time.Time, error) {
	n, err := strconv.ParseInt(millis, 10, 64)
	return time.UnixMilli(n).UTC(), err
}
