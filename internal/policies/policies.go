// Package policies keeps the policies of one configuration file in force, for all processes at one
// Redis, in sluice:meta and in the lines of each shard and tenant.
package policies

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// File is the part of a configuration file that is about policies.
type File struct {
	Baseline shaper.Baseline             // defaults, tiers and routes
	Tenants  map[string]shaper.Overrides // by name

	text   string // as it is stored
	digest string // of text
}

// NewFile encodes the policies of a file.
func NewFile(baseline shaper.Baseline, tenants map[string]shaper.Overrides) *File {
	f := &File{Baseline: baseline, Tenants: tenants}
	text, _ := json.Marshal(f) // names and numbers cannot fail
	sum := sha256.Sum256(text)
	f.text, f.digest = string(text), hex.EncodeToString(sum[:8])
	return f
}

// decodeFile decodes the file in force.
func decodeFile(found record) (*File, error) {
	file := &File{text: found.Policies, digest: found.Digest}
	if err := json.Unmarshal([]byte(found.Policies), file); err != nil {
		return nil, fmt.Errorf("%w: the policies in force cannot be read by this version: %w", store.ErrSchema, err)
	}
	return file, nil
}

// Set is the policies in force, from the file of any process.
type Set struct {
	*File
	Revision int64

	pools  map[string]string // by route: its pool, as in keys
	shards []store.ShardKeys // of pools, in ascending order
	in     store.Keyspace
}

func newSet(file *File, revision int64, in store.Keyspace) *Set {
	p := &Set{File: file, Revision: revision, pools: map[string]string{}, in: in}
	for name, pool := range file.Baseline.Pools {
		p.shards = append(p.shards, in.ShardOf(store.PoolName(name)))
		for _, route := range pool.Routes {
			p.pools[route] = store.PoolName(name)
		}
	}
	slices.SortFunc(p.shards, func(a, b store.ShardKeys) int { return a.Index - b.Index })
	p.shards = slices.Compact(p.shards)
	return p
}

// Placement returns the shard of a flow: that of its pool, or that of its tenant.
func (p *Set) Placement(tenant, route string) store.ShardKeys {
	if pool, ok := p.pools[route]; ok {
		return p.in.ShardOf(pool)
	}
	return p.in.ShardOf(tenant)
}

// Shards returns the shards that may hold flows of a tenant. The first one holds its settings.
func (p *Set) Shards(tenant string) []store.ShardKeys {
	home := p.in.ShardOf(tenant)
	shards := make([]store.ShardKeys, 1, 1+len(p.shards))
	shards[0] = home
	for _, s := range p.shards {
		if s != home {
			shards = append(shards, s)
		}
	}
	return shards
}

// Holds reports whether a shard may hold flows of a tenant.
func (p *Set) Holds(shard store.ShardKeys, tenant string) bool {
	return shard == p.in.ShardOf(tenant) || slices.Contains(p.shards, shard)
}

// HasPools reports whether a shard has pools. Nil, before there are policies, has none.
func (p *Set) HasPools(shard store.ShardKeys) bool {
	return p != nil && slices.Contains(p.shards, shard)
}

// Lines returns the policies of a tenant's flows in a shard in the form of the scripts.
func (p *Set) Lines(s shaper.Statements, shard store.ShardKeys) scripts.Lines {
	resolved := p.Baseline.Policies(s)
	lines := make(scripts.Lines, len(resolved))
	for class, policy := range resolved {
		route := ""
		if class.Route != "" {
			route = store.EncodeName(class.Route)
		}
		line := scripts.EncodePolicy(policy)
		if pool, ok := p.pools[class.Route]; ok {
			if p.in.ShardOf(pool) == shard {
				line = scripts.EncodePooled(policy, pool)
			} else {
				line = scripts.EncodeElsewhere(policy)
			}
		}
		lines[store.TierName(class.Tier)+"/"+route] = line
	}
	return lines
}

// baselineLines are the lines of a shard: of tenants without settings of their own, and of pools.
func (p *Set) baselineLines(shard store.ShardKeys) scripts.Lines {
	lines := p.Lines(shaper.Statements{}, shard)
	for name := range p.Baseline.Pools {
		if key := store.PoolName(name); p.in.ShardOf(key) == shard {
			policy, _ := p.Baseline.ResolvePool(name, shaper.Overrides{})
			lines[key+"/"] = scripts.EncodePolicy(policy)
		}
	}
	return lines
}

// poolOf returns the pool with a name as in keys.
func (p *Set) poolOf(key string) (name string, ok bool) {
	for name := range p.Baseline.Pools {
		if store.PoolName(name) == key {
			return name, true
		}
	}
	return "", false
}

// record is the hash sluice:meta as far as it is about policies.
type record struct {
	Born     string `redis:"born"`              // when the store was first used
	Policies string `redis:"policies"`          // the file in force
	Digest   string `redis:"policies_digest"`   // of that file
	Former   string `redis:"policies_former"`   // digests of files that were in force before it
	Revision int64  `redis:"policies_revision"` // the highest is in force
	Resolved int64  `redis:"policies_resolved"` // revision that all tenants with settings of their own have
}

const metaRevision, metaResolved = "policies_revision", "policies_resolved"

func readRecord(ctx context.Context, c redis.HashCmdable) (r record, err error) {
	err = c.HMGet(ctx, store.MetaKey, "policies", "policies_digest", "policies_former", metaRevision).Scan(&r)
	return r, store.Unavailable(err)
}

// Set puts another file into force, for all processes. Tenants that the former file named and this
// one does not lose its settings. On an error a part may be in force; the other processes put the
// rest into force. A *MoveError changes nothing.
func (k *Keeper) Set(ctx context.Context, file *File) error {
	k.publish.Lock()
	defer k.publish.Unlock()
	if err := k.checkMoves(ctx, file); err != nil {
		return err
	}
	k.file.Store(file)
	revision, err := k.record(ctx, file)
	if err != nil { // routes that were closed for it open by themselves
		k.current.CompareAndSwap(nil, newSet(file, 0, k.store.Keyspace))
		return err
	}
	p := newSet(file, revision, k.store.Keyspace)
	if err := k.enforce(ctx, p, true); err != nil {
		return err
	}
	k.warnOutranked(ctx, p)
	return nil
}

// start puts the file of a new process into force. If the file was in force before another, the
// other one stays in force while a live process has it: a process that is started again does not
// bring old settings back.
func (k *Keeper) start(ctx context.Context, file *File) error {
	k.file.Store(file)
	if err := k.admit(ctx, file); err != nil {
		return err
	}
	if old, err := k.outdated(ctx, file); err != nil {
		return err
	} else if old {
		return k.follow(ctx, false)
	}
	return k.Set(ctx, file)
}

// outdated reports whether the file was in force before the one that is in force, and a live
// process has that one.
func (k *Keeper) outdated(ctx context.Context, file *File) (bool, error) {
	found, err := readRecord(ctx, k.store.Patient)
	if err != nil {
		return false, err
	}
	former := slices.Contains(strings.Fields(found.Former), file.digest)
	if found.Revision == 0 || found.Digest == file.digest || !former {
		return false, nil
	}
	live, err := k.liveFiles(ctx)
	return slices.Contains(live, found.Digest), err
}

const (
	tries      = 20 // how often a change is tried again because other processes were faster
	formerMost = 100
)

// record stores the file as the one in force and returns its revision: the present one, if the file
// is in force already. Revisions follow Redis's clock, so that they grow even after the record was
// lost.
func (k *Keeper) record(ctx context.Context, file *File) (revision int64, err error) {
	once := func(tx *redis.Tx) error {
		found, err := readRecord(ctx, tx)
		if err != nil {
			return err
		}
		if revision = found.Revision; revision > 0 && found.Policies == file.text {
			return nil
		}
		now, err := tx.Time(ctx).Result()
		if err != nil {
			return err
		}
		revision = max(revision+1, now.UnixMicro())
		former := append([]string{found.Digest}, strings.Fields(found.Former)...)
		former = slices.DeleteFunc(former, func(digest string) bool { return digest == file.digest })
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.HSet(ctx, store.MetaKey, "policies", file.text, "policies_digest", file.digest, metaRevision, revision,
				"policies_former", strings.Join(former[:min(len(former), formerMost)], " "))
			return nil
		})
		return err
	}
	for range tries {
		if err = k.store.Patient.Watch(ctx, once, store.MetaKey); !errors.Is(err, redis.TxFailedErr) {
			return revision, store.Unavailable(err)
		}
	}
	return 0, fmt.Errorf("%w: too many concurrent changes of the policies", store.ErrUnavailable)
}

// follow adopts the policies that are recorded as in force. With finish it also completes what the
// process that recorded them has left undone.
func (k *Keeper) follow(ctx context.Context, finish bool) error {
	k.publish.Lock()
	defer k.publish.Unlock()
	found, err := readRecord(ctx, k.store.Patient)
	if err != nil || found.Revision == 0 {
		return err
	}
	file, err := decodeFile(found)
	if err != nil {
		return err
	}
	return k.enforce(ctx, newSet(file, found.Revision, k.store.Keyspace), finish)
}
