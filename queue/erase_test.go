package queue_test

import (
	"context"
	"fmt"
	"maps"
	"math"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// erase erases a tenant in as many steps as it takes, and returns what they removed.
func erase(t *testing.T, q *queue.Queue, tenant string) (sum queue.Erased) {
	t.Helper()
	for cursor := ""; ; {
		e, err := q.Erase(t.Context(), tenant, cursor)
		if err != nil {
			t.Fatal(err)
		}
		sum.Jobs, sum.Answers, sum.Callbacks = sum.Jobs+e.Jobs, sum.Answers+e.Answers, sum.Callbacks+e.Callbacks
		sum.IdempotencyKeys, sum.Keys, sum.Settings = sum.IdempotencyKeys+e.IdempotencyKeys, sum.Keys+e.Keys, sum.Settings+e.Settings
		sum.CallbackSecrets, sum.Revocations = sum.CallbackSecrets+e.CallbackSecrets, sum.Revocations+e.Revocations
		sum.History, sum.Flows, sum.Running = sum.History+e.History, sum.Flows+e.Flows, e.Running
		if cursor = e.Cursor; !e.More || e.Running > 0 {
			return sum
		}
	}
}

// owned gives a tenant something of each kind that an erasure removes. Two of its jobs stay leased.
func owned(t *testing.T, q *queue.Queue, m marks, tenant string) {
	t.Helper()
	if _, err := q.Keys().CreateKey(t.Context(), queue.Key{Tenant: tenant, Name: "ci", Hash: [32]byte{1}}); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Callbacks().CreateCallbackSecret(t.Context(), tenant, queue.CallbackHMAC, "vera"); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Callbacks().PutCallbackEndpoints(t.Context(), tenant, []string{"https://" + tenant + ".example/"}); err != nil {
		t.Fatal(err)
	}
	for _, subject := range []string{"", "u-17"} {
		if _, err := q.Tokens().RevokeTokens(t.Context(), tenant, subject, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	limit := int64(50)
	if _, err := q.Tune(t.Context(), tenant, queue.Change{Reason: "more", Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Capacity = &limit
		return o, nil
	}}); err != nil {
		t.Fatal(err)
	}
	for i, route := range []string{"default", "pooled"} {
		for n := range 5 {
			s := marked(m, fmt.Sprint(tenant, route, n))
			s.Tenant, s.Route = tenant, route
			if n == 4 {
				s.Delay = 3 * time.Hour
			}
			admitted(t, q, s)
		}
		for n, l := range leased(t, q, 4) {
			end := queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Attempt: 1, Event: []shaper.Event{shaper.Succeed, shaper.Die, shaper.Retry, ""}[n], Delay: 3 * time.Hour}
			if n == 0 && i == 0 {
				end.Retention, end.Answer = time.Hour, []byte("HTTP/1.1 200 OK\r\n\r\nhello")
			}
			if end.Event != "" {
				settle(t, q, end)
			}
		}
	}
}

// sound insists that a check of the store finds nothing.
func sound(t *testing.T, q *queue.Queue) {
	t.Helper()
	if _, err := q.Check(t.Context(), false, func(found []queue.Finding) error {
		for _, f := range found {
			t.Errorf("check: %+v", f)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// TestErase: nothing of a tenant is left, all of the others is; what is under way ends first.
func TestErase(t *testing.T) {
	t.Parallel()
	all := maps.Clone(engines)
	all["cluster"] = func(t *testing.T) queue.EngineOptions {
		return queue.EngineOptions{URL: redistest.StartCluster(t).URL()}
	}
	for name, options := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := marks{}
			const gone, stays = "forgetme", "acme"
			q := encrypted(t, openEngine(t, options(t)), "", func(o *queue.Options) {
				rate, burst := shaper.Rate{Limit: 1000, Period: time.Second}, int64(100)
				o.Pools = map[string]shaper.PoolSettings{"p": {Routes: []string{"pooled"}, Overrides: shaper.Overrides{Rate: &rate, Burst: &burst}}}
			})
			for _, tenant := range []string{gone, stays} {
				owned(t, q, m, tenant)
			}
			before := 0
			everything(t, q, func(key, value string) {
				if strings.Contains(value, stays) {
					before++
				}
			})
			first := erase(t, q, gone)
			if first.Running != 2 || first.Keys != 1 || first.Jobs == 0 || first.IdempotencyKeys == 0 {
				t.Errorf("while two jobs are leased: %+v", first)
			}
			if d, err := q.Submit(t.Context(), queue.Submission{Tenant: gone, Route: "default", Type: "t", Payload: []byte("1")}); err != nil || d.Outcome != shaper.Draining {
				t.Errorf("a submission meanwhile: %v, %v", d.Outcome, err)
			}
			page, err := q.List(t.Context(), queue.List{Tenant: gone, State: queue.ListLeased, Limit: 10})
			if err != nil || len(page.Jobs) != 2 {
				t.Fatalf("%d leased jobs, %v", len(page.Jobs), err)
			}
			for _, j := range page.Jobs {
				settle(t, q, queue.Settlement{LeaseRef: queue.LeaseRef{ID: j.ID, Epoch: 1}, Tenant: gone, Event: shaper.Succeed, Attempt: 1})
			}
			if last := erase(t, q, gone); last.More || last.Running != 0 || last.Flows != 2 || last.CallbackSecrets != 1 || last.Revocations != 2 {
				t.Errorf("at the end: %+v", last)
			}
			after := 0
			everything(t, q, func(key, value string) {
				if strings.Contains(value, gone) && !strings.HasSuffix(key, "claim") {
					t.Errorf("%s is left: %.100q", key, value)
				}
				if strings.Contains(value, stays) {
					after++
				}
			})
			if before != after {
				t.Errorf("of another tenant %d values are left of %d", after, before)
			}
			if again := erase(t, q, gone); again != (queue.Erased{}) {
				t.Errorf("a second run found %+v", again)
			}
			sound(t, q)
			if _, err := q.Erase(t.Context(), gone, "x"); err == nil {
				t.Error("a cursor that is none")
			}
		})
	}
}

// dying is a process that dies: from some command on, none reaches the store until it starts again.
type dying struct{ left atomic.Int64 }

func (d *dying) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d *dying) dead(cmds ...redis.Cmder) error {
	if d.left.Add(-1) >= 0 {
		return nil
	}
	for _, cmd := range cmds {
		cmd.SetErr(net.ErrClosed)
	}
	return net.ErrClosed
}

func (d *dying) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := d.dead(cmd); err != nil {
			return err
		}
		return next(ctx, cmd)
	}
}

func (d *dying) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := d.dead(cmds...); err != nil {
			return err
		}
		return next(ctx, cmds)
	}
}

// TestEraseStopped: wherever an erasure stops, the next one removes what is left, and no count has
// changed by it.
func TestEraseStopped(t *testing.T) {
	t.Parallel()
	e := openEngine(t, engines["redis"](t))
	q := encrypted(t, e, "", func(o *queue.Options) {
		rate, burst := shaper.Rate{Limit: 1000, Period: time.Second}, int64(100)
		o.Pools = map[string]shaper.PoolSettings{"p": {Routes: []string{"pooled"}, Overrides: shaper.Overrides{Rate: &rate, Burst: &burst}}}
	})
	q.StopKeeping()
	var process dying
	process.left.Store(math.MaxInt64)
	e.AddHook(&process)
	for whole, commands := false, int64(1); !whole; commands += 1 + commands/6 {
		tenant, m := fmt.Sprintf("gone%d", commands), marks{}
		owned(t, q, m, tenant)
		page, err := q.List(t.Context(), queue.List{Tenant: tenant, State: queue.ListLeased, Limit: 10})
		if err != nil {
			t.Fatal(err)
		}
		for _, j := range page.Jobs {
			settle(t, q, queue.Settlement{LeaseRef: queue.LeaseRef{ID: j.ID, Epoch: 1}, Tenant: tenant, Event: shaper.Succeed, Attempt: 1})
		}
		process.left.Store(commands)
		first, err := q.Erase(t.Context(), tenant, "")
		whole = err == nil && !first.More
		process.left.Store(math.MaxInt64)
		if last := erase(t, q, tenant); last.Running > 0 {
			t.Errorf("stopped after %d commands: %+v", commands, last)
		}
		everything(t, q, func(key, value string) {
			if strings.Contains(value, tenant) && !strings.HasSuffix(key, "claim") {
				t.Errorf("stopped after %d commands: %s is left: %.100q", commands, key, value)
			}
		})
		if again := erase(t, q, tenant); again != (queue.Erased{}) {
			t.Errorf("stopped after %d commands: a third run found %+v", commands, again)
		}
	}
	sound(t, q)
}

// TestEraseLeavesThePool: nothing of an erased tenant counts in its pool: no debt, no weight and no
// reserve.
func TestEraseLeavesThePool(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rate, reserve := shaper.Rate{Limit: 1000, Period: time.Second}, shaper.Rate{Limit: 40, Period: time.Second}
			e := openEngine(t, options(t))
			q := encrypted(t, e, "", func(o *queue.Options) {
				o.Shards = 1
				o.Tiers, o.PoolWeights = map[string]shaper.Overrides{"free": {}}, map[string]int64{"free": 2}
				o.Tenants = map[string]shaper.Overrides{"reserved": {Reserve: &reserve}, "heavy": {Weight: new(int64(9))}}
				o.Pools = map[string]shaper.PoolSettings{"p": {Routes: []string{"pooled"},
					Overrides: shaper.Overrides{Rate: &rate, Burst: new(int64(100)), MaxCost: new(int64(1000))}}}
			})
			tenants := map[string]string{"reserved": "", "heavy": "", "one of free": "free", "quiet": ""}
			for tenant, tier := range tenants {
				for range 3 {
					admitted(t, q, queue.Submission{Tenant: tenant, Tier: tier, Route: "pooled", Type: "t", Payload: []byte("1")})
				}
			}
			for _, l := range leased(t, q, 3*len(tenants)) {
				cost := int64(1)
				if l.Tenant == "reserved" || l.Tenant == "heavy" {
					cost = 1000
				}
				settle(t, q, queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Attempt: 1, Event: shaper.Succeed, ActualCost: &cost})
			}
			last := admitted(t, q, queue.Submission{Tenant: "quiet", Route: "pooled", Type: "t", Payload: []byte("1"), Delay: time.Hour})
			pool := func() queue.Pool {
				p, err := q.Pool(t.Context(), "p")
				if err != nil {
					t.Fatal(err)
				}
				return p
			}
			if p := pool(); p.Owed == 0 || p.Weights < 10 || p.Reserves != 40 {
				t.Fatalf("before: owed %d, weights %d, reserves %v", p.Owed, p.Weights, p.Reserves)
			}
			for tenant := range tenants {
				if tenant != "quiet" {
					erase(t, q, tenant)
				}
			}
			p := pool()
			if p.Owed != 0 || p.Reserves != 0 || p.Depth != 1 {
				t.Errorf("after: owed %d, weights %d, reserves %v, depth %d", p.Owed, p.Weights, p.Reserves, p.Depth)
			}
			sound(t, q)
			// What erasures left in pools before is gone when no flow waits.
			for field, n := range map[string]int64{"owed": 700, "weights": 5, "reserves": 40_000_000} {
				if err := e.Client().HIncrBy(t.Context(), store.NewKeyspace(1).ShardOf("quiet").Flow("+p/"), field, n).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := q.Cancel(t.Context(), "quiet", last.ID); err != nil {
				t.Fatal(err)
			}
			sound(t, q)
		})
	}
}
