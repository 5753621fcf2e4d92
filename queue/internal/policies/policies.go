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
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/store"
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

// Set is the policies in force, from the file of any process.
type Set struct {
	*File
	Revision int64 // grows with each file that is put into force
}

// Lines returns the policies of a tenant's flows in the form of the scripts.
func (p *Set) Lines(s shaper.Statements) lua.Lines {
	resolved := p.Baseline.Policies(s)
	lines := make(lua.Lines, len(resolved))
	for class, policy := range resolved {
		route := ""
		if class.Route != "" {
			route = store.EncodeName(class.Route)
		}
		lines[store.TierName(class.Tier)+"/"+route] = lua.EncodePolicy(policy)
	}
	return lines
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
// rest into force.
func (k *Keeper) Set(ctx context.Context, file *File) error {
	k.publish.Lock()
	defer k.publish.Unlock()
	k.file.Store(file)
	revision, err := k.record(ctx, file)
	if err != nil {
		k.current.CompareAndSwap(nil, &Set{File: file})
		return err
	}
	return k.enforce(ctx, &Set{file, revision}, true)
}

// start puts the file of a new process into force. If the file was in force before another, the
// other one stays in force while a live process has it: a process that is started again does not
// bring old settings back.
func (k *Keeper) start(ctx context.Context, file *File) error {
	k.file.Store(file)
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
	now, err := k.store.Patient.Time(ctx).Result()
	if err != nil {
		return false, store.Unavailable(err)
	}
	files, err := k.store.Patient.ZRangeByScore(ctx, store.FilesKey, &redis.ZRangeBy{
		Min: strconv.FormatInt(now.Add(-fileFor).UnixMilli(), 10), Max: "+inf",
	}).Result()
	live := func(member string) bool { return strings.HasPrefix(member, found.Digest+" ") }
	return slices.ContainsFunc(files, live), store.Unavailable(err)
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
	p := &Set{&File{text: found.Policies, digest: found.Digest}, found.Revision}
	if err := json.Unmarshal([]byte(found.Policies), p.File); err != nil {
		return fmt.Errorf("%w: the policies in force cannot be read by this version: %w", store.ErrSchema, err)
	}
	return k.enforce(ctx, p, finish)
}
