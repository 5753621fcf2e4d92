package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/shaper"
)

// policyFile is the part of a configuration file that is about policies.
type policyFile struct {
	Baseline shaper.Baseline
	Tenants  map[string]shaper.Overrides

	text   string // as it is stored
	digest string // of text
}

func newPolicyFile(baseline shaper.Baseline, tenants map[string]shaper.Overrides) (*policyFile, error) {
	f := &policyFile{Baseline: baseline, Tenants: tenants}
	text, err := json.Marshal(f)
	if err != nil {
		return nil, fmt.Errorf("queue: encode the policies: %w", err)
	}
	sum := sha256.Sum256(text)
	f.text, f.digest = string(text), hex.EncodeToString(sum[:8])
	return f, nil
}

// policies are those in force, whichever process's file they are from.
type policies struct {
	*policyFile
	revision int64
}

// lines are the settings of a tenant's flows, as the scripts take them.
func (p *policies) lines(s shaper.Statements) lua.Lines {
	resolved := p.Baseline.Policies(s)
	lines := make(lua.Lines, len(resolved))
	for class, policy := range resolved {
		route := ""
		if class.Route != "" {
			route = EncodeName(class.Route)
		}
		lines[tierName(class.Tier)+"/"+route] = lua.EncodePolicy(policy)
	}
	return lines
}

// Fields of the meta key.
const (
	metaPolicies = "policies"          // the file in force
	metaRevision = "policies_revision" // the highest is in force
	metaDigest   = "policies_digest"   // of the file in force
	metaFormer   = "policies_former"   // digests of files that were in force before it
	metaResolved = "policies_resolved" // revision that all tenants with settings of their own obey
	metaBorn     = "born"              // when the store was first used
)

// SetPolicies puts other policies of a configuration file into force, for all processes at this
// Redis: the baseline, and the settings of single tenants. Tenants that the file named before and
// names no more lose its settings. Backlogs obey at once. The policies must be valid. Until the
// next call of any process nothing changes them: a process with another file follows, and says so.
// Errors: ErrUnavailable; then a part of them may be in force, and the other processes put the rest
// into force.
func (q *Queue) SetPolicies(
	ctx context.Context, baseline shaper.Baseline, tenants map[string]shaper.Overrides,
) error {
	file, err := newPolicyFile(baseline, tenants)
	if err != nil {
		return err
	}
	return q.setPolicies(ctx, file, false)
}

// setPolicies is SetPolicies. At the start of a process with a file that was in force before,
// another file stays in force while a live process has it: a process that was started again does
// not put old settings back.
func (q *Queue) setPolicies(ctx context.Context, file *policyFile, start bool) (err error) {
	q.publish.Lock()
	defer q.publish.Unlock()
	p := &policies{policyFile: file}
	if q.reporter {
		q.policies.Store(p)
		return nil
	}
	q.file.Store(file)
	if start {
		if old, err := q.outdated(ctx, file); err != nil {
			return err
		} else if old {
			return q.followRecord(ctx, false)
		}
	}
	if p.revision, err = q.record(ctx, file); err != nil {
		q.policies.CompareAndSwap(nil, p)
		return err
	}
	return q.enforce(ctx, p, true)
}

// outdated reports whether the file was in force before the one that is in force, and a live
// process has that one.
func (q *Queue) outdated(ctx context.Context, file *policyFile) (bool, error) {
	found, err := readRecord(ctx, q.engine.patient)
	if err != nil {
		return false, unavailable(err)
	}
	former := slices.Contains(strings.Fields(found.Former), file.digest)
	if found.Revision == 0 || found.Digest == file.digest || !former {
		return false, nil
	}
	now, err := q.engine.patient.Time(ctx).Result()
	if err != nil {
		return false, unavailable(err)
	}
	files, err := q.engine.patient.ZRangeByScore(ctx, filesKey, &redis.ZRangeBy{
		Min: strconv.FormatInt(now.Add(-fileFor).UnixMilli(), 10), Max: "+inf",
	}).Result()
	live := func(member string) bool { return strings.HasPrefix(member, found.Digest+" ") }
	return slices.ContainsFunc(files, live), unavailable(err)
}

const (
	recordTries = 20 // how often a record is written anew because other processes were faster
	formerMost  = 100
)

// record notes that the file is in force and returns the revision of its policies: the one they
// have, if they are in force already. Revisions follow Redis's clock, so that they grow even after
// the record was lost.
func (q *Queue) record(ctx context.Context, file *policyFile) (revision int64, err error) {
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
			p.HSet(ctx, metaKey, metaPolicies, file.text, metaDigest, file.digest, metaRevision, revision,
				metaFormer, strings.Join(former[:min(len(former), formerMost)], " "))
			return nil
		})
		return err
	}
	for range recordTries {
		if err = q.engine.patient.Watch(ctx, once, metaKey); !errors.Is(err, redis.TxFailedErr) {
			return revision, unavailable(err)
		}
	}
	return 0, fmt.Errorf("%w: too many concurrent changes of the policies", ErrUnavailable)
}

// policyRecord says which policies are in force.
type policyRecord struct {
	Policies string `redis:"policies"`
	Digest   string `redis:"policies_digest"`
	Former   string `redis:"policies_former"`
	Revision int64  `redis:"policies_revision"`
}

func readRecord(ctx context.Context, c redis.HashCmdable) (r policyRecord, err error) {
	err = c.HMGet(ctx, metaKey, metaPolicies, metaDigest, metaFormer, metaRevision).Scan(&r)
	return r, err
}

// follow takes over the policies that are recorded as in force; with finish it also does what the
// process that recorded them has left.
func (q *Queue) follow(ctx context.Context, finish bool) error {
	q.publish.Lock()
	defer q.publish.Unlock()
	return q.followRecord(ctx, finish)
}

func (q *Queue) followRecord(ctx context.Context, finish bool) error {
	found, err := readRecord(ctx, q.engine.patient)
	if err != nil {
		return unavailable(err)
	}
	if found.Revision == 0 {
		return nil
	}
	p := &policies{&policyFile{text: found.Policies, digest: found.Digest}, found.Revision}
	if err := json.Unmarshal([]byte(found.Policies), p.policyFile); err != nil {
		return fmt.Errorf("%w: the policies in force cannot be read by this version: %w", ErrSchema, err)
	}
	return q.enforce(ctx, p, finish)
}

// enforcing marks the context of calls that put policies into force: they must not wait for
// themselves.
type enforcing struct{}

// enforce puts policies into force that are recorded: the baseline in every shard, and with
// tenantsToo the settings of single tenants. It changes nothing where they are in force, and stops
// where later ones are.
func (q *Queue) enforce(ctx context.Context, p *policies, tenantsToo bool) error {
	ctx = context.WithValue(ctx, enforcing{}, true)
	if err := q.declare(ctx, p, q.keys.shards...); err != nil {
		return err
	}
	q.policies.Store(p)
	if !tenantsToo {
		return nil
	}
	tenants, err := q.tunedTenants(ctx, p)
	if err != nil {
		return err
	}
	for range tuneTries {
		if len(tenants) == 0 {
			return unavailable(q.engine.patient.HSet(ctx, metaKey, metaResolved, p.revision).Err())
		}
		if tenants, err = q.resolve(ctx, p, tenants); err != nil {
			if errors.Is(err, errOutdated) {
				return nil
			}
			return err
		}
	}
	return fmt.Errorf("%w: too many concurrent changes of tenants", ErrUnavailable)
}

// declare puts the baseline into force in shards that have an older one.
func (q *Queue) declare(ctx context.Context, p *policies, shards ...ShardKeys) error {
	lines := p.lines(shaper.Statements{})
	calls := make([]lua.Call, len(shards))
	for i, s := range shards {
		calls[i] = lua.DeclareCall{Clock: s.Clock(), Lines: s.Lines(), Revision: p.revision, Settings: lines}.Call()
	}
	for _, r := range lua.RunAll(ctx, q.engine.patient, q.observe, calls) {
		if r.Err != nil {
			return unavailable(r.Err)
		}
	}
	return nil
}

// tunedTenants lists the tenants that have settings of their own, or will have by the file.
func (q *Queue) tunedTenants(ctx context.Context, p *policies) ([]string, error) {
	indexes, err := pipeline(ctx, q.engine.patient, q.keys.shards,
		func(p redis.Pipeliner, s ShardKeys) *redis.StringSliceCmd { return p.SMembers(ctx, s.Tuned()) })
	if err != nil {
		return nil, err
	}
	tenants := map[string]bool{}
	for tenant := range p.Tenants {
		tenants[tenant] = true
	}
	for _, entries := range indexes {
		for _, entry := range entries {
			tenants[tenantOfEntry(entry)] = true
		}
	}
	return slices.Sorted(maps.Keys(tenants)), nil
}

// errOutdated means that later policies are in force in a shard.
var errOutdated = errors.New("queue: other policies are in force by now")

// resolveMost bounds the tenants of one pipeline, so that other calls get their turn.
const resolveMost = 100

// resolve gives tenants the settings of the file, and their flows lines that are resolved with
// these policies. It returns the tenants that others changed meanwhile. Errors: errOutdated,
// ErrUnavailable.
func (q *Queue) resolve(ctx context.Context, p *policies, tenants []string) (left []string, err error) {
	for part := range slices.Chunk(tenants, resolveMost) {
		found, err := q.stated(ctx, q.engine.patient, part...)
		if err != nil {
			return nil, err
		}
		var calls []lua.Call
		var called []string
		for _, s := range found {
			call, needed, err := q.resolveCall(p, s)
			if err != nil {
				return nil, err
			}
			if needed {
				calls, called = append(calls, call.Call()), append(called, s.tenant)
			}
		}
		for i, r := range q.exec(ctx, q.engine.patient, calls) {
			if r.Err != nil {
				return nil, unavailable(r.Err)
			}
			switch tuned, _, err := (lua.TuneCall{}).Decode(r.Values); {
			case err != nil:
				return nil, unavailable(err)
			case tuned == lua.TunedOtherPolicies:
				return nil, errOutdated
			case tuned == lua.TunedOtherTenant:
				left = append(left, called[i])
			}
		}
	}
	return left, nil
}

// resolveCall changes a tenant so that it has the settings of the file, unless it has.
func (q *Queue) resolveCall(p *policies, s stated) (call lua.TuneCall, needed bool, err error) {
	source, before := "", s.File
	s.File = p.Tenants[s.tenant]
	was, err := writeOverrides(before)
	if err != nil {
		return call, false, err
	}
	says, err := writeOverrides(s.File)
	if err != nil {
		return call, false, err
	}
	if says != was {
		source = shaper.SourceFile
	}
	call = q.tuneCall(p, s, source, says)
	resolved := s.resolved == p.revision || s.resolved == 0 && len(call.Settings) == 0
	return call, source != "" || !resolved, nil
}

// tuneCall changes what a source says of a tenant to what s holds.
func (q *Queue) tuneCall(p *policies, s stated, source, says string) lua.TuneCall {
	shard, name := q.keys.ShardOf(s.tenant), EncodeName(s.tenant)
	call := lua.TuneCall{
		Clock: shard.Clock(), Due: shard.Due(), Policy: shard.Policy(name), History: shard.History(name), Names: shard.Names(name),
		Tenants: shard.Tenants(), Tuned: shard.Tuned(), Lines: shard.LinesOf(name), Horizon: q.horizon, Policies: p.revision,
		Name: shortHash(uuid.NewString()), Expected: &s.revision, Source: source, Says: says, Entry: tenantEntry(s.tenant),
	}
	if !s.File.Empty() || !s.API.Empty() {
		call.Settings = p.lines(s.Statements)
	}
	return call
}

// stated is what the sources say of a tenant.
type stated struct {
	tenant   string
	revision int64
	resolved int64 // revision of the policies that the lines of its flows were resolved with; 0 without lines
	shaper.Statements
}

// stated reads what the sources say of tenants.
func (q *Queue) stated(ctx context.Context, c redis.UniversalClient, tenants ...string) ([]stated, error) {
	lines := make([]*redis.SliceCmd, 0, len(tenants))
	var settings []*redis.SliceCmd
	if _, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, tenant := range tenants {
			shard, name := q.keys.ShardOf(tenant), EncodeName(tenant)
			settings = append(settings, p.HMGet(ctx, shard.Policy(name), "revision", shaper.SourceAPI, shaper.SourceFile))
			lines = append(lines, p.HMGet(ctx, shard.LinesOf(name), "revision"))
		}
		return nil
	}); err != nil {
		return nil, unavailable(err)
	}
	out := make([]stated, len(tenants))
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
			return nil, unavailable(err)
		}
		s := stated{tenant: tenant, revision: found.Revision, resolved: resolved.Revision}
		var err error
		if s.API, err = readOverrides(found.API); err != nil {
			return nil, err
		}
		if s.File, err = readOverrides(found.File); err != nil {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}
