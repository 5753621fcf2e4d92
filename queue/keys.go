package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Key is an API key of a tenant, with a digest of its secret. Keys live in the shard of their
// tenant until they are revoked, an expired one until its tenant creates another a day later.
type Key struct {
	ID      string            // 28 characters of [0-9a-v]; names the shard, as the id of a job does
	Tenant  string            // as the client names it
	Name    string            // for people; may be empty
	Hash    [sha256.Size]byte // SHA-256 of the secret; zero in a list
	Created time.Time         // by the clock of the process that made it, to the millisecond
	Expires time.Time         // from then on it is refused, to the millisecond; zero: never
	Rights  *Rights           // nil: the default
	Used    time.Time         // the last use, as Keys.Used stored it; zero: none yet
}

// Expired reports whether the key has ended at that time.
func (k Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// Errors that callers distinguish with errors.Is.
var (
	// ErrUnknownKey means that the tenant has no such key.
	ErrUnknownKey = errors.New("queue: no such key")
	// ErrTooManyKeys means that the tenant has MaxKeys keys that have not expired.
	ErrTooManyKeys = errors.New("queue: the tenant has the most keys allowed")
)

const (
	// MaxKeys is how many keys a tenant may have that have not expired.
	MaxKeys = 100
	// expiredAge is how long an expired key stays in the list, to show why it is refused.
	expiredAge = 24 * time.Hour
)

// Keys stores the API keys of tenants. It is safe for concurrent use.
type Keys struct{ store *store.Store }

// Keys returns the API keys in the queue's store.
func (q *Queue) Keys() *Keys { return &Keys{q.store} }

// CreateKey stores a key with the tenant, name, hash, end and rights of k. A zero end means never.
// It returns the key with its id and creation. Errors: ErrTooManyKeys, ErrUnavailable; after the
// latter an unused key may be stored.
func (s *Keys) CreateKey(ctx context.Context, k Key) (Key, error) {
	shard, now := s.store.ShardOf(k.Tenant), time.Now()
	id, err := store.NewID(shard)
	if err != nil {
		return Key{}, err
	}
	tenant := k.Tenant
	k.ID, k.Created, k.Used = id, now.UTC().Truncate(time.Millisecond), time.Time{}
	fields := []any{
		"tenant", tenant, "name", k.Name, "hash", hex.EncodeToString(k.Hash[:]), "created", k.Created.UnixMilli(),
	}
	if rights := k.Rights.encode(); rights != "" {
		fields = append(fields, "rights", rights)
	}
	ends := math.Inf(1) // its score in the index
	if !k.Expires.IsZero() {
		k.Expires = k.Expires.UTC().Truncate(time.Millisecond)
		fields, ends = append(fields, "expires", k.Expires.UnixMilli()), float64(k.Expires.UnixMilli())
	}
	index := shard.Keys(store.EncodeName(tenant))
	// An expired key stays expired, so it may be read in one step and removed in the next.
	old, err := s.store.Fast.ZRangeByScore(ctx, index, &redis.ZRangeBy{
		Min: "-inf", Max: millis(now.Add(-expiredAge)),
	}).Result()
	if err != nil {
		return Key{}, store.Unavailable(err)
	}
	var active *redis.IntCmd
	if _, err := s.store.Durable.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, id := range old {
			p.Del(ctx, shard.Key(id))
			p.ZRem(ctx, index, id)
		}
		p.ZAdd(ctx, index, redis.Z{Score: ends, Member: id}) // first: no key works that is in no list
		p.HSet(ctx, shard.Key(id), fields...)
		active = p.ZCount(ctx, index, "("+millis(now), "+inf")
		return nil
	}); err != nil {
		return Key{}, store.Unavailable(err)
	}
	if active.Val() <= MaxKeys {
		return k, nil
	}
	// The count includes this key, so the bound holds with concurrent calls too.
	if err := s.dropKey(ctx, shard, tenant, id); err != nil {
		return Key{}, err
	}
	return Key{}, fmt.Errorf("%w: %d", ErrTooManyKeys, MaxKeys)
}

// ListKeys lists the keys of a tenant, the oldest first, without their hashes. An expired key is
// listed for at least a day. Errors: ErrUnavailable.
func (s *Keys) ListKeys(ctx context.Context, tenant string) ([]Key, error) {
	shard := s.store.ShardOf(tenant)
	ids, err := s.store.Reads.ZRange(ctx, shard.Keys(store.EncodeName(tenant)), 0, -1).Result()
	if err != nil || len(ids) == 0 {
		return nil, store.Unavailable(err)
	}
	slices.Sort(ids) // they begin with the time
	found, err := store.Pipeline(ctx, s.store.Reads, ids,
		func(p redis.Pipeliner, id string) *redis.MapStringStringCmd {
			return p.HGetAll(ctx, shard.Key(id))
		})
	if err != nil {
		return nil, err
	}
	keys := make([]Key, 0, len(ids))
	for i, id := range ids {
		k, err := keyOf(id, found[i])
		switch {
		case errors.Is(err, ErrUnknownKey): // revoked meanwhile
		case err != nil:
			return nil, err
		case k.Tenant == tenant:
			k.Hash = [sha256.Size]byte{}
			keys = append(keys, k)
		}
	}
	return keys, nil
}

// RevokeKey deletes a key of the tenant. Errors: ErrUnknownKey, ErrUnavailable.
func (s *Keys) RevokeKey(ctx context.Context, tenant, id string) error {
	k, err := s.FindKey(ctx, id)
	if errors.Is(err, ErrUnknownKey) {
		// An earlier call may have deleted it.
		if unsure := s.store.Confirm(ctx, s.store.ShardOf(tenant).Key(id)); unsure != nil {
			return unsure
		}
	}
	if err != nil {
		return err
	}
	if k.Tenant != tenant {
		return ErrUnknownKey
	}
	return s.dropKey(ctx, s.store.ShardOf(tenant), tenant, id)
}

func (s *Keys) dropKey(ctx context.Context, shard store.ShardKeys, tenant, id string) error {
	_, err := s.store.Durable.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, shard.Key(id))
		p.ZRem(ctx, shard.Keys(store.EncodeName(tenant)), id)
		return nil
	})
	return store.Unavailable(err)
}

// FindKey reads a key of any tenant, also one that has expired. An id of the wrong format costs no
// round trip. Errors: ErrUnknownKey, ErrUnavailable.
func (s *Keys) FindKey(ctx context.Context, id string) (Key, error) {
	shard, ok := s.store.ShardOfID(id)
	if !ok {
		return Key{}, ErrUnknownKey
	}
	fields, err := s.store.Fast.HGetAll(ctx, shard.Key(id)).Result()
	if err != nil {
		return Key{}, store.Unavailable(err)
	}
	return keyOf(id, fields)
}

// Use is a use of a key.
type Use struct {
	ID string
	At time.Time
}

// Used stores uses of keys, in one exchange. Those of keys that are gone have no effect. It works
// on a full store, too. Errors: ErrUnavailable.
func (s *Keys) Used(ctx context.Context, uses []Use) error {
	byShard := map[string]*scripts.UsedCall{}
	var calls []*scripts.UsedCall
	for _, u := range uses {
		shard, ok := s.store.ShardOfID(u.ID)
		if !ok {
			continue
		}
		c := byShard[shard.Clock()]
		if c == nil {
			c = &scripts.UsedCall{Clock: shard.Clock()}
			byShard[c.Clock], calls = c, append(calls, c)
		}
		c.Keys, c.At = append(c.Keys, shard.Key(u.ID)), append(c.At, u.At)
	}
	_, err := store.InvokeAll(ctx, s.store, s.store.Fast, calls,
		func(c *scripts.UsedCall, values []any) (int64, error) { return c.Decode(values) })
	return err
}

// keyOf decodes a stored key. An unreadable one is an error, so it is refused.
func keyOf(id string, fields map[string]string) (Key, error) {
	if len(fields) == 0 {
		return Key{}, ErrUnknownKey
	}
	k := Key{ID: id, Tenant: fields["tenant"], Name: fields["name"]}
	sum, err := hex.DecodeString(fields["hash"])
	created, noTime := strconv.ParseInt(fields["created"], 10, 64)
	if text, expires := fields["expires"]; expires {
		ends, noEnd := strconv.ParseInt(text, 10, 64)
		k.Expires, noTime = time.UnixMilli(ends).UTC(), errors.Join(noTime, noEnd)
	}
	if text, used := fields["used"]; used {
		at, noUse := strconv.ParseInt(text, 10, 64)
		k.Used, noTime = time.UnixMilli(at).UTC(), errors.Join(noTime, noUse)
	}
	var noRights error
	k.Rights, noRights = rightsOf(fields["rights"])
	if err = errors.Join(err, noTime, noRights); err != nil || len(sum) != len(k.Hash) || k.Tenant == "" {
		return Key{}, fmt.Errorf("%w: a stored key cannot be read by this version: it has the fields %v",
			store.ErrSchema, slices.Sorted(maps.Keys(fields)))
	}
	copy(k.Hash[:], sum)
	k.Created = time.UnixMilli(created).UTC()
	return k, nil
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }
