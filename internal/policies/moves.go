package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// MoveError means that a file moves routes to another pool while jobs of theirs wait or run.
type MoveError struct {
	Routes []string // that have jobs
	Jobs   int64
}

func (e *MoveError) Error() string {
	return fmt.Sprintf("the pools of the configuration file move the routes %s, which have %d jobs: "+
		"restore their pools, let the jobs leave or purge them, and apply the file then", strings.Join(e.Routes, ", "), e.Jobs)
}

// scanMost is about how many tenants one script reads.
const scanMost = 100

// closedFor is how long routes that are about to move admit no jobs, unless they are opened before.
const closedFor = 30 * time.Second

// checkMoves returns a *MoveError if the file moves routes to another pool that have jobs. A shard
// cannot hand jobs over to another one in one step. If there are none, the routes are closed until
// declare, and checked again: a job that was admitted meanwhile would stay outside of its pool.
// With an error the routes are open.
func (k *Keeper) checkMoves(ctx context.Context, file *File) error {
	moved, err := k.moved(ctx, file)
	if err != nil || len(moved) == 0 {
		return err
	}
	if err := k.jobsOf(ctx, moved); err != nil {
		return err
	}
	begun := time.Now()
	if err = k.closeRoutes(ctx, moved); err == nil {
		err = k.jobsOf(ctx, moved)
	}
	if err == nil && time.Since(begun) > closedFor/2 {
		err = fmt.Errorf("%w: the check of moved routes took too long", store.ErrUnavailable)
	}
	if err == nil {
		return nil
	}
	if failed := k.openRoutes(ctx); failed != nil {
		err = errors.Join(err, failed)
	}
	return err
}

// closeRoutes makes all shards refuse jobs of the routes.
func (k *Keeper) closeRoutes(ctx context.Context, routes map[string]string) error {
	clocks, err := store.Pipeline(ctx, k.store.Patient, k.store.Shards(),
		func(p redis.Pipeliner, s store.ShardKeys) *redis.SliceCmd {
			return p.HMGet(ctx, s.Clock(), scripts.ClockNumbers)
		})
	if err != nil {
		return err
	}
	now, err := k.store.Patient.Time(ctx).Result()
	if err != nil {
		return store.Unavailable(err)
	}
	names := strings.Join(slices.Sorted(maps.Keys(routes)), " ")
	_, err = k.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, s := range k.store.Shards() {
			numbers, _ := clocks[i][0].(string) // nil of a shard that is new
			clock, err := scripts.ParseClock(numbers)
			if err != nil {
				return err
			}
			till := max(shaper.InstantOf(now)+clock.Off, clock.Last).Add(closedFor)
			p.HSet(ctx, s.Clock(), scripts.ClosedField, fmt.Sprintf("%d %s", till, names))
		}
		return nil
	})
	return store.Unavailable(err)
}

// openRoutes undoes closeRoutes.
func (k *Keeper) openRoutes(ctx context.Context) error {
	_, err := k.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, s := range k.store.Shards() {
			p.HDel(ctx, s.Clock(), scripts.ClosedField)
		}
		return nil
	})
	return store.Unavailable(err)
}

// moved returns the routes that the file moves to another pool: as in keys, and as written.
func (k *Keeper) moved(ctx context.Context, file *File) (map[string]string, error) {
	found, err := readRecord(ctx, k.store.Patient)
	if err != nil || found.Revision == 0 || found.Digest == file.digest {
		return nil, err
	}
	before := &File{}
	if err := json.Unmarshal([]byte(found.Policies), before); err != nil {
		return nil, nil // of another version, which moves nothing
	}
	from, to := newSet(before, 0, k.store.Keyspace), newSet(file, 0, k.store.Keyspace)
	moved := map[string]string{}
	for _, p := range []*Set{from, to} {
		for route := range p.pools {
			if from.pools[route] != to.pools[route] {
				moved[store.EncodeName(route)] = route
			}
		}
	}
	return moved, nil
}

// jobsOf returns a *MoveError if jobs of the routes wait or run.
func (k *Keeper) jobsOf(ctx context.Context, moved map[string]string) error {
	var refused MoveError
	for _, shard := range k.store.Shards() {
		if err := k.eachFlow(ctx, shard, func(f scripts.ScannedFlow) {
			_, name, _ := strings.Cut(f.Flow, "/")
			route, moves := moved[name]
			if n := f.Depth + f.Running; moves && n > 0 {
				refused.Jobs += n
				if !slices.Contains(refused.Routes, route) {
					refused.Routes = append(refused.Routes, route)
				}
			}
		}); err != nil {
			return err
		}
	}
	if refused.Jobs == 0 {
		return nil
	}
	slices.Sort(refused.Routes)
	return &refused
}

// eachFlow calls f for the flows of a shard. A flow may come twice if tenants come and go
// meanwhile.
func (k *Keeper) eachFlow(ctx context.Context, shard store.ShardKeys, f func(scripts.ScannedFlow)) error {
	for cursor := "0"; ; {
		scan, err := store.Scan(ctx, k.store.RunPatient, shard, scripts.ScanCall{Cursor: cursor, Most: scanMost})
		if err != nil {
			return err
		}
		for _, t := range scan.Tenants {
			for _, flow := range t.Flows {
				f(flow)
			}
		}
		if cursor = scan.Cursor; cursor == "0" {
			return nil
		}
	}
}
