package store

import (
	"context"
	"slices"
	"strings"

	"github.com/7509e464/sluice/internal/scripts"
)

// Scan makes a scan of a shard. It reads the flows that one call leaves out with further calls, one
// after another, so that Redis serves others in between.
func Scan(
	ctx context.Context, send func(context.Context, scripts.Call) ([]any, error), shard ShardKeys, call scripts.ScanCall,
) (scripts.Scan, error) {
	call.Clock, call.Tenants = shard.Clock(), shard.Tenants()
	scan, err := Invoke(ctx, send, call)
	for i := 0; i < len(scan.Tenants) && err == nil; i++ {
		err = ScanRest(ctx, send, shard, call, &scan.Tenants[i])
	}
	return scan, err
}

// ScanRest completes the flows of a tenant that a scan has read in part.
func ScanRest(
	ctx context.Context, send func(context.Context, scripts.Call) ([]any, error), shard ShardKeys, call scripts.ScanCall,
	t *scripts.ScannedTenant,
) error {
	if t.More == "" {
		return nil
	}
	name, _, _ := strings.Cut(t.Entry, " ")
	call.Policy = shard.Policy(name)
	known := map[string]bool{}
	for _, f := range t.Flows {
		known[f.Flow] = true
	}
	for t.More != "" {
		call.FlowCursor = t.More
		part, err := Invoke(ctx, send, call)
		if err != nil {
			return err
		}
		if len(part.Tenants) != 1 {
			return Unavailable(scripts.ErrReply)
		}
		more := slices.DeleteFunc(part.Tenants[0].Flows, func(f scripts.ScannedFlow) bool { return known[f.Flow] })
		for _, f := range more {
			known[f.Flow] = true
		}
		t.Flows, t.More = append(t.Flows, more...), part.Tenants[0].More
	}
	return nil
}
