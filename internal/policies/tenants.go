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

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// enforcing marks the context of calls that put policies into force: Reinstate would deadlock
// there.
type enforcing struct{}

// enforce puts recorded policies into force: the baseline in every shard, and with tenantsToo the
// settings of single tenants and pools. It changes nothing where they are in force, and stops where
// later ones are.
func (k *Keeper) enforce(ctx context.Context, p *Set, tenantsToo bool) error {
	ctx = context.WithValue(ctx, enforcing{}, true)
	if err := k.declare(ctx, p, k.store.Shards()...); err != nil {
		return err
	}
	k.current.Store(p)
	if !tenantsToo {
		return nil
	}
	subjects, err := k.tuned(ctx, p)
	if err != nil {
		return err
	}
	for range tries {
		if len(subjects) == 0 {
			return store.Unavailable(k.store.Durable.HSet(ctx, store.MetaKey, metaResolved, p.Revision).Err())
		}
		if subjects, err = k.resolve(ctx, p, subjects); err != nil {
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
	calls := make([]scripts.Call, len(shards))
	for i, s := range shards {
		calls[i] = scripts.DeclareCall{Clock: s.Clock(), Lines: s.Lines(), Revision: p.Revision, Settings: p.baselineLines(s)}.Call()
	}
	for _, r := range scripts.RunAll(ctx, k.store.Patient, k.store.Observe, calls) {
		if r.Err != nil {
			return store.Unavailable(r.Err)
		}
	}
	return nil
}

// Subject is what settings can be stated for: a tenant or a pool.
type Subject struct {
	Name   string // of the tenant or the pool
	IsPool bool
}

// Tenant and Pool are the subjects of these names.
func Tenant(name string) Subject { return Subject{Name: name} }

// Pool is the subject whose settings are those of a pool.
func Pool(name string) Subject { return Subject{Name: name, IsPool: true} }

// Key is the subject as in keys.
func (s Subject) Key() string {
	if s.IsPool {
		return store.PoolName(s.Name)
	}
	return store.EncodeName(s.Name)
}

// entry is the subject in the indexes of tenants.
func (s Subject) entry() string {
	if s.IsPool {
		return store.PoolName(s.Name)
	}
	return store.TenantEntry(s.Name)
}

// Home returns the shard that holds the settings of a subject.
func (k *Keeper) Home(s Subject) store.ShardKeys {
	if s.IsPool {
		return k.store.ShardOf(s.Key())
	}
	return k.store.ShardOf(s.Name)
}

// parts returns the other shards that may hold flows of a subject.
func (p *Set) parts(s Subject) []store.ShardKeys {
	if s.IsPool {
		return nil
	}
	return p.Shards(s.Name)[1:]
}

// tuned lists the subjects that have settings of their own, or get some from the file.
func (k *Keeper) tuned(ctx context.Context, p *Set) (subjects []Subject, err error) {
	indexes, err := store.Pipeline(ctx, k.store.Patient, k.store.Shards(),
		func(p redis.Pipeliner, s store.ShardKeys) *redis.StringSliceCmd { return p.SMembers(ctx, s.Tuned()) })
	if err != nil {
		return nil, err
	}
	found := map[Subject]bool{}
	for tenant := range p.Tenants {
		found[Tenant(tenant)] = true
	}
	for _, entry := range slices.Concat(indexes...) {
		if !store.IsPool(entry) {
			found[Tenant(store.TenantOfEntry(entry))] = true
		} else if name, ok := p.poolOf(entry); ok {
			found[Pool(name)] = true
		}
	}
	return slices.Collect(maps.Keys(found)), nil
}

// errOutdated means that later policies are in force in a shard.
var errOutdated = errors.New("queue: other policies are in force by now")

// resolveMost bounds the subjects of one exchange, so that other calls get their turn.
const resolveMost = 100

// resolve gives subjects the settings of the file, and resolves the lines of their flows with these
// policies. It returns the subjects that others changed meanwhile. Errors: errOutdated,
// ErrUnavailable.
func (k *Keeper) resolve(ctx context.Context, p *Set, subjects []Subject) (left []Subject, err error) {
	for some := range slices.Chunk(subjects, resolveMost) {
		found, err := k.stated(ctx, k.store.Patient, p, some...)
		if err != nil {
			return nil, err
		}
		var calls, parts []scripts.TuneCall
		var called []Stated
		for _, s := range found {
			call, needed := k.resolveCall(p, &s)
			if needed {
				calls, called = append(calls, call), append(called, s)
			} else {
				parts = append(parts, k.partCalls(p, s, false)...)
			}
		}
		tuned, err := k.tune(ctx, k.store.Patient, calls)
		if err != nil {
			return nil, err
		}
		for i, t := range tuned {
			if t == scripts.TunedOtherTenant {
				left = append(left, called[i].Subject)
				continue
			}
			if calls[i].Source != "" {
				called[i].Revision++
			}
			parts = append(parts, k.partCalls(p, called[i], false)...)
		}
		if _, err := k.tune(ctx, k.store.Patient, parts); err != nil {
			return nil, err
		}
	}
	return left, nil
}

// tune sends calls in one exchange. Errors: errOutdated, ErrUnavailable.
func (k *Keeper) tune(ctx context.Context, c scripts.Client, calls []scripts.TuneCall) ([]scripts.Tuned, error) {
	tuned, err := store.InvokeAll(ctx, k.store, c, calls, func(c scripts.TuneCall, values []any) (scripts.Tuned, error) {
		tuned, _, err := c.Decode(values)
		return tuned, err
	})
	if err == nil && slices.Contains(tuned, scripts.TunedOtherPolicies) {
		err = errOutdated
	}
	return tuned, err
}

// resolveCall gives a subject the settings of the file. It is not needed if the subject has them.
func (k *Keeper) resolveCall(p *Set, s *Stated) (call scripts.TuneCall, needed bool) {
	source, before := "", EncodeOverrides(s.File)
	if !s.IsPool { // the lines of the shard hold what the file states of a pool
		s.File = p.Tenants[s.Name]
	}
	declared := EncodeOverrides(s.File)
	if declared != before {
		source = shaper.SourceFile
	}
	call = k.TuneCall(p, *s, source, declared)
	resolved := s.resolved == p.Revision || s.resolved == 0 && len(call.Settings) == 0
	return call, source != "" || !resolved
}

// TuneCall changes the settings of a subject from a source; s holds the changed ones.
func (k *Keeper) TuneCall(p *Set, s Stated, source, declared string) scripts.TuneCall {
	call := k.tuneCall(p, s, k.Home(s.Subject))
	call.Expected, call.Source, call.Says = &s.Revision, source, declared
	return call
}

func (k *Keeper) tuneCall(p *Set, s Stated, shard store.ShardKeys) scripts.TuneCall {
	name := s.Key()
	call := scripts.TuneCall{
		Clock: shard.Clock(), Due: shard.Due(), Policy: shard.Policy(name), History: shard.History(name), Names: shard.Names(name),
		Tenants: shard.Tenants(), Tuned: shard.Tuned(), Lines: shard.LinesOf(name), Horizon: k.horizon, Policies: p.Revision,
		Name: store.ShortHash(uuid.NewString()), Entry: s.entry(),
	}
	switch {
	case s.File.Empty() && s.API.Empty():
	case s.IsPool:
		policy, _ := p.Baseline.ResolvePool(s.Name, s.API)
		call.Settings = scripts.Lines{"/": scripts.EncodePolicy(policy)}
	default:
		call.Settings = p.Lines(s.Statements, shard)
	}
	return call
}

// partCalls give the policies of a subject to the other shards that may hold flows of it, and do
// not have them. With endHolds all get a call, which ends the holds of these flows.
func (k *Keeper) partCalls(p *Set, s Stated, endHolds bool) (calls []scripts.TuneCall) {
	for _, shard := range p.parts(s.Subject) {
		has := s.parts[shard.Index]
		call := k.tuneCall(p, s, shard)
		never := len(call.Settings) == 0 && has == (part{}) // had it any settings
		if !endHolds && (never || has == (part{s.Revision, p.Revision})) {
			continue
		}
		call.Source, call.Expected, call.EndHolds = scripts.TunePart, &s.Revision, endHolds
		calls = append(calls, call)
	}
	return calls
}

// Spread gives the policies of a changed subject to the other shards that may hold flows of it, and
// ends the holds of these if endHolds is set.
func (k *Keeper) Spread(ctx context.Context, p *Set, subject Subject, endHolds bool) error {
	if len(p.parts(subject)) == 0 {
		return nil
	}
	found, err := k.stated(ctx, k.store.Fast, p, subject)
	if err != nil {
		return err
	}
	if _, err = k.tune(ctx, k.spreads(), k.partCalls(p, found[0], endHolds)); err != nil && !errors.Is(err, errOutdated) {
		return err
	}
	return store.Unavailable(k.store.Fast.SRem(ctx, store.SpreadKey, subject.Name).Err())
}

// spreads is the client that gives the settings of a changed subject to its other shards.
func (k *Keeper) spreads() scripts.Client {
	if k.store.Durable == k.store.Fast {
		return k.store.Patient
	}
	return k.store.Durable
}

// Intend records that a subject is about to change: should this process fail before Spread, another
// one does it.
func (k *Keeper) Intend(ctx context.Context, p *Set, subject Subject) error {
	if len(p.parts(subject)) == 0 {
		return nil
	}
	return store.Unavailable(k.store.Durable.SAdd(ctx, store.SpreadKey, subject.Name).Err())
}

// Stated holds the settings of a subject by source.
type Stated struct {
	Subject
	Revision int64
	shaper.Statements

	resolved int64        // revision of the policies that the lines of its flows were resolved with; 0 without lines
	parts    map[int]part // by shard
}

// part is which settings of a subject, and resolved with which policies, a shard has that may hold
// flows of it.
type part struct{ revision, resolved int64 }

// Stated reads the settings of a subject by source.
func (k *Keeper) Stated(ctx context.Context, subject Subject) (Stated, error) {
	found, err := k.stated(ctx, k.store.Fast, k.Current(), subject)
	if err != nil {
		return Stated{}, err
	}
	return found[0], nil
}

// storedSettings are the settings of a subject in a shard.
type storedSettings struct {
	Revision int64  `redis:"revision"`
	API      string `redis:"api"`
	File     string `redis:"file"`
	resolved int64
}

func (k *Keeper) stated(ctx context.Context, c redis.UniversalClient, p *Set, subjects ...Subject) ([]Stated, error) {
	type read struct {
		settings, lines *redis.SliceCmd
	}
	reads := map[Subject][]read{}
	if _, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for _, s := range subjects {
			for _, shard := range append([]store.ShardKeys{k.Home(s)}, p.parts(s)...) {
				reads[s] = append(reads[s], read{
					pipe.HMGet(ctx, shard.Policy(s.Key()), "revision", shaper.SourceAPI, shaper.SourceFile),
					pipe.HMGet(ctx, shard.LinesOf(s.Key()), "revision"),
				})
			}
		}
		return nil
	}); err != nil {
		return nil, store.Unavailable(err)
	}
	decoded := func(r read) (found storedSettings, err error) {
		var lines struct {
			Revision int64 `redis:"revision"`
		}
		err = errors.Join(r.settings.Scan(&found), r.lines.Scan(&lines))
		found.resolved = lines.Revision
		return found, store.Unavailable(err)
	}
	out := make([]Stated, len(subjects))
	for i, subject := range subjects {
		found, err := decoded(reads[subject][0])
		if err != nil {
			return nil, err
		}
		s := Stated{Subject: subject, Revision: found.Revision, resolved: found.resolved, parts: map[int]part{}}
		if s.Statements, err = Decode(found.API, found.File); err != nil {
			return nil, err
		}
		for n, shard := range p.parts(subject) {
			found, err := decoded(reads[subject][1+n])
			if err != nil {
				return nil, err
			}
			s.parts[shard.Index] = part{found.Revision, found.resolved}
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
