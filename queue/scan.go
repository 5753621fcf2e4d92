package queue

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/policies"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Brief is a tenant in a scan: the same figures as in Tenant, and the settings that explain them.
type Brief struct {
	Name     string
	Tier     string // by a setting, or claimed with its last job; empty for none
	Rate     shaper.Rate
	Rates    []shaper.Pace // shared: read-only
	Capacity int64
	Paused   bool
	Pooled   []PoolFlow // its flows that are in pools
	// PoolRate is what the pools of its flows allow all of their flows, departures per second; 0
	// where a flow is in none.
	PoolRate float64
	Owed     int64 // by its flows together, see Flow.Owed
	Costs    int64 // of a pool in the place of a tenant: Pool.Costs
	Figures
}

// Allowed is the effective rate, within what the pools allow.
func (b *Brief) Allowed() float64 {
	if b.PoolRate > 0 {
		return min(b.EffectiveRate, b.PoolRate)
	}
	return b.EffectiveRate
}

// A page of ScanPage tenants is small enough for polls and admissions, which wait for it.
const ScanPage = 16

// ScanCost is about what a page took of Redis, beside other work. The flows in pools are in shards
// of their own, so that each takes as much as a tenant with a flow or two.
func ScanCost(page []Brief) time.Duration {
	n := len(page)
	for _, b := range page {
		n += len(b.Pooled)
	}
	return time.Duration(n) * 60 * time.Microsecond
}

// Scan reads a page of about most tenants (at least 1) of one shard in short scripts. next is
// the cursor of the following page; "" starts and ends. A full scan returns every tenant that is
// known all the while; duplicates are possible. Errors: ErrCursor, ErrUnavailable.
func (q *Queue) Scan(ctx context.Context, cursor string, most int) (page []Brief, next string, err error) {
	n, from, err := readCursor(cursor, q.store.Len())
	if err != nil {
		return nil, "", err
	}
	shard := q.store.Shard(n)
	scan, err := q.scan(ctx, shard, scripts.ScanCall{Cursor: strconv.FormatInt(from, 10), Most: max(1, most)})
	if err != nil {
		return nil, "", err
	}
	if err := q.complete(ctx, shard, &scan); err != nil {
		return nil, "", err
	}
	pools, err := q.recentPools(ctx)
	if err != nil {
		return nil, "", err
	}
	return q.resolver.briefs(q.policies.Current(), scan, pools), cursorAfter(n, scan.Cursor, q.store.Len()), nil
}

// scanTenant reads one tenant or pool, also one never seen, with its flows in all shards.
func (q *Queue) scanTenant(ctx context.Context, s policies.Subject) (t scripts.ScannedTenant, now shaper.Instant, err error) {
	home := q.policies.Home(s)
	scan, err := q.scan(ctx, home, scripts.ScanCall{Policy: home.Policy(s.Key())})
	if err != nil {
		return t, 0, err
	}
	if len(scan.Tenants) != 1 {
		return t, 0, store.Unavailable(scripts.ErrReply)
	}
	t = scan.Tenants[0]
	if s.IsPool {
		return t, scan.Now, nil
	}
	all := []scripts.ScannedTenant{t}
	err = q.addParts(ctx, home, all, []string{s.Name})
	return all[0], scan.Now, err
}

// complete makes the page of a shard one of tenants with their flows in all shards. It leaves out
// those that another shard's page has.
func (q *Queue) complete(ctx context.Context, shard store.ShardKeys, scan *scripts.Scan) error {
	entries := make([]string, len(scan.Tenants))
	for i, t := range scan.Tenants {
		entries[i] = t.Entry
	}
	listed, err := q.listedHere(ctx, shard, entries)
	if err != nil {
		return err
	}
	scan.Tenants = slices.DeleteFunc(scan.Tenants, func(t scripts.ScannedTenant) bool { return !slices.Contains(listed, t.Entry) })
	names := make([]string, len(scan.Tenants))
	for i, t := range scan.Tenants {
		names[i] = store.TenantOfEntry(t.Entry)
	}
	return q.addParts(ctx, shard, scan.Tenants, names)
}

// listedHere returns the entries of a shard's index that are tenants listed by this shard: the
// first of the tenant's shards that knows it.
func (q *Queue) listedHere(ctx context.Context, shard store.ShardKeys, entries []string) (listed []string, err error) {
	type elsewhere struct {
		entry string
		shard store.ShardKeys
	}
	placed := q.policies.Current()
	var before []elsewhere
	for _, entry := range entries {
		listed = append(listed, entry)
		for _, s := range placed.Shards(store.TenantOfEntry(entry)) {
			if s == shard {
				break
			}
			before = append(before, elsewhere{entry, s})
		}
	}
	if len(before) == 0 {
		return listed, nil
	}
	known, err := store.Pipeline(ctx, q.store.Reads, before, func(p redis.Pipeliner, e elsewhere) *redis.FloatSliceCmd {
		return p.ZMScore(ctx, e.shard.Tenants(), e.entry) // 0 for one that is not there
	})
	if err != nil {
		return nil, err
	}
	for i, e := range before {
		if known[i][0] != 0 {
			listed = slices.DeleteFunc(listed, func(entry string) bool { return entry == e.entry })
		}
	}
	return listed, nil
}

// partFlows is about how many flows addParts reads of a tenant in one call, before it reads more.
const partFlows = 16

// addParts adds the flows that the tenants have in other shards than this one.
func (q *Queue) addParts(ctx context.Context, shard store.ShardKeys, tenants []scripts.ScannedTenant, names []string) error {
	placed := q.policies.Current()
	type part struct {
		of   int // the tenant
		key  string
		home bool // its shard has the settings
		at   store.ShardKeys
	}
	var parts []part
	for i, name := range names {
		for n, s := range placed.Shards(name) {
			if s != shard {
				parts = append(parts, part{i, store.EncodeName(name), n == 0, s})
			}
		}
	}
	// A call costs Redis ten times as much as a look whether there are flows. With eight pools, a
	// tenant may have flows in nine shards, and has in few.
	known, err := store.Pipeline(ctx, q.store.Reads, parts, func(pipe redis.Pipeliner, p part) *redis.IntCmd {
		return pipe.Exists(ctx, p.at.Names(p.key))
	})
	if err != nil {
		return err
	}
	var calls []scripts.ScanCall
	var of []int
	var at []store.ShardKeys
	for i, p := range parts {
		if p.home || known[i] > 0 {
			calls = append(calls, scripts.ScanCall{Clock: p.at.Clock(), Tenants: p.at.Tenants(), Dead: q.retention.Dead, Policy: p.at.Policy(p.key), MostFlows: partFlows})
			of, at = append(of, p.of), append(at, p.at)
		}
	}
	// Redis serves nobody else during the calls of one exchange.
	var found []scripts.Scan
	for some := range slices.Chunk(calls, scripts.ScanFlows/partFlows) {
		scans, err := store.InvokeAll(ctx, q.store, q.store.Reads, some, scripts.ScanCall.Decode)
		if err != nil {
			return err
		}
		found = append(found, scans...)
	}
	for n, scan := range found {
		if len(scan.Tenants) != 1 {
			return store.Unavailable(scripts.ErrReply)
		}
		calls[n].MostFlows = 0
		if err := store.ScanRest(ctx, q.store.Read, at[n], calls[n], &scan.Tenants[0]); err != nil {
			return err
		}
		t := &tenants[of[n]]
		if placed.Shards(names[of[n]])[0].Clock() == calls[n].Clock { // a page of a pool's shard has not read the settings
			part := scan.Tenants[0]
			t.Revision, t.API, t.File, t.Reason = part.Revision, part.API, part.File, part.Reason
		}
		for _, f := range scan.Tenants[0].Flows {
			t.Flows = addFlow(t.Flows, f)
		}
	}
	return nil
}

// addFlow adds a flow. A route that has joined or left a pool may have left a flow behind: the one
// with jobs counts.
func addFlow(flows []scripts.ScannedFlow, f scripts.ScannedFlow) []scripts.ScannedFlow {
	i := slices.IndexFunc(flows, func(other scripts.ScannedFlow) bool { return other.Flow == f.Flow })
	switch {
	case i < 0:
		return append(flows, f)
	case f.Depth+f.Running > 0 || f.Pool != "":
		flows[i] = f
	}
	return flows
}

func (q *Queue) scan(ctx context.Context, shard store.ShardKeys, call scripts.ScanCall) (scripts.Scan, error) {
	call.Dead = q.retention.Dead
	return store.Scan(ctx, q.store.Read, shard, call)
}

// resolver resolves the policies of scanned flows and caches them: most tenants have the same one.
type resolver struct {
	mu       sync.Mutex
	from     *policies.Set // that the cached ones were resolved with
	resolved map[statement]shaper.Policy
}

// statement is what a policy follows from, beside the baseline.
type statement struct{ route, claimed, api, file string }

// maxCached bounds the policies in the cache.
const maxCached = 100_000

func (r *resolver) briefs(from *policies.Set, scan scripts.Scan, pools map[string]*poolNow) []Brief {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from != from || len(r.resolved) > maxCached {
		r.from, r.resolved = from, map[statement]shaper.Policy{}
	}
	briefs := make([]Brief, len(scan.Tenants))
	for i, t := range scan.Tenants {
		s := statement{api: t.API, file: t.File, claimed: claimedTier(t)}
		general := r.policy(s)
		name, pooled, rates := store.TenantOfEntry(t.Entry), []PoolFlow(nil), map[string]float64{}
		var owed int64
		sum := sumOf(general, t.Flows, scan.Now, func(route string, f scripts.ScannedFlow) Figures {
			s.route = route
			policy := r.policy(s)
			figures := figuresOf(policy, f, scan.Now)
			if f.Pool != "" {
				flow := PoolFlow{
					Tenant: name, Route: route, Depth: f.Depth, Departed: f.Departed, Running: f.Running,
					Costs:  f.Departed + f.Extra,
					Weight: max(policy.Weight, 1), Reserve: policy.Reserve,
					Pool: r.from.Baseline.PoolOf(route), Waits: f.InTurn, LimitedBy: figures.LimitedBy,
				}
				if policy.ClassWeight > 0 {
					flow.Class, flow.Weight = s.claimed, policy.ClassWeight
				}
				if p := pools[flow.Pool]; p != nil { // else the policies have just changed
					p.bound(&figures, policy, s.claimed, f.InTurn)
					flow.LimitedBy, rates[flow.Pool] = figures.LimitedBy, p.EffectiveRate
				}
				pooled, owed = append(pooled, flow), owed+f.Owed
			}
			return figures
		})
		briefs[i] = Brief{
			Name: name, Tier: tierOf(s), Rate: general.Rate, Rates: general.Rates, Capacity: general.Capacity,
			Paused: general.Paused, Pooled: pooled, Owed: owed, Figures: sum,
		}
		if len(pooled) == len(t.Flows) {
			for _, rate := range rates {
				briefs[i].PoolRate += rate
			}
		}
	}
	return briefs
}

// tierOf is the tier of a tenant. Unreadable overrides name none.
func tierOf(s statement) string {
	if s.api == "" && s.file == "" {
		return s.claimed
	}
	says, _ := policies.Decode(s.api, s.file)
	says.Claimed = s.claimed
	tier, _ := says.Tier()
	return tier
}

// policy resolves a policy. Unreadable overrides are ignored here; Tenant fails with them.
func (r *resolver) policy(s statement) shaper.Policy {
	if p, known := r.resolved[s]; known {
		return p
	}
	settings, _ := policies.Decode(s.api, s.file)
	settings.Claimed = s.claimed
	p, _ := r.from.Baseline.Resolve(settings, s.route)
	r.resolved[s] = p
	return p
}

// claimedTier is the tier that the tenant's credential claimed last.
func claimedTier(t scripts.ScannedTenant) (tier string) {
	for _, f := range t.Flows {
		tier = f.Tier
	}
	return tier
}

// sumOf adds up the figures of a tenant's flows, which of computes. The effective rate is that of
// the slowest flow.
func sumOf(
	general shaper.Policy, flows []scripts.ScannedFlow, now shaper.Instant,
	of func(route string, f scripts.ScannedFlow) Figures,
) Figures {
	sum, slowest, full := figuresOf(general, scripts.ScannedFlow{}, now), 1.0, false
	for _, f := range flows {
		_, route, _ := strings.Cut(f.Flow, "/")
		sum.add(of(route, f))
		slowest, full = min(slowest, f.Bucket.Pace(now)), full || f.FullUntil > now
	}
	if general.Paused || full {
		sum.LimitedBy, sum.EffectiveRate = limitedPaused, 0
	} else {
		sum.EffectiveRate = effectiveRate(general, slowest)
	}
	return sum
}

// figuresOf computes the figures of a flow by the policy that holds for it now.
func figuresOf(p shaper.Policy, flow scripts.ScannedFlow, now shaper.Instant) Figures {
	f := Figures{
		Depth: flow.Depth, Bytes: flow.Bytes, Running: flow.Running, LimitedBy: limitedBy(p, flow, now),
		Admitted: flow.Admitted, Rejected: flow.Rejected, Departed: flow.Departed, Succeeded: flow.Succeeded,
		Dead: flow.Letters, DeadTotal: flow.Dead,
	}
	if held := flow.Bucket.HeldUntil; held > now {
		f.HeldUntil, f.HeldBy = held.Time(), decodeCause(flow.Cause)
	}
	if flow.Oldest > 0 {
		f.OldestWait = max(0, now.Sub(flow.Oldest))
	}
	if f.LimitedBy != limitedPaused {
		f.EffectiveRate = effectiveRate(p, flow.Bucket.Pace(now))
	}
	return f
}

// limitedBy names what keeps the next job of a flow from leaving; see LimitCauses. The report of a
// worker is passed on as it is.
func limitedBy(p shaper.Policy, f scripts.ScannedFlow, now shaper.Instant) string {
	switch {
	case p.Paused, f.FullUntil > now:
		return limitedPaused
	case f.Queued == 0:
		return limitedIdle
	case f.Bucket.HeldUntil > now && decodeCause(f.Cause).By == HeldByAuth:
		return limitedAuth
	case f.Bucket.HeldUntil > now:
		return limitedHeld
	case p.Concurrency > 0 && f.Running >= p.Concurrency:
		return limitedConcurrency
	case f.Hindered.Until > now:
		return f.Hindered.Cause
	case f.Pool != "" && (f.Bucket.Earliest() <= now || f.Bucket.Earliest() == f.Bucket.Ready):
		return limitedPool // its turn, or what it owes
	}
	// A flow whose policy has changed is ready at once, so its workers are not late.
	if bucket, changed := f.Bucket.Retune(p.Paces(), now); !changed && bucket.Earliest() < now.Add(-overdue) {
		return limitedWorkers
	}
	return limitedRate
}

// effectiveRate is the number of jobs per second that may leave with the given part of the rate in
// force. Holds slow the rate alone, not the further rates.
func effectiveRate(p shaper.Policy, pace float64) float64 {
	effective := p.Rate.PerSecond() * pace
	for _, further := range p.Rates {
		effective = min(effective, further.Rate.PerSecond())
	}
	return effective
}

// add sums the figures of a flow up. A tenant is limited by what limits one of its flows that has
// jobs, and only by pauses if all of these are paused. The rate is not a sum.
func (f *Figures) add(flow Figures) {
	f.Depth += flow.Depth
	f.Bytes += flow.Bytes
	f.Running += flow.Running
	f.Admitted += flow.Admitted
	f.Rejected += flow.Rejected
	f.Departed += flow.Departed
	f.Succeeded += flow.Succeeded
	f.Dead += flow.Dead
	f.DeadTotal += flow.DeadTotal
	if flow.HeldUntil.After(f.HeldUntil) {
		f.HeldUntil, f.HeldBy = flow.HeldUntil, flow.HeldBy
	}
	f.OldestWait = max(f.OldestWait, flow.OldestWait)
	switch flow.LimitedBy {
	case limitedIdle:
	case limitedPaused:
		if flow.Depth > 0 && f.LimitedBy == limitedIdle { // else another flow has jobs that may leave
			f.LimitedBy = limitedPaused
		}
	default:
		f.LimitedBy = flow.LimitedBy
	}
}
