package policies

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// enforcing marks the context of calls that put policies into force: Reinstate would deadlock
// there.
type enforcing struct{}

// enforce puts recorded policies into force: the baseline in every shard, and with tenantsToo the
// settings of single tenants. It changes nothing where they are in force, and stops where later
// ones are.
func (k *Keeper) enforce(ctx context.Context, p *Set, tenantsToo bool) error {
	ctx = context.WithValue(ctx, enforcing{}, true)
	if err := k.declare(ctx, p, k.store.Shards()...); err != nil {
		return err
	}
	k.current.Store(p)
	if !tenantsToo {
		return nil
	}
	tenants, err := k.tunedTenants(ctx, p)
	if err != nil {
		return err
	}
	for range tries {
		if len(tenants) == 0 {
			return store.Unavailable(k.store.Patient.HSet(ctx, store.MetaKey, metaResolved, p.Revision).Err())
		}
		if tenants, err = k.resolve(ctx, p, tenants); err != nil {
			if errors.Is(err, errOutdated) {
				return nil
			}
			return err
		}
	}
	return fmt.Errorf("%w: too many concurrent changes of tenants", store.ErrUnavailable)
}

// declare puts the baseline into force in shards that have an older one. It repairs nothing.
func (k *Keeper) declare(ctx context.Context, p *Set, shards ...store.ShardKeys) error {
	lines := p.Lines(shaper.Statements{})
	calls := make([]lua.Call, len(shards))
	for i, s := range shards {
		calls[i] = lua.DeclareCall{Clock: s.Clock(), Lines: s.Lines(), Revision: p.Revision, Settings: lines}.Call()
	}
	for _, r := range lua.RunAll(ctx, k.store.Patient, k.store.Observe, calls) {
		if r.Err != nil {
			return store.Unavailable(r.Err)
		}
	}
	return nil
}

// tunedTenants lists the tenants that have settings of their own, or get some from the file.
func (k *Keeper) tunedTenants(ctx context.Context, p *Set) ([]string, error) {
	indexes, err := store.Pipeline(ctx, k.store.Patient, k.store.Shards(),
		func(p redis.Pipeliner, s store.ShardKeys) *redis.StringSliceCmd { return p.SMembers(ctx, s.Tuned()) })
	if err != nil {
		return nil, err
	}
	tenants := slices.Collect(maps.Keys(p.Tenants))
	for _, entry := range slices.Concat(indexes...) {
		tenants = append(tenants, store.TenantOfEntry(entry))
	}
	slices.Sort(tenants)
	return slices.Compact(tenants), nil
}

// errOutdated means that later policies are in force in a shard.
var errOutdated = errors.New("queue: other policies are in force by now")

// resolveMost bounds the tenants of one exchange, so that other calls get their turn.
const resolveMost = 100

// resolve gives tenants the settings of the file, and resolves the lines of their flows with these
// policies. It returns the tenants that others changed meanwhile. Errors: errOutdated,
// ErrUnavailable.
func (k *Keeper) resolve(ctx context.Context, p *Set, tenants []string) (left []string, err error) {
	for part := range slices.Chunk(tenants, resolveMost) {
		found, err := k.Stated(ctx, k.store.Patient, part...)
		if err != nil {
			return nil, err
		}
		var calls []lua.TuneCall
		var called []string
		for _, s := range found {
			if call, needed := k.resolveCall(p, s); needed {
				calls, called = append(calls, call), append(called, s.Tenant)
			}
		}
		tuned, err := store.InvokeAll(ctx, k.store, k.store.Patient, calls,
			func(c lua.TuneCall, values []any) (lua.Tuned, error) {
				tuned, _, err := c.Decode(values)
				return tuned, err
			})
		if err != nil {
			return nil, err
		}
		for i, t := range tuned {
			switch t {
			case lua.TunedOtherPolicies:
				return nil, errOutdated
			case lua.TunedOtherTenant:
				left = append(left, called[i])
			}
		}
	}
	return left, nil
}

// resolveCall gives a tenant the settings of the file. It is not needed if the tenant has them.
func (k *Keeper) resolveCall(p *Set, s Stated) (call lua.TuneCall, needed bool) {
	source, before := "", EncodeOverrides(s.File)
	s.File = p.Tenants[s.Tenant]
	declared := EncodeOverrides(s.File)
	if declared != before {
		source = shaper.SourceFile
	}
	call = k.TuneCall(p, s, source, declared)
	resolved := s.resolved == p.Revision || s.resolved == 0 && len(call.Settings) == 0
	return call, source != "" || !resolved
}

// TuneCall returns the call that changes the settings of a tenant from a source; s holds the
// changed settings.
func (k *Keeper) TuneCall(p *Set, s Stated, source, declared string) lua.TuneCall {
	shard, name := k.store.ShardOf(s.Tenant), store.EncodeName(s.Tenant)
	call := lua.TuneCall{
		Clock: shard.Clock(), Due: shard.Due(), Policy: shard.Policy(name), History: shard.History(name),
		Names:   shard.Names(name),
		Tenants: shard.Tenants(), Tuned: shard.Tuned(), Lines: shard.LinesOf(name), Horizon: k.horizon,
		Policies: p.Revision,
		Name:     store.ShortHash(uuid.NewString()), Expected: &s.Revision, Source: source, Says: declared,
		Entry: store.TenantEntry(s.Tenant),
	}
	if !s.File.Empty() || !s.API.Empty() {
		call.Settings = p.Lines(s.Statements)
	}
	return call
}

// Stated holds the settings of a tenant by source.
type Stated struct {
	Tenant   string
	Revision int64 // of the settings; 0: they were never changed
	shaper.Statements

	// resolved is the revision of the policies that its lines were made with; 0 without lines.
	resolved int64
}

// Stated reads the settings of the tenants by source, in their order. Errors: store.ErrUnavailable,
// store.ErrScript.
func (k *Keeper) Stated(ctx context.Context, c redis.UniversalClient, tenants ...string) ([]Stated, error) {
	settings, lines := make([]*redis.SliceCmd, len(tenants)), make([]*redis.SliceCmd, len(tenants))
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, tenant := range tenants {
			shard, name := k.store.ShardOf(tenant), store.EncodeName(tenant)
			settings[i] = p.HMGet(ctx, shard.Policy(name), "revision", shaper.SourceAPI, shaper.SourceFile)
			lines[i] = p.HMGet(ctx, shard.LinesOf(name), "revision")
		}
		return nil
	}); err != nil {
		return nil, store.Unavailable(err)
	}
	out := make([]Stated, len(tenants))
	for i, tenant := range tenants {
		var found struct {
			Revision int64  `redis:"revision"`
			API      string `redis:"api"`
			File     string `redis:"file"`
		}
		var resolved struct {
			Revision int64 `redis:"revision"`
		}
		if err := errors.Join(settings[i].Scan(&found), lines[i].Scan(&resolved)); err != nil {
			return nil, store.Unavailable(err)
		}
		s := Stated{Tenant: tenant, Revision: found.Revision, resolved: resolved.Revision}
		var err error
		if s.Statements, err = Decode(found.API, found.File); err != nil {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}

// Decode decodes the stored settings of a tenant by source, as far as they can be read.
func Decode(api, file string) (s shaper.Statements, err error) {
	err = errors.Join(decode(api, &s.API), decode(file, &s.File))
	return s, err
}

func decode(text string, o *shaper.Overrides) error {
	if text == "" {
		return nil
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(o); err != nil {
		return fmt.Errorf("%w: a stored policy cannot be read by this version: %w", store.ErrSchema, err)
	}
	return nil
}

// EncodeOverrides returns settings in the form in which they are stored.
func EncodeOverrides(o shaper.Overrides) string {
	if o.Empty() {
		return ""
	}
	raw, _ := json.Marshal(o) // names and numbers cannot fail
	return string(raw)
}
