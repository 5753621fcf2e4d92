package queue

import (
	"context"
	"errors"
	"maps"
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

// ErrNoPool means that the configuration file in force declares no pool of that name.
var ErrNoPool = errors.New("queue: no such pool")

// Pool is the policy of a pool with the source of each setting, and its figures.
type Pool struct {
	Name     string
	Routes   []string // whose flows share it
	Policy   shaper.Policy
	Sources  map[string]string // setting → "api", "file" or "default"
	Reason   string            // given with the last change through the API
	Revision int64             // 0 if it was never changed through the API
	API      shaper.Overrides  // overrides that were set through the API

	Depth, Bytes, Running, Departed int64 // sums over its flows
	Costs                           int64 // of these departures; it falls where a job cost less than expected

	Waiting       int64     // flows that have a job to give
	Weights       int64     // sum of their weights, with that of a class once
	Owed          int64     // what its flows and classes owe together, in costs, see Flow.Owed
	Reserves      float64   // sum of their reserves, in costs a second; above the rate they degrade in proportion
	HeldUntil     time.Time // zero: it is not held
	HeldBy        HoldCause // while it is held
	LimitedBy     string    // rate, concurrency, held, paused, workers, flows or idle, as in LimitCauses
	EffectiveRate float64   // departures a second now: the rate, less what the holds of the upstream cost
}

// PoolFlow is a flow of a pool.
type PoolFlow struct {
	Tenant, Route string // the names themselves; as in keys where no waiting job names them
	Depth         int64
	Departed      int64
	Costs         int64 // as in Pool
	Running       int64
	Class         string // the tier whose tenants share Weight; empty for none
	Weight        int64
	Reserve       shaper.Rate // zero for none
	Part          float64     // of the pool's rate that weight and reserve entitle it to while the same flows wait

	// In a Brief, where Part is not set.
	Pool      string
	Waits     bool   // it has a job to give, and is in the sums of its pool
	LimitedBy string // one of LimitCauses
}

// Pools lists the names of the pools, sorted.
func (q *Queue) Pools() []string {
	return slices.Sorted(maps.Keys(q.policies.Current().Baseline.Pools))
}

// Tiers lists the names of the tiers of the file in force, sorted.
func (q *Queue) Tiers() []string {
	return slices.Sorted(maps.Keys(q.policies.Current().Baseline.Tiers))
}

// PoolOf returns the pool that a route is in, empty for none.
func (q *Queue) PoolOf(route string) string { return q.policies.Current().Baseline.PoolOf(route) }

// Pool reads the policy and figures of a pool. Errors: ErrNoPool, ErrUnavailable.
func (q *Queue) Pool(ctx context.Context, name string) (Pool, error) {
	return q.describePool(ctx, name, nil)
}

// describePool reads a pool as it is or, with other API overrides, as it would be.
func (q *Queue) describePool(ctx context.Context, name string, instead *shaper.Overrides) (Pool, error) {
	baseline, subject := q.policies.Current().Baseline, policies.Pool(name)
	if _, ok := baseline.Pools[name]; !ok {
		return Pool{}, ErrNoPool
	}
	scanned, now, err := q.scanTenant(ctx, subject)
	if err != nil {
		return Pool{}, err
	}
	waiting, err := q.waitingFlows(ctx, baseline, []policies.Subject{subject})
	if err != nil {
		return Pool{}, err
	}
	p, err := poolOf(baseline, name, scanned, now, waiting[0].flows, instead)
	if err != nil {
		return Pool{}, err
	}
	err = q.checkFlows(ctx, baseline, &p, scanned, now)
	return p, err
}

// checkFlows corrects limited_by where no flow of the pool could leave at its next slot: all wait
// for what limits each of them.
func (q *Queue) checkFlows(
	ctx context.Context, baseline shaper.Baseline, p *Pool, scanned scripts.ScannedTenant, now shaper.Instant,
) error {
	if p.LimitedBy != limitedWorkers && p.LimitedBy != limitedRate {
		return nil
	}
	subject, slot := policies.Pool(p.Name), max(now, scanned.Flows[0].Bucket.Earliest())
	home, key := q.policies.Home(subject), subject.Key()
	indexes := []string{home.Ready(key), home.Wait(key)}
	for tier := range baseline.PoolWeights {
		indexes = append(indexes, home.WaitInClass(key, tier))
	}
	counts, err := store.Pipeline(ctx, q.store.Reads, indexes, func(p redis.Pipeliner, index string) *redis.IntCmd {
		if index == indexes[0] { // by virtual start: all of these may leave
			return p.ZCard(ctx, index)
		}
		return p.ZCount(ctx, index, "-inf", strconv.FormatInt(int64(slot), 10))
	})
	if err == nil && slices.Max(counts) == 0 {
		p.LimitedBy = limitedFlows
	}
	return err
}

// AllPools reads all pools, sorted by name, in two round trips. Errors: ErrUnavailable.
func (q *Queue) AllPools(ctx context.Context) ([]Pool, error) {
	found, err := q.poolsNow(ctx, q.Pools())
	if err != nil || len(found) == 0 {
		return nil, err
	}
	pools := make([]Pool, len(found))
	for i, p := range found {
		pools[i] = p.Pool
	}
	return pools, nil
}

// poolNow is a pool with its waiting flows.
type poolNow struct {
	Pool
	waiting waitingFlows
}

// poolsNow reads the pools of these names, in two round trips.
func (q *Queue) poolsNow(ctx context.Context, names []string) ([]poolNow, error) {
	if len(names) == 0 {
		return nil, nil
	}
	baseline := q.policies.Current().Baseline
	subjects, calls := make([]policies.Subject, len(names)), make([]scripts.ScanCall, len(names))
	for i, name := range names {
		subjects[i] = policies.Pool(name)
		home := q.policies.Home(subjects[i])
		calls[i] = scripts.ScanCall{Clock: home.Clock(), Tenants: home.Tenants(), Dead: q.retention.Dead,
			Policy: home.Policy(subjects[i].Key())}
	}
	scans, err := store.InvokeAll(ctx, q.store, q.store.Reads, calls, scripts.ScanCall.Decode)
	if err != nil {
		return nil, err
	}
	waiting, err := q.waitingFlows(ctx, baseline, subjects)
	if err != nil {
		return nil, err
	}
	pools := make([]poolNow, len(names))
	for i, name := range names {
		if len(scans[i].Tenants) != 1 {
			return nil, store.Unavailable(scripts.ErrReply)
		}
		pools[i].waiting = waiting[i]
		pools[i].Pool, err = poolOf(baseline, name, scans[i].Tenants[0], scans[i].Now, waiting[i].flows, nil)
		if err == nil {
			err = q.checkFlows(ctx, baseline, &pools[i].Pool, scans[i].Tenants[0], scans[i].Now)
		}
		if err != nil {
			return nil, err
		}
	}
	return pools, nil
}

// bound completes the figures of a flow of the pool that has this policy, and returns the part of
// the pool's rate that the flow has while the same flows wait, or would have if it waited with
// them. class is the tier of a flow that shares the weight of its class.
func (p *poolNow) bound(f *Figures, policy shaper.Policy, class string, waits bool) (part float64) {
	weight, weights, members := max(policy.Weight, 1), p.Weights, int64(0)
	reserve, reserves := perSecond(policy.Reserve), p.Reserves
	if policy.ClassWeight > 0 {
		weight, members = policy.ClassWeight, p.waiting.classes[class]
	}
	if !waits {
		reserves += reserve
		if members == 0 {
			weights += weight
		}
		members++
	}
	part = shaper.Part(weight, weights, reserve, reserves, p.Policy.CostRate().PerSecond())
	if policy.ClassWeight > 0 {
		part /= float64(max(1, members))
	}
	if f.LimitedBy == limitedRate && p.LimitedBy != limitedFlows && part*p.EffectiveRate < f.EffectiveRate {
		f.LimitedBy = limitedPool
	}
	if f.LimitedBy == limitedPool && !p.HeldUntil.IsZero() {
		f.HeldUntil, f.HeldBy = p.HeldUntil, p.HeldBy
	}
	return part
}

// pooledFor is how long a scan uses what it has read of the pools.
const pooledFor = time.Second

// poolCache keeps the pools for the pages of scans.
type poolCache struct {
	mu    sync.Mutex
	at    time.Time
	pools map[string]*poolNow
}

// recentPools returns all pools by name, as they were in the last second.
func (q *Queue) recentPools(ctx context.Context) (map[string]*poolNow, error) {
	names, c := q.Pools(), &q.pooled
	if len(names) == 0 {
		return nil, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.at) < pooledFor && len(c.pools) == len(names) {
		return c.pools, nil
	}
	found, err := q.poolsNow(ctx, names)
	if err != nil {
		return nil, err
	}
	c.at, c.pools = time.Now(), byName(found)
	return c.pools, nil
}

func byName(pools []poolNow) map[string]*poolNow {
	out := make(map[string]*poolNow, len(pools))
	for i := range pools {
		out[pools[i].Name] = &pools[i]
	}
	return out
}

// waitingFlows counts the flows of a pool that have a job to give, and those of each class.
type waitingFlows struct {
	flows   int64
	classes map[string]int64
}

// waitingFlows counts the flows of each pool that have a job to give.
func (q *Queue) waitingFlows(
	ctx context.Context, baseline shaper.Baseline, pools []policies.Subject,
) ([]waitingFlows, error) {
	var indexes []string
	classes := slices.Collect(maps.Keys(baseline.PoolWeights))
	for _, s := range pools {
		home := q.policies.Home(s)
		indexes = append(indexes, home.Wait(s.Key()), home.Ready(s.Key()))
		for _, tier := range classes {
			indexes = append(indexes, home.WaitInClass(s.Key(), tier))
		}
	}
	sizes, err := store.Pipeline(ctx, q.store.Reads, indexes,
		func(p redis.Pipeliner, key string) *redis.IntCmd { return p.ZCard(ctx, key) })
	if err != nil {
		return nil, err
	}
	counts, each := make([]waitingFlows, len(pools)), 2+len(classes)
	for i, n := range sizes {
		c := &counts[i/each]
		if c.flows += n; i%each >= 2 && n > 0 {
			if c.classes == nil {
				c.classes = map[string]int64{}
			}
			c.classes[classes[i%each-2]] = n
		}
	}
	return counts, nil
}

// poolOf resolves the policy of a pool, with other API overrides unless instead is nil, and
// computes its figures.
func poolOf(
	baseline shaper.Baseline, name string, scanned scripts.ScannedTenant, now shaper.Instant, waiting int64,
	instead *shaper.Overrides,
) (Pool, error) {
	s, err := policies.Decode(scanned.API, "")
	if err != nil {
		return Pool{}, err
	}
	if instead != nil {
		s.API = *instead
	}
	p := Pool{Name: name, Routes: baseline.Pools[name].Routes, Reason: scanned.Reason,
		Revision: scanned.Revision, API: s.API}
	p.Policy, p.Sources = baseline.ResolvePoolCost(name, s.API)
	var flow scripts.ScannedFlow // one that never waited
	if len(scanned.Flows) > 0 {
		flow = scanned.Flows[0]
	}
	f := figuresOf(p.Policy, flow, now)
	p.Depth, p.Bytes, p.Running, p.Departed = f.Depth, f.Bytes, f.Running, f.Departed
	p.HeldUntil, p.HeldBy, p.LimitedBy, p.EffectiveRate = f.HeldUntil, f.HeldBy, f.LimitedBy, f.EffectiveRate
	p.Waiting, p.Weights, p.Reserves, p.Owed = waiting, flow.Weights, flow.Reserves, flow.Owed
	p.Costs = flow.Departed + flow.Extra
	return p, nil
}

// TunePool changes the API overrides of a pool. The backlog obeys at once. Errors: ErrNoPool,
// ErrRevision, ErrUnavailable, shaper.Problems when the resulting policy breaks a rule, or the
// error of change.Edit.
func (q *Queue) TunePool(ctx context.Context, name string, change Change) (Pool, error) {
	if _, ok := q.policies.Current().Baseline.Pools[name]; !ok {
		return Pool{}, ErrNoPool
	}
	api, err := q.change(ctx, policies.Pool(name), change, rules{
		validate: func(b shaper.Baseline, s shaper.Statements) error { return b.ValidatePool(name, s.API) },
		resumed:  func(b shaper.Baseline, s shaper.Statements) shaper.Overrides { return b.PoolResumed(name, s.API) },
	})
	switch {
	case err != nil:
		return Pool{}, err
	case change.DryRun:
		return q.describePool(ctx, name, &api)
	}
	return q.Pool(ctx, name)
}

// PoolHistory lists the last changes of a pool's API overrides, at most 100, the newest first.
// Errors: ErrNoPool, ErrUnavailable.
func (q *Queue) PoolHistory(ctx context.Context, name string) ([]HistoryEntry, error) {
	if _, ok := q.policies.Current().Baseline.Pools[name]; !ok {
		return nil, ErrNoPool
	}
	return q.history(ctx, policies.Pool(name))
}

// PoolFlows reads flows of a pool that have a job to give, at most most: first those that may leave
// next. Errors: ErrNoPool, ErrUnavailable.
func (q *Queue) PoolFlows(ctx context.Context, name string, most int) ([]PoolFlow, error) {
	p, err := q.Pool(ctx, name)
	if err != nil {
		return nil, err
	}
	subject, weights := policies.Pool(name), q.policies.Current().Baseline.PoolWeights
	home := q.policies.Home(subject)
	keys, tiers := []string{home.Ready(subject.Key())}, slices.Sorted(maps.Keys(weights))
	for _, tier := range tiers {
		keys = append(keys, home.WaitInClass(subject.Key(), tier))
	}
	keys = append(keys, home.Wait(subject.Key()))
	indexes, err := store.Pipeline(ctx, q.store.Reads, keys,
		func(p redis.Pipeliner, key string) *redis.StringSliceCmd { return p.ZRange(ctx, key, 0, int64(most)-1) })
	if err != nil {
		return nil, err
	}
	members, err := store.Pipeline(ctx, q.store.Reads, keys,
		func(p redis.Pipeliner, key string) *redis.IntCmd { return p.ZCard(ctx, key) })
	if err != nil {
		return nil, err
	}
	var names []string
	var of []int // the index of each
	for i, index := range indexes {
		for _, flow := range index[:min(len(index), most-len(names))] {
			names, of = append(names, flow), append(of, i)
		}
	}
	fields, err := store.Pipeline(ctx, q.store.Reads, names, func(p redis.Pipeliner, flow string) *redis.SliceCmd {
		return p.HMGet(ctx, home.Flow(flow), "depth", "departed", "running", "extra", "turn")
	})
	if err != nil {
		return nil, err
	}
	flows, err := q.namedFlows(ctx, home, names)
	if err != nil {
		return nil, err
	}
	for i := range flows {
		f := &flows[i]
		for k, n := range []*int64{&f.Depth, &f.Departed, &f.Running, &f.Costs} {
			text, _ := fields[i][k].(string)
			*n, _ = strconv.ParseInt(text, 10, 64) // 0 where it is missing
		}
		f.Costs += f.Departed
		turn, _ := fields[i][4].(string)
		f.Weight, f.Reserve = scripts.ParseTurn(turn)
		share := 1.0 // of the weight
		if in := of[i] - 1; in >= 0 && in < len(tiers) {
			f.Class, f.Weight, share = tiers[in], weights[tiers[in]], 1/float64(max(1, members[of[i]]))
		}
		f.Part = share * shaper.Part(f.Weight, p.Weights, perSecond(f.Reserve), p.Reserves, p.Policy.CostRate().PerSecond())
	}
	return flows, nil
}

// namedFlows returns flows with the names of their tenants and routes. Keys hold some names only as
// a hash. The record of the next job of such a flow has them in full.
func (q *Queue) namedFlows(ctx context.Context, home store.ShardKeys, keys []string) ([]PoolFlow, error) {
	flows := make([]PoolFlow, len(keys))
	var waits []string // the keys that hold the jobs of such flows
	var of []int       // the flow of each
	for i, key := range keys {
		flows[i].Tenant, flows[i].Route, _ = strings.Cut(key, "/")
		if strings.Contains(key, "~") {
			waits, of = append(waits, home.Queue(key), home.Later(key)), append(of, i, i)
		}
	}
	next, err := store.Pipeline(ctx, q.store.Reads, waits, func(p redis.Pipeliner, key string) *redis.StringSliceCmd {
		return p.ZRange(ctx, key, 0, 0)
	})
	if err != nil {
		return nil, err
	}
	records, err := store.Pipeline(ctx, q.store.Reads, next, func(p redis.Pipeliner, ids []string) *redis.StringCmd {
		return p.GetRange(ctx, home.Job(strings.Join(ids, "")), 0, scripts.BeforePayload-1) // one id or none
	})
	if err != nil {
		return nil, err
	}
	for k, i := range of {
		if r, err := scripts.DecodeStatus([]byte(records[k])); err == nil { // else no job, or it has left meanwhile
			flows[i].Tenant, flows[i].Route = r.Tenant, r.Route
		}
	}
	return flows, nil
}

// perSecond is a reserve a second, 0 for none.
func perSecond(r shaper.Rate) float64 {
	if r == (shaper.Rate{}) {
		return 0
	}
	return r.PerSecond()
}
