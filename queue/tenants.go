package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/policies"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/shaper"
)

// Tenant reads the policy and the figures of a tenant. One that was never seen has the defaults.
// Errors: ErrUnavailable.
func (q *Queue) Tenant(ctx context.Context, tenant string) (Tenant, error) {
	return q.describe(ctx, tenant, nil)
}

// describe reads a tenant as it is or, with other API overrides, as it would be.
func (q *Queue) describe(ctx context.Context, tenant string, instead *shaper.Overrides) (Tenant, error) {
	scanned, now, err := q.scanTenant(ctx, policies.Tenant(tenant))
	if err != nil {
		return Tenant{}, err
	}
	s, err := policies.Decode(scanned.API, scanned.File)
	if err != nil {
		return Tenant{}, err
	}
	s.Claimed = claimedTier(scanned)
	if instead != nil {
		s.API = *instead
	}
	pools, err := q.poolsOf(ctx, s, scanned)
	if err != nil {
		return Tenant{}, err
	}
	return q.tenantOf(tenant, s, scanned, pools, q.headroom.shareOf(ctx, scanned), now), nil
}

// poolsOf reads the pools that flows of the tenant are in.
func (q *Queue) poolsOf(
	ctx context.Context, s shaper.Statements, scanned scripts.ScannedTenant,
) (map[string]*poolNow, error) {
	baseline, names := q.policies.Current().Baseline, []string(nil)
	routes := baseline.Mentioned(s)
	for _, f := range scanned.Flows {
		_, route, _ := strings.Cut(f.Flow, "/")
		routes = append(routes, route)
	}
	for _, route := range routes {
		if pool := baseline.PoolOf(route); pool != "" && !slices.Contains(names, pool) {
			names = append(names, pool)
		}
	}
	found, err := q.poolsNow(ctx, names)
	return byName(found), err
}

// tenantOf resolves a tenant's policies and computes its figures. share is what a flow of it may
// store; 0 is no bound.
func (q *Queue) tenantOf(
	tenant string, s shaper.Statements, scanned scripts.ScannedTenant, pools map[string]*poolNow, share int64,
	now shaper.Instant,
) Tenant {
	baseline := q.policies.Current().Baseline
	t := Tenant{
		Name: tenant, Known: scanned.Revision > 0 || len(scanned.Flows) > 0, Reason: scanned.Reason,
		Revision: scanned.Revision,
		API:      s.API, Routes: map[string]Flow{},
	}
	t.Policy, t.Sources = baseline.Resolve(s, "")
	t.Tier, t.Sources["tier"] = s.Tier()
	rates := map[string]float64{} // of its pools
	figures := func(route string, scanned scripts.ScannedFlow) Figures {
		var f Flow
		f.Policy, f.Sources = baseline.Resolve(s, route)
		f.Pool, f.Figures = baseline.PoolOf(route), figuresOf(f.Policy, scanned, now)
		f.Stored, f.Share = q.storedOf(scanned, now), share
		own := f.Figures
		if p := pools[f.Pool]; p != nil {
			f.PoolRate, f.Part = p.EffectiveRate, p.bound(&own, f.Policy, s.Claimed, scanned.InTurn)
			f.Figures, f.Owed = own, scanned.Owed
			f.EffectiveRate = min(f.EffectiveRate, p.EffectiveRate)
			rates[f.Pool] = p.EffectiveRate
		}
		t.Routes[route] = f
		return own
	}
	for _, route := range baseline.Mentioned(s) {
		figures(route, scripts.ScannedFlow{})
	}
	t.Figures = sumOf(t.Policy, scanned.Flows, now, figures)
	together, alone := 0.0, false
	for _, rate := range rates {
		together += rate
	}
	for _, f := range t.Routes {
		alone = alone || f.Pool == ""
	}
	if len(rates) > 0 && !alone {
		t.EffectiveRate = min(t.EffectiveRate, together)
	}
	full := ""
	for _, f := range scanned.Flows {
		t.DeadBytes += f.Stored.Dead
		t.Stored += q.storedOf(f, now)
		switch {
		case f.FullUntil <= now:
		case f.Stored.Dead >= q.retention.DeadBytes:
			full = fmt.Sprintf("its dead letters had as many bytes as are kept (now %d): "+
				"replay or purge some", q.retention.DeadBytes)
		case full == "":
			full = fmt.Sprintf("it had as many dead letters as are kept (now %d): replay or purge some",
				q.retention.DeadCapacity)
		}
	}
	if full != "" && !t.Policy.Paused {
		t.Reason = full
	}
	return t
}

// storedOf returns how many bytes the store keeps of a flow.
func (q *Queue) storedOf(f scripts.ScannedFlow, now shaper.Instant) int64 {
	n := f.Stored.Dead + f.Stored.Kept + f.Stored.Answers.Left(now, q.retention.Finished) +
		f.Stored.Keys.Left(now, max(q.retention.Finished, q.retention.Idempotency))
	if f.Depth > 0 || f.Running > 0 { // else what is counted is of records that were lost
		n += f.Stored.Live
	}
	return n
}

// What limits a flow.
const (
	limitedRate        = "rate"
	limitedConcurrency = "concurrency"
	limitedUpstream    = "upstream"
	limitedWorkers     = "workers"
	limitedFlows       = "flows"
	limitedAuth        = "auth"
	limitedHeld        = "held"
	limitedPaused      = "paused"
	limitedIdle        = "idle"
	limitedLate        = "late"
	limitedPool        = "pool"
)

// LimitCauses lists what can keep the next job of a flow from leaving:
//
//	rate         the rate, or one of the further rates
//	concurrency  the flow's own cap
//	pool         it waits for its turn in its pool
//	upstream     its deliveries hold all the slots that a worker keeps for them
//	late         its jobs come too late from Redis to leave at their stamps
//	workers      it could leave, and no worker leases it: all slots are taken, or none is live
//	flows        of a pool: each of its flows waits for its own rate, hold, pause or concurrency
//	held         the upstream requested a pause, or its circuit breaker is open
//	paused       an operator, or as many dead letters as are kept
//	idle         nothing waits
//
// upstream and late are reported by workers, in the flow's field hindered; see lib/flow.lua.
var LimitCauses = []string{limitedRate, limitedConcurrency, limitedPool, limitedUpstream, limitedLate, limitedWorkers, limitedFlows, limitedAuth, limitedHeld, limitedPaused, limitedIdle}

// encode is the cause as it is kept with a flow.
func (c HoldCause) encode() string {
	if c.By == "" {
		return ""
	}
	return c.By + ":" + strconv.Itoa(c.Status)
}

// decodeCause is the inverse of encode. What another version may have written is taken for nothing
// known.
func decodeCause(text string) HoldCause {
	by, status, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(status)
	if err != nil || !slices.Contains(HeldBy, by) {
		return HoldCause{}
	}
	return HoldCause{By: by, Status: n}
}

// overdue is how late the next job of a flow must be for the workers to be what limits it.
const overdue = time.Second

// tuneTries bounds how often a change is computed anew because others were faster.
const tuneTries = 20

// Tune changes a tenant's API overrides. The backlog obeys at once. Errors: ErrRevision,
// ErrUnavailable, shaper.Problems when the resulting policy breaks a rule, or the error of
// change.Edit.
func (q *Queue) Tune(ctx context.Context, tenant string, change Change) (Tenant, error) {
	api, err := q.change(ctx, policies.Tenant(tenant), change, rules{
		validate: func(b shaper.Baseline, s shaper.Statements) error { return b.Validate(s) },
		resumed:  func(b shaper.Baseline, s shaper.Statements) shaper.Overrides { return b.Resumed(s) },
	})
	switch {
	case err != nil:
		return Tenant{}, err
	case change.DryRun:
		return q.describe(ctx, tenant, &api)
	}
	return q.Tenant(ctx, tenant)
}

// rules are what changes of tenants or of pools obey.
type rules struct {
	validate func(shaper.Baseline, shaper.Statements) error
	resumed  func(shaper.Baseline, shaper.Statements) shaper.Overrides
}

// change changes the API overrides of a tenant or a pool, unless it is a dry run, and returns them.
// A change that changes none of them keeps the revision and the history, but the first one of an
// unknown tenant, which makes it known. A reason alone is no change.
// It is refused for what it breaks, not for what another file has made of earlier settings: an
// operator can still pause then.
func (q *Queue) change(
	ctx context.Context, subject policies.Subject, change Change, of rules,
) (api shaper.Overrides, err error) {
	for range tuneTries {
		p := q.policies.Current()
		s, err := q.policies.Stated(ctx, subject)
		if err != nil {
			return api, err
		}
		if change.IfRevision != nil && *change.IfRevision != s.Revision {
			return api, fmt.Errorf("%w: %d", ErrRevision, s.Revision)
		}
		former := s
		if s.API, err = change.Edit(s.API); err != nil {
			return api, err
		}
		if change.Resume {
			s.API = of.resumed(p.Baseline, s.Statements)
		}
		if problems, wrong := of.validate(p.Baseline, s.Statements).(shaper.Problems); wrong {
			earlier, _ := of.validate(p.Baseline, former.Statements).(shaper.Problems)
			err = slices.DeleteFunc(problems, func(p shaper.Problem) bool { return slices.Contains(earlier, p) }).Err()
		}
		if err != nil || change.DryRun {
			return s.API, err
		}
		if !change.EndHolds && s.Revision > 0 && policies.EncodeOverrides(s.API) == policies.EncodeOverrides(former.API) {
			// An earlier try may have made this change.
			if err := q.store.Confirm(ctx, q.policies.Home(subject).Policy(subject.Key())); err != nil {
				return s.API, err
			}
			return s.API, q.policies.Spread(ctx, p, subject, false)
		}
		changed, err := q.tune(ctx, p, s, former.API, change)
		if err != nil || changed {
			return s.API, err
		}
	}
	return api, fmt.Errorf("%w: too many concurrent changes of %s", ErrUnavailable, subject.Key())
}

// tune stores API overrides, with an entry in the history. changed is false where another change or
// other policies came first.
func (q *Queue) tune(
	ctx context.Context, p *policies.Set, s policies.Stated, before shaper.Overrides, change Change,
) (changed bool, err error) {
	action := ""
	if change.EndHolds {
		action = ActionUnhold
	}
	if change.EndCharge {
		action = ActionUnholdCharge
	}
	entry, _ := json.Marshal(HistoryEntry{ // text and numbers cannot fail
		At: time.Now().UTC(), Revision: s.Revision + 1, Actor: change.Actor, Action: action, Reason: change.Reason,
		Before: before, After: s.API,
	})
	call := q.policies.TuneCall(p, s, shaper.SourceAPI, policies.EncodeOverrides(s.API))
	call.Reason, call.HistoryEntry = change.Reason, string(entry)
	call.EndHolds, call.EndCharge = change.EndHolds, change.EndCharge
	if err := q.policies.Intend(ctx, p, s.Subject); err != nil {
		return false, err
	}
	var tuned scripts.Tuned
	values, err := q.store.RunDurable(ctx, call.Call())
	if err == nil {
		tuned, _, err = call.Decode(values)
	}
	switch {
	case err != nil:
		return false, store.Unavailable(err)
	case tuned == scripts.TunedOtherPolicies:
		return false, q.policies.Reinstate(ctx, q.policies.Home(s.Subject))
	}
	return tuned == scripts.TunedChanged, q.policies.Spread(ctx, p, s.Subject, change.EndHolds)
}

// History lists the last changes of a tenant's API overrides, at most 100, the newest first.
// Errors: ErrUnavailable.
func (q *Queue) History(ctx context.Context, tenant string) ([]HistoryEntry, error) {
	return q.history(ctx, policies.Tenant(tenant))
}

// Bounds of the history, as in tune.lua.
const (
	maxHistory   = 100
	historyStays = 90 * 24 * time.Hour // of a tenant without settings
)

// Note adds a change of many jobs to the tenant's history: action, actor, filter and count of the
// entry. Calls of one change, which have all but the count in common, become one entry if nothing
// else came between. Errors: ErrUnavailable.
func (q *Queue) Note(ctx context.Context, tenant string, entry HistoryEntry) error {
	subject := policies.Tenant(tenant)
	key := q.policies.Home(subject).History(subject.Key())
	if f := *entry.Filter; len(f.IDs) > NotedIDs {
		f.IDs = f.IDs[:NotedIDs]
		entry.Filter = &f
	}
	s, err := q.policies.Stated(ctx, subject)
	if err != nil {
		return err
	}
	entry.At, entry.Revision = time.Now().UTC(), s.Revision
	note := func(tx *redis.Tx) error {
		last, err := tx.LRange(ctx, key, 0, 0).Result()
		if err != nil {
			return err
		}
		entry, former := entry, HistoryEntry{}
		same := len(last) == 1 && json.Unmarshal([]byte(last[0]), &former) == nil && former.Action == entry.Action &&
			former.Actor == entry.Actor && former.Filter != nil && former.Filter.equal(*entry.Filter)
		if same {
			entry.Count += former.Count
		}
		text, _ := json.Marshal(entry) // text and numbers cannot fail
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			if same {
				p.LTrim(ctx, key, 1, -1)
			}
			p.LPush(ctx, key, text)
			p.LTrim(ctx, key, 0, maxHistory-1)
			if s.Revision == 0 { // else the settings rule how long it stays
				p.PExpire(ctx, key, historyStays)
			}
			return nil
		})
		return err
	}
	for range tuneTries {
		if err = q.store.Fast.Watch(ctx, note, key); !errors.Is(err, redis.TxFailedErr) {
			return store.Unavailable(err)
		}
	}
	return fmt.Errorf("%w: too many concurrent changes of %s", ErrUnavailable, subject.Key())
}

func (q *Queue) history(ctx context.Context, s policies.Subject) ([]HistoryEntry, error) {
	texts, err := q.store.Reads.LRange(ctx, q.policies.Home(s).History(s.Key()), 0, -1).Result()
	if err != nil {
		return nil, store.Unavailable(err)
	}
	entries := make([]HistoryEntry, len(texts))
	for i, text := range texts {
		if err := json.Unmarshal([]byte(text), &entries[i]); err != nil {
			return nil, fmt.Errorf("%w: a stored change cannot be read by this version: %w", ErrSchema, err)
		}
	}
	return entries, nil
}

// Tenants lists at most limit names of tenants, shard by shard. next is the cursor of the following
// page; "" starts and ends. A tenant whose activity changes between two pages may be listed twice
// or not at all. Errors: ErrCursor, ErrUnavailable.
func (q *Queue) Tenants(
	ctx context.Context, cursor string, limit int,
) (names []string, next string, err error) {
	shard, from, err := readCursor(cursor, q.store.Len())
	if err != nil {
		return nil, "", err
	}
	for ; shard < q.store.Len(); shard, from = shard+1, 0 {
		want := int64(limit - len(names))
		if want <= 0 {
			return names, fmt.Sprintf("%d-%d", shard, from), nil
		}
		entries, err := q.store.Reads.ZRevRange(ctx, q.store.Shard(shard).Tenants(), from, from+want-1).Result()
		if err != nil {
			return nil, "", store.Unavailable(err)
		}
		listed, err := q.listedHere(ctx, q.store.Shard(shard), entries)
		if err != nil {
			return nil, "", err
		}
		for _, e := range listed {
			names = append(names, store.TenantOfEntry(e))
		}
		if int64(len(entries)) == want {
			return names, fmt.Sprintf("%d-%d", shard, from+want), nil
		}
	}
	return names, "", nil
}

func readCursor(cursor string, shards int) (shard int, from int64, err error) {
	if cursor == "" {
		return 0, 0, nil
	}
	left, right, _ := strings.Cut(cursor, "-")
	shard, err = strconv.Atoi(left)
	if err != nil || shard < 0 || shard >= shards {
		return 0, 0, ErrCursor
	}
	if from, err = strconv.ParseInt(right, 10, 64); err != nil || from < 0 || from > 1<<40 {
		return 0, 0, ErrCursor
	}
	return shard, from, nil
}

// cursorAfter is what follows a step of a scan of a shard, whose own cursor is "0" at its end.
func cursorAfter(shard int, within string, shards int) string {
	switch {
	case within != "0":
		return fmt.Sprintf("%d-%s", shard, within)
	case shard+1 < shards:
		return fmt.Sprintf("%d-0", shard+1)
	}
	return ""
}
