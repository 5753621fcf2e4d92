package policies

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Outranked is a setting of a tenant or a pool in the file that is set to another value through the
// API. The value of the API is in force.
type Outranked struct {
	Subject
	Route     string // empty: of all routes
	Setting   string // as in the file
	File, API string // its values
}

func (o Outranked) String() string {
	of := fmt.Sprintf("tenant %q", o.Name)
	if o.IsPool {
		of = fmt.Sprintf("pool %q", o.Name)
	}
	if o.Route != "" {
		of += fmt.Sprintf(", route %q", o.Route)
	}
	return fmt.Sprintf("%s: %s is %s by the API, which outranks %s of the file", of, o.Setting, o.API, o.File)
}

// outrankedMost is how many outranked settings of a file are named.
const outrankedMost = 20

// outranked returns the settings of the file that the API sets to other values, at most
// outrankedMost of them, by pool and by tenant, and the number of all.
func (k *Keeper) outranked(ctx context.Context, p *Set) (named []Outranked, all int, err error) {
	var subjects []Subject
	for _, name := range slices.Sorted(maps.Keys(p.Baseline.Pools)) {
		subjects = append(subjects, Pool(name))
	}
	for _, name := range slices.Sorted(maps.Keys(p.Tenants)) {
		subjects = append(subjects, Tenant(name))
	}
	for some := range slices.Chunk(subjects, resolveMost) {
		found, err := k.stated(ctx, k.store.Patient, p, some...)
		if err != nil {
			return nil, 0, err
		}
		for _, s := range found {
			file := p.Tenants[s.Name]
			if s.IsPool {
				file = p.Baseline.Pools[s.Name].Overrides
			}
			differing := differing(s.Subject, file, s.API)
			all += len(differing)
			named = append(named, differing[:min(len(differing), outrankedMost-len(named))]...)
		}
	}
	return named, all, nil
}

// differing compares the settings of a subject that both sources set.
func differing(of Subject, file, api shaper.Overrides) (out []Outranked) {
	compare := func(route string, file, api shaper.Overrides) {
		for _, s := range shaper.Settings() {
			if in, by := s.Text(file), s.Text(api); in != "" && by != "" && in != by {
				out = append(out, Outranked{of, route, s.Key(), in, by})
			}
		}
	}
	compare("", file, api)
	if file.Tier != nil && api.Tier != nil && *file.Tier != *api.Tier {
		out = append(out, Outranked{of, "", "tier", *file.Tier, cmp.Or(*api.Tier, "none")})
	}
	for _, route := range slices.Sorted(maps.Keys(file.Routes)) {
		compare(route, file.Routes[route], api.Routes[route])
	}
	return out
}

// warnOutranked logs the settings of the file that the API has set to other values: who edits the
// file would wait in vain.
func (k *Keeper) warnOutranked(ctx context.Context, p *Set) {
	named, all, err := k.outranked(ctx, p)
	if err != nil {
		return // the file is in force all the same
	}
	for _, o := range named {
		kind := "tenant"
		if o.IsPool {
			kind = "pool"
		}
		attrs := []slog.Attr{slog.String(kind, store.EncodeName(o.Name))}
		if o.Route != "" {
			attrs = append(attrs, slog.String("route", o.Route))
		}
		attrs = append(attrs, slog.String("setting", o.Setting), slog.String("file", o.File), slog.String("api", o.API))
		k.log.LogAttrs(ctx, slog.LevelWarn, "the API has set a setting of the file to another value, which is in force", attrs...)
	}
	if more := all - len(named); more > 0 {
		k.log.Warn("the API has set further settings of the file to other values, which are in force", "settings", more)
	}
}
