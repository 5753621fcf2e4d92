package queue

import (
	"context"
	"strconv"
	"strings"
	"sync"

	"github.com/7509e464/sluice/lua"
	"github.com/7509e464/sluice/queue/internal/policies"
	"github.com/7509e464/sluice/queue/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Brief is a tenant in a scan: the same figures as in Tenant, and the settings that explain them.
type Brief struct {
	Name     string
	Rate     shaper.Rate
	Rates    []shaper.Pace // shared: read-only
	Capacity int64
	Paused   bool
	Figures
}

// Scan reads a page of about most tenants (at least 1) of one shard in one short script. next is
// the cursor of the following page; "" starts and ends. A full scan returns every tenant that is
// known all the while; duplicates are possible. Errors: ErrCursor, ErrUnavailable.
func (q *Queue) Scan(ctx context.Context, cursor string, most int) (page []Brief, next string, err error) {
	n, from, err := readCursor(cursor, q.store.Len())
	if err != nil {
		return nil, "", err
	}
	scan, err := q.scan(ctx, q.store.Shard(n), lua.ScanCall{
		Cursor: strconv.FormatInt(from, 10), Most: max(1, most),
	})
	if err != nil {
		return nil, "", err
	}
	return q.resolver.briefs(q.policies.Current(), scan), cursorAfter(n, scan.Cursor, q.store.Len()), nil
}

// scanTenant reads one tenant, also one never seen.
func (q *Queue) scanTenant(
	ctx context.Context, tenant string,
) (t lua.ScannedTenant, now shaper.Instant, err error) {
	shard := q.store.ShardOf(tenant)
	scan, err := q.scan(ctx, shard, lua.ScanCall{Policy: shard.Policy(EncodeName(tenant))})
	if err != nil {
		return t, 0, err
	}
	if len(scan.Tenants) != 1 {
		return t, 0, store.Unavailable(lua.ErrReply)
	}
	return scan.Tenants[0], scan.Now, nil
}

func (q *Queue) scan(ctx context.Context, shard ShardKeys, call lua.ScanCall) (lua.Scan, error) {
	call.Clock, call.Tenants, call.Dead = shard.Clock(), shard.Tenants(), q.retention.Dead
	return store.Invoke(ctx, q.store.Run, call)
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

func (r *resolver) briefs(from *policies.Set, scan lua.Scan) []Brief {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.from != from || len(r.resolved) > maxCached {
		r.from, r.resolved = from, map[statement]shaper.Policy{}
	}
	briefs := make([]Brief, len(scan.Tenants))
	for i, t := range scan.Tenants {
		s := statement{api: t.API, file: t.File, claimed: claimedTier(t)}
		general := r.policy(s)
		briefs[i] = Brief{
			Name: store.TenantOfEntry(t.Entry), Rate: general.Rate, Rates: general.Rates,
			Capacity: general.Capacity, Paused: general.Paused,
			Figures: sumOf(general, t.Flows, scan.Now, func(route string, f lua.ScannedFlow) Figures {
				s.route = route
				return figuresOf(r.policy(s), f, scan.Now)
			}),
		}
	}
	return briefs
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
func claimedTier(t lua.ScannedTenant) (tier string) {
	for _, f := range t.Flows {
		tier = f.Tier
	}
	return tier
}

// sumOf adds up the figures of a tenant's flows, which of computes. The effective rate is that of
// the slowest flow.
func sumOf(
	general shaper.Policy, flows []lua.ScannedFlow, now shaper.Instant,
	of func(route string, f lua.ScannedFlow) Figures,
) Figures {
	sum, slowest, full := figuresOf(general, lua.ScannedFlow{}, now), 1.0, false
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
func figuresOf(p shaper.Policy, flow lua.ScannedFlow, now shaper.Instant) Figures {
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
func limitedBy(p shaper.Policy, f lua.ScannedFlow, now shaper.Instant) string {
	switch {
	case p.Paused, f.FullUntil > now:
		return limitedPaused
	case f.Queued == 0:
		return limitedIdle
	case f.Bucket.HeldUntil > now:
		return limitedHeld
	case p.Concurrency > 0 && f.Running >= p.Concurrency:
		return limitedConcurrency
	case f.Hindered.Until > now:
		return f.Hindered.Cause
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
// jobs. The rate is not a sum.
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
	if flow.LimitedBy != limitedIdle && flow.LimitedBy != limitedPaused {
		f.LimitedBy = flow.LimitedBy
	}
}
