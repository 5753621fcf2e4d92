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
)

// Key is an API key of a tenant, with a digest of its secret. Keys live in the shard of their
// tenant until they are revoked, an expired one until its tenant creates another a day later.
type Key struct {
	ID      string // 28 characters of [0-9a-v]; names the shard, as the id of a job does
	Tenant  string
	Name    string            // for people; may be empty
	Hash    [sha256.Size]byte // SHA-256 of the secret; zero in a list
	Created time.Time         // by the clock of the process that made it, to the millisecond
	Expires time.Time         // from then on it opens nothing, to the millisecond; zero: never
}

// Expired reports whether the key has ended at that time.
func (k Key) Expired(now time.Time) bool { return !k.Expires.IsZero() && !now.Before(k.Expires) }

// Errors of API keys that callers tell apart with errors.Is.
var (
	// ErrUnknownKey means that the tenant has no such key.
	ErrUnknownKey = errors.New("queue: no such key")
	// ErrTooManyKeys means that the tenant has MaxKeys keys that have not expired.
	ErrTooManyKeys = errors.New("queue: the tenant has as many keys as it may have")
)

const (
	// MaxKeys is how many keys a tenant may have that have not expired.
	MaxKeys = 100
	// expiredKept is how long an expired key stays in the list, to show why it is refused.
	expiredKept = 24 * time.Hour
)

// CreateKey stores a key of the tenant, given the SHA-256 of its secret. A zero expires means
// never. Errors: ErrTooManyKeys, ErrUnavailable; after the latter a key of no use may be stored.
func (q *Queue) CreateKey(ctx context.Context, tenant, name string, hash [sha256.Size]byte, expires time.Time) (Key, error) {
	shard, now := q.keys.ShardOf(tenant), time.Now()
	id, err := newID(shard.Index)
	if err != nil {
		return Key{}, err
	}
	k := Key{ID: id, Tenant: tenant, Name: name, Hash: hash, Created: now.UTC().Truncate(time.Millisecond)}
	fields := []any{"tenant", tenant, "name", name, "hash", hex.EncodeToString(hash[:]), "created", k.Created.UnixMilli()}
	ends := math.Inf(1) // its score in the index
	if !expires.IsZero() {
		k.Expires = expires.UTC().Truncate(time.Millisecond)
		fields, ends = append(fields, "expires", k.Expires.UnixMilli()), float64(k.Expires.UnixMilli())
	}
	index := shard.Keys(EncodeName(tenant))
	// An expired key stays expired, so it may be read in one step and removed in the next.
	old, err := q.engine.fast.ZRangeByScore(ctx, index, &redis.ZRangeBy{Min: "-inf", Max: millis(now.Add(-expiredKept))}).Result()
	if err != nil {
		return Key{}, unavailable(err)
	}
	var active *redis.IntCmd
	if _, err := q.engine.fast.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for _, id := range old {
			p.Del(ctx, shard.Key(id))
			p.ZRem(ctx, index, id)
		}
		p.HSet(ctx, shard.Key(id), fields...)
		p.ZAdd(ctx, index, redis.Z{Score: ends, Member: id})
		active = p.ZCount(ctx, index, "("+millis(now), "+inf")
		return nil
	}); err != nil {
		return Key{}, unavailable(err)
	}
	if active.Val() <= MaxKeys {
		return k, nil
	}
	// The count includes this key, so the bound holds with concurrent calls too.
	if err := q.dropKey(ctx, shard, tenant, id); err != nil {
		return Key{}, err
	}
	return Key{}, fmt.Errorf("%w: %d", ErrTooManyKeys, MaxKeys)
}

// Keys lists the keys of a tenant, the oldest first, without their hashes. An expired key is listed
// for at least a day. Errors: ErrUnavailable.
func (q *Queue) Keys(ctx context.Context, tenant string) ([]Key, error) {
	shard := q.keys.ShardOf(tenant)
	ids, err := q.engine.fast.ZRange(ctx, shard.Keys(EncodeName(tenant)), 0, -1).Result()
	if err != nil || len(ids) == 0 {
		return nil, unavailable(err)
	}
	slices.Sort(ids) // they begin with the time
	found, err := pipeline(ctx, q.engine.fast, ids, func(p redis.Pipeliner, id string) *redis.MapStringStringCmd {
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

// RevokeKey removes a key of the tenant for good. Errors: ErrUnknownKey, ErrUnavailable.
func (q *Queue) RevokeKey(ctx context.Context, tenant, id string) error {
	k, err := q.FindKey(ctx, id)
	if err != nil {
		return err
	}
	if k.Tenant != tenant {
		return ErrUnknownKey
	}
	return q.dropKey(ctx, q.keys.ShardOf(tenant), tenant, id)
}

func (q *Queue) dropKey(ctx context.Context, shard ShardKeys, tenant, id string) error {
	_, err := q.engine.fast.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, shard.Key(id))
		p.ZRem(ctx, shard.Keys(EncodeName(tenant)), id)
		return nil
	})
	return unavailable(err)
}

// FindKey reads a key of any tenant, also one that has expired. An id of the wrong format costs no
// round trip. Errors: ErrUnknownKey, ErrUnavailable.
func (q *Queue) FindKey(ctx context.Context, id string) (Key, error) {
	shard, ok := shardOfID(id, q.keys.Len())
	if !ok {
		return Key{}, ErrUnknownKey
	}
	fields, err := q.engine.fast.HGetAll(ctx, q.keys.Shard(shard).Key(id)).Result()
	if err != nil {
		return Key{}, unavailable(err)
	}
	return keyOf(id, fields)
}

// keyOf decodes a stored key. An unreadable one is an error, so it opens nothing.
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
	if err = errors.Join(err, noTime); err != nil || len(sum) != len(k.Hash) || k.Tenant == "" {
		return Key{}, fmt.Errorf("%w: a stored key cannot be read by this version: it has the fields %v", ErrSchema, slices.Sorted(maps.Keys(fields)))
	}
	copy(k.Hash[:], sum)
	k.Created = time.UnixMilli(created).UTC()
	return k, nil
}

func millis(t time.Time) string { return strconv.FormatInt(t.UnixMilli(), 10) }
