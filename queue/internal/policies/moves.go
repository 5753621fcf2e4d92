package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/store"
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

// checkMoves returns a *MoveError if the file moves routes to another pool that have jobs. A shard
// cannot hand jobs over to another one in one step.
func (k *Keeper) checkMoves(ctx context.Context, file *File) error {
	found, err := readRecord(ctx, k.store.Patient)
	if err != nil || found.Revision == 0 || found.Digest == file.digest {
		return err
	}
	before := &File{}
	if err := json.Unmarshal([]byte(found.Policies), before); err != nil {
		return nil // of another version, which moves nothing
	}
	from, to := newSet(before, 0, k.store.Keyspace), newSet(file, 0, k.store.Keyspace)
	moved := map[string]string{} // route as in keys → as written
	for _, p := range []*Set{from, to} {
		for route := range p.pools {
			if from.pools[route] != to.pools[route] {
				moved[store.EncodeName(route)] = route
			}
		}
	}
	if len(moved) == 0 {
		return nil
	}
	var refused MoveError
	for _, shard := range k.store.Shards() {
		if err := k.eachFlow(ctx, shard, func(f lua.ScannedFlow) {
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
func (k *Keeper) eachFlow(ctx context.Context, shard store.ShardKeys, f func(lua.ScannedFlow)) error {
	for cursor := "0"; ; {
		scan, err := store.Scan(ctx, k.store.RunPatient, shard, lua.ScanCall{Cursor: cursor, Most: scanMost})
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
