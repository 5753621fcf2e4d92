package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/policies"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Erased is what one call of Erase removed, and what is left.
type Erased struct {
	Jobs            int64 `json:"jobs"`             // in any state, with their payloads and results
	Answers         int64 `json:"answers"`          // of these jobs, stored answers to forwarded requests
	Callbacks       int64 `json:"callbacks"`        // that were not handed over to asynq yet
	IdempotencyKeys int64 `json:"idempotency_keys"` // of jobs that are gone, too
	Keys            int64 `json:"api_keys"`
	CallbackSecrets int64 `json:"callback_secrets"`
	Revocations     int64 `json:"revocations"` // of tokens
	Settings        int64 `json:"settings"`    // policies that the API has set, of the tenant and its routes; endpoints
	History         int64 `json:"history"`     // entries
	Flows           int64 `json:"flows"`       // with their counts
	Running         int64 `json:"running"`     // deliveries under way, which are not removed yet
	// More says that something is left: call again with this cursor. Where only deliveries under
	// way are left, wait a second before.
	More   bool   `json:"more"`
	Cursor string `json:"cursor,omitempty"`
}

// Bounds of one call of Erase.
const (
	eraseTime = 3 * time.Second
	erasePage = 500 // keys of one SCAN
)

// Erase removes a tenant in steps of bounded length: API keys, jobs in all states, answers,
// callbacks that wait, their secrets and endpoints, idempotency keys, history, settings of the API.
// The first step drains and pauses it. Deliveries under way end by themselves, but for answers that
// come now, which break off. They are removed afterwards. Settings of the configuration file stay.
// Steps may be repeated and stopped at any time. Errors: ErrCursor, ErrUnavailable.
func (q *Queue) Erase(ctx context.Context, tenant, cursor string) (e Erased, err error) {
	// seen says that this pass, which may take several calls, met a delivery under way. It may have
	// ended behind the pass, so another one must follow.
	node, from, seen := 0, uint64(0), 0
	if cursor == "" {
		if done, err := q.eraseWaiting(ctx, tenant, &e); err != nil || !done {
			e.More = true
			return e, err
		}
	} else if _, err := fmt.Sscanf(cursor, "%d-%d-%d", &node, &from, &seen); err != nil || node < 0 {
		return e, ErrCursor
	}
	nodes, err := q.nodes(ctx)
	if err != nil {
		return e, err
	}
	defer q.beginSweep()()
	began := time.Now()
	for step := began; node < len(nodes); step = q.rest(ctx, step) {
		keys, next, err := nodes[node].Scan(ctx, from, "sluice:{*}:*", erasePage).Result()
		if err != nil {
			return e, store.Unavailable(err)
		}
		if err := q.eraseKeys(ctx, tenant, keys, &e); err != nil {
			return e, err
		}
		if from = next; from == 0 {
			node++
		}
		if e.Running > 0 {
			seen = 1
		}
		if node < len(nodes) && time.Since(began) > eraseTime {
			e.More, e.Cursor = true, fmt.Sprintf("%d-%d-%d", node, from, seen)
			return e, nil
		}
	}
	left, err := q.eraseFlows(ctx, tenant, &e)
	if err != nil || left || seen > 0 {
		e.More = true
		return e, err
	}
	return e, q.eraseSettings(ctx, tenant, &e)
}

// eraseWaiting revokes the API keys of a tenant, stops it, and ends its waiting and dead jobs. done
// is false where some are left.
func (q *Queue) eraseWaiting(ctx context.Context, tenant string, e *Erased) (done bool, err error) {
	keys := q.Keys()
	list, err := keys.ListKeys(ctx, tenant)
	if err != nil {
		return false, err
	}
	for _, k := range list {
		if err := keys.RevokeKey(ctx, tenant, k.ID); err != nil && !errors.Is(err, ErrUnknownKey) {
			return false, err
		}
		e.Keys++
	}
	known, err := q.holdsAny(ctx, tenant)
	if err != nil || !known {
		return !known, err
	}
	yes := true
	if _, err := q.Tune(ctx, tenant, Change{Reason: "erasure", Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Paused, o.Draining = &yes, &yes
		return o, nil
	}}); err != nil {
		return false, err
	}
	swept, err := q.Purge(ctx, tenant, Filter{})
	e.Jobs += swept.Count // the records of cancelled ones are removed later, and not counted again
	return !swept.More, err
}

// holdsAny reports whether a tenant has flows or settings of its own.
func (q *Queue) holdsAny(ctx context.Context, tenant string) (bool, error) {
	name := store.EncodeName(tenant)
	found, err := store.Pipeline(ctx, q.store.Patient, q.store.Shards(), func(p redis.Pipeliner, s store.ShardKeys) *redis.IntCmd {
		return p.Exists(ctx, s.Names(name), s.Policy(name), s.History(name))
	})
	return slices.ContainsFunc(found, func(n int64) bool { return n > 0 }), err
}

// nodes returns the masters of a cluster in a fixed order, or the one Redis there is.
func (q *Queue) nodes(ctx context.Context) (all []redis.UniversalClient, err error) {
	cluster, many := q.store.Patient.(*redis.ClusterClient)
	if !many {
		return []redis.UniversalClient{q.store.Patient}, nil
	}
	byAddress, found := map[string]redis.UniversalClient{}, make(chan *redis.Client, 1000)
	if err := cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
		found <- c
		return nil
	}); err != nil {
		return nil, store.Unavailable(err)
	}
	close(found)
	var addresses []string
	for c := range found {
		byAddress[c.Options().Addr] = c
		addresses = append(addresses, c.Options().Addr)
	}
	slices.Sort(addresses)
	for _, a := range addresses {
		all = append(all, byAddress[a])
	}
	return all, nil
}

// eraseKeys removes the records of jobs that have ended, and idempotency keys, among the keys.
func (q *Queue) eraseKeys(ctx context.Context, tenant string, keys []string, e *Erased) error {
	name := store.EncodeName(tenant)
	var records, gone []string
	for _, key := range keys {
		_, rest, _ := strings.Cut(key, "}:")
		if id, ok := strings.CutPrefix(rest, "job:"); ok {
			if shard, ok := q.store.ShardOfID(id); ok && shard.Job(id) == key {
				records = append(records, id)
			}
		}
		if strings.HasPrefix(rest, "idem:"+name+":") {
			gone = append(gone, key)
			e.IdempotencyKeys++
		}
	}
	shardOf := func(id string) store.ShardKeys {
		shard, _ := q.store.ShardOfID(id) // was checked
		return shard
	}
	heads, err := store.Pipeline(ctx, q.store.Patient, records, func(p redis.Pipeliner, id string) *redis.StringCmd {
		return p.GetRange(ctx, shardOf(id).Job(id), 0, scripts.PeekFlow-1)
	})
	if err != nil {
		return err
	}
	var ended, dead, running []string
	for i, head := range heads {
		r, ok := scripts.PeekRecord([]byte(head))
		if !ok || tenantOf(r.Flow) != name {
			continue
		}
		switch {
		case r.State == shaper.Leased:
			e.Running++
			running = append(running, records[i])
		case r.State == shaper.Dead:
			dead = append(dead, records[i])
		case r.State.Done():
			ended = append(ended, records[i])
		}
	}
	if err := q.endStreams(ctx, running); err != nil {
		return err
	}
	if len(ended)+len(dead)+len(gone) == 0 {
		return nil
	}
	outbox := map[string]*redis.IntCmd{}
	var removed []*redis.IntCmd
	if _, err := q.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, id := range slices.Concat(ended, dead) { // first: a callback must not outlive its job
			outbox[id] = p.ZRem(ctx, shardOf(id).Outbox(), id)
		}
		for _, id := range ended {
			removed = append(removed, p.Del(ctx, shardOf(id).Job(id)))
		}
		for _, id := range slices.Concat(ended, dead) { // parts of an answer linger
			s := shardOf(id)
			p.Del(ctx, s.Stream(id), s.Beyond(id), s.Reading(id))
		}
		for _, key := range gone {
			p.Del(ctx, key)
		}
		return nil
	}); err != nil {
		return store.Unavailable(err)
	}
	for _, n := range outbox {
		e.Callbacks += n.Val()
	}
	for i, n := range removed {
		if r, _ := scripts.PeekRecord([]byte(heads[slices.Index(records, ended[i])])); r.State != shaper.Cancelled {
			e.Jobs += n.Val()
		}
	}
	jobs := make([]Job, len(dead))
	for i, id := range dead {
		jobs[i] = Job{ID: id}
	}
	for some := range slices.Chunk(jobs, purgeMost) {
		codes, err := q.discard(ctx, tenant, some, true)
		if err != nil {
			return err
		}
		e.Jobs += int64(len(codes))
		// What failed for good is no dead letter: it is kept like a job that has ended.
		if err := q.dropRecords(ctx, some, codes); err != nil {
			return err
		}
	}
	return nil
}

// endStreams ends the requests whose answers come now, which may last for long: their parts are
// stored until then.
func (q *Queue) endStreams(ctx context.Context, running []string) error {
	streams, err := store.Pipeline(ctx, q.store.Patient, running, func(p redis.Pipeliner, id string) *redis.IntCmd {
		shard, _ := q.store.ShardOfID(id) // was checked
		return p.Exists(ctx, shard.Stream(id))
	})
	if err != nil {
		return err
	}
	for i, n := range streams {
		if n > 0 {
			if err := q.Leave(ctx, running[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// dropRecords deletes the records that the script has left, because they are no dead letters.
func (q *Queue) dropRecords(ctx context.Context, jobs []Job, codes []scripts.JobCode) error {
	_, err := q.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		p.Ping(ctx) // an empty pipeline is an error
		for i, j := range jobs {
			if codes[i] == scripts.JobConflict || codes[i] == scripts.JobAbsent {
				shard, _ := q.store.ShardOfID(j.ID)
				p.Del(ctx, shard.Job(j.ID))
			}
		}
		return nil
	})
	return store.Unavailable(err)
}

// eraseFlows removes the flows of a tenant. left is true where one still has jobs.
func (q *Queue) eraseFlows(ctx context.Context, tenant string, e *Erased) (left bool, err error) {
	name := store.EncodeName(tenant)
	names, err := store.Pipeline(ctx, q.store.Patient, q.store.Shards(), func(p redis.Pipeliner, s store.ShardKeys) *redis.StringSliceCmd {
		return p.SMembers(ctx, s.Names(name))
	})
	if err != nil {
		return false, err
	}
	for i, shard := range q.store.Shards() {
		for _, flow := range names[i] {
			was, err := store.Invoke(ctx, q.store.RunPatient, scripts.EraseCall{
				Clock: shard.Clock(), Due: shard.Due(), Flow: shard.Flow(flow), Horizon: q.horizon,
			})
			if err != nil {
				return false, err
			}
			if was.Busy {
				left = true
				continue
			}
			e.Answers, e.Flows = e.Answers+was.Answers, e.Flows+1
		}
	}
	if left {
		return true, nil
	}
	_, err = q.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, shard := range q.store.Shards() {
			p.ZRem(ctx, shard.Tenants(), store.TenantEntry(tenant))
			p.Del(ctx, shard.Names(name))
		}
		return nil
	})
	return false, store.Unavailable(err)
}

// eraseSettings removes history and API settings of a tenant; those of the file stay.
func (q *Queue) eraseSettings(ctx context.Context, tenant string, e *Erased) error {
	subject, name := policies.Tenant(tenant), store.EncodeName(tenant)
	home := q.policies.Home(subject)
	found, err := q.store.Patient.HMGet(ctx, home.Policy(name), "api", "file").Result()
	if err != nil {
		return store.Unavailable(err)
	}
	if found[0] != nil {
		if api, _ := found[0].(string); api != "" {
			e.Settings++
		}
		if _, err := q.Tune(ctx, tenant, Change{Edit: func(shaper.Overrides) (shaper.Overrides, error) {
			return shaper.Overrides{}, nil
		}}); err != nil {
			return err
		}
	}
	file, _ := found[1].(string)
	var history *redis.IntCmd
	if _, err := q.store.Patient.Pipelined(ctx, func(p redis.Pipeliner) error {
		history = p.LLen(ctx, home.History(name))
		p.Del(ctx, home.History(name))
		if file == "" {
			p.SRem(ctx, home.Tuned(), store.TenantEntry(tenant))
			p.Del(ctx, home.Policy(name))
			for _, shard := range q.store.Shards() {
				p.SRem(ctx, shard.Tuned(), store.TenantEntry(tenant))
				p.ZRem(ctx, shard.Tenants(), store.TenantEntry(tenant))
				p.Del(ctx, shard.LinesOf(name), shard.Policy(name))
			}
		}
		return nil
	}); err != nil {
		return store.Unavailable(err)
	}
	e.History += history.Val()
	secrets, endpoints, err := q.Callbacks().erase(ctx, tenant)
	if err != nil {
		return err
	}
	revocations, err := q.Tokens().erase(ctx, tenant)
	if err != nil {
		return err
	}
	e.CallbackSecrets, e.Settings = e.CallbackSecrets+secrets, e.Settings+endpoints
	e.Revocations += revocations
	return q.confirm(ctx, tenant)
}
