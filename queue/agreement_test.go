package queue_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func perSecond(n int64) shaper.Policy {
	return shaper.Policy{Rate: shaper.Rate{Limit: n, Period: time.Second}, Burst: 1, Capacity: 1000}
}

// embeddedEngine opens an engine inside this process.
func embeddedEngine(t *testing.T) *queue.Engine {
	t.Helper()
	return openEngine(t, queue.EngineOptions{Embedded: true})
}

// beside opens another queue on the engine, as another process with another file does.
func beside(t *testing.T, e *queue.Engine, o queue.Options) *queue.Queue {
	t.Helper()
	q, err := queue.Open(t.Context(), e, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := q.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return q
}

// TestTwoFilesLeaseAtOneRate: processes with different files poll one shard in turns, one as its
// owner and one as a helper. Each poll leases, and the stamps keep one rate, that of the process
// which started last.
func TestTwoFilesLeaseAtOneRate(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := openEngine(t, options(t))
			first := beside(t, e, queue.Options{Shards: 1, Defaults: perSecond(500)})
			second := beside(t, e, queue.Options{Shards: 1, Defaults: perSecond(100)})
			owner, helper := first.Broker().Consumer("a", 0), second.Broker().Consumer("b", 0)
			o := looking
			o.Max, o.Horizon = 5, time.Minute
			var last shaper.Instant
			for range 4 { // the first poll of all only takes the flow in
				for _, p := range []struct {
					q      *queue.Queue
					c      *queue.Consumer
					helper bool
				}{{first, owner, false}, {second, helper, true}} {
					for range 5 {
						if v, err := p.q.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.Admitted {
							t.Fatalf("Submit: %v, %v", v.Outcome, err)
						}
					}
					o.Helper = p.helper
					tick, err := p.c.Tick(t.Context(), o)
					if err != nil || len(tick.Leases) != 5 {
						t.Fatalf("a poll leased %d of 5 jobs (helper: %v), %v", len(tick.Leases), p.helper, err)
					}
					var ends []queue.Settlement
					for _, l := range tick.Leases {
						if apart := l.Stamp.Sub(last); last != 0 && apart != 10*time.Millisecond && l.Stamp > tick.Now {
							t.Errorf("a stamp %v after the one before it, want those of 100/s", apart)
						}
						last = l.Stamp
						ends = append(ends, queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: 3})
					}
					if _, err := p.q.Broker().Settle(t.Context(), ends); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// awhile is enough for processes to notice a lasting difference, and short enough for one of those
// that count them to be current.
const awhile = 7 * time.Second

// TestOtherFileIsReported: the process whose file is not in force says so once, follows the other
// one, counts itself where both see it, and says when it agrees again.
func TestOtherFileIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := embeddedEngine(t)
		var log bytes.Buffer
		metrics := prometheus.NewRegistry()
		first := beside(t, e, queue.Options{
			Shards: 2, Defaults: perSecond(50), Registerer: metrics, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		second := beside(t, e, queue.Options{Shards: 2, Defaults: perSecond(80)})
		agree := func(when string, q *queue.Queue, inForce bool, differing int) {
			t.Helper()
			if a := q.Agreement(); a.InForce != inForce || a.Differing != differing {
				t.Errorf("%s: %+v, want in force %v, differing %d", when, a, inForce, differing)
			}
		}
		rate := func(q *queue.Queue) int64 {
			t.Helper()
			tenant, err := q.Tenant(t.Context(), "acme")
			if err != nil {
				t.Fatal(err)
			}
			return tenant.Policy.Rate.Limit
		}
		time.Sleep(awhile)
		agree("the first", first, false, 1)
		agree("the second", second, true, 1)
		if got := rate(first); got != 80 {
			t.Errorf("the first process shows %d/s, while 80/s are in force", got)
		}
		if err := testutil.GatherAndCompare(metrics, strings.NewReader(`# HELP sluice_policies_in_force 1 if the policies of this process's configuration file are in force, 0 if those of another process's file are.
# TYPE sluice_policies_in_force gauge
sluice_policies_in_force 0
`), "sluice_policies_in_force"); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if n := strings.Count(log.String(), "not in force"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
		if err := first.SetPolicies(t.Context(), shaper.Baseline{Defaults: perSecond(80)}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(awhile)
		agree("the first with the same file", first, true, 0)
		agree("the second", second, true, 0)
		if !strings.Contains(log.String(), "in force again") {
			t.Errorf("not said that it agrees:\n%s", log.String())
		}
	})
}

// TestOldFileStaysOut: a process that is started again with a file that was in force before does
// not put it back while another process has the one in force. It does when it is asked to, and when
// no process has the other file.
func TestOldFileStaysOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := embeddedEngine(t)
		start := func(rate int64) *queue.Queue {
			t.Helper()
			q, err := queue.Open(t.Context(), e, queue.Options{
				Shards: 2, Defaults: perSecond(rate),
				Tenants: map[string]shaper.Overrides{"acme": {Burst: &rate}},
			})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(awhile)
			return q
		}
		stop := func(q *queue.Queue) {
			t.Helper()
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
		inForce := func(when string, q *queue.Queue, rate int64) {
			t.Helper()
			tenant, err := q.Tenant(t.Context(), "acme")
			if err != nil {
				t.Fatal(err)
			}
			if tenant.Policy.Rate.Limit != rate || tenant.Policy.Burst != rate {
				t.Errorf("%s: rate %v and burst %d in force, want %d", when, tenant.Policy.Rate,
					tenant.Policy.Burst, rate)
			}
		}
		old, current := start(50), start(80)
		inForce("a new file", old, 80)
		stop(old)
		old = start(50)
		inForce("the old process started again", old, 80)
		if a := old.Agreement(); a.InForce || a.Differing != 1 {
			t.Errorf("it says %+v", a)
		}
		if err := old.SetPolicies(t.Context(), shaper.Baseline{Defaults: perSecond(50)},
			map[string]shaper.Overrides{"acme": {Burst: new(int64(50))}}); err != nil {
			t.Fatal(err)
		}
		inForce("the old process asked to", old, 50)
		time.Sleep(awhile)
		inForce("the other process after it", current, 50)
		stop(old)
		stop(current)
		current = start(80)
		inForce("alone", current, 80)
		stop(current)
	})
}

// TestEnvironments: the first process with a name marks the store, a new file of that environment
// takes over without a question, and processes of another environment, or without a name, are
// refused and change nothing.
func TestEnvironments(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := openEngine(t, options(t))
			var log *queuetest.Log // of the last process
			of := func(environment string, rate int64, tenants ...string) queue.Options {
				log = &queuetest.Log{}
				o := queue.Options{Shards: 2, Environment: environment, Defaults: perSecond(rate),
					Tenants: map[string]shaper.Overrides{}, Logger: log.Logger(slog.LevelInfo)}
				for _, tenant := range tenants {
					o.Tenants[tenant] = shaper.Overrides{Burst: &rate}
				}
				return o
			}
			refused := func(what string, o queue.Options, says ...string) {
				t.Helper()
				_, err := queue.Open(t.Context(), e, o)
				if !errors.Is(err, queue.ErrEnvironment) {
					t.Fatalf("%s: %v", what, err)
				}
				queuetest.Contains(t, what, err.Error(), says...)
			}
			begun := 0
			begin := func(o queue.Options) *queue.Queue {
				t.Helper()
				q := beside(t, e, o)
				begun++
				queuetest.Await(t, "the process reports its file", func() bool {
					n, err := e.Client().ZCard(t.Context(), "sluice:{workers}:files").Result()
					return err == nil && n == int64(begun)
				})
				return q
			}
			begin(of("", 50, "acme", "globex"))
			refused("a store that others use without a name", of("staging", 1), "1 running processes use it without store.environment")
			begin(of("", 60, "acme", "initech", "umbrella"))
			queuetest.Contains(t, "the log of a takeover", log.String(), "level=WARN", "processes=1 tenants_added=2 tenants_removed=1 tenants_changed=1",
				"sections_changed=defaults", "set store.environment")
			begin(of("production", 60, "acme", "initech", "umbrella"))
			refused("another environment", of("staging", 1), "it is of production, this process of staging")
			refused("no environment", of("", 70), "it is of production, this process of none", "HSET sluice:meta environment NAME")
			current := begin(of("production", 90, "acme"))
			queuetest.Contains(t, "the log of a new version", log.String(), "level=INFO", "tenants_removed=2")
			refused("another environment, again", of("staging", 1), "production")
			tenant, err := current.Tenant(t.Context(), "acme")
			if err != nil || tenant.Policy.Rate.Limit != 90 {
				t.Errorf("%d/s are in force, %v", tenant.Policy.Rate.Limit, err)
			}
		})
	}
}

// TestAbandonedFileIsReported: when the process with the file in force has stopped, the others say
// so once, and no longer when one of them has put its file into force. A restart says nothing.
func TestAbandonedFileIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := embeddedEngine(t)
		var log bytes.Buffer
		q := beside(t, e, queue.Options{Shards: 2, Defaults: perSecond(50), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		start := func() *queue.Queue {
			t.Helper()
			other, err := queue.Open(t.Context(), e, queue.Options{Shards: 2, Defaults: perSecond(80)})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(awhile)
			return other
		}
		stop := func(q *queue.Queue) {
			t.Helper()
			if err := q.Close(); err != nil {
				t.Fatal(err)
			}
		}
		other := start()
		stop(other)
		time.Sleep(3 * time.Second) // it is started again
		other = start()
		if a := q.Agreement(); a.Abandoned || a.InForce {
			t.Errorf("after a restart: %+v", a)
		}
		stop(other)
		time.Sleep(time.Minute)
		if a := q.Agreement(); !a.Abandoned || a.InForce {
			t.Errorf("after the stop: %+v", a)
		}
		if n := strings.Count(log.String(), "send this process SIGHUP, or restart it"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
		if err := q.SetPolicies(t.Context(), shaper.Baseline{Defaults: perSecond(50)}, nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(awhile)
		if a := q.Agreement(); a.Abandoned || !a.InForce {
			t.Errorf("after it has put its file into force: %+v", a)
		}
	})
}

// TestPoliciesSurviveACrash: policies whose process ended after it had recorded them, or before it
// had reached all tenants, come into force.
func TestPoliciesSurviveACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := embeddedEngine(t)
		first := beside(t, e, queue.Options{Shards: 2, Defaults: perSecond(50)})
		if _, err := first.Tune(t.Context(), "acme",
			queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
				o.Capacity = new(int64(7))
				return o, nil
			}}); err != nil {
			t.Fatal(err)
		}
		// The process ends when it has declared the policies in each shard, and before it tells a
		// tenant.
		dying, cancel := context.WithCancel(t.Context())
		e.AddHook(&cancelling{script: scripts.Commands.Tune.SHA(), cancel: cancel})
		second := beside(t, e, queue.Options{Shards: 2, Defaults: perSecond(50)})
		err := second.SetPolicies(dying, shaper.Baseline{Defaults: perSecond(80)},
			map[string]shaper.Overrides{"globex": {Capacity: new(int64(9))}})
		if err == nil {
			t.Fatal("the process did not end")
		}
		rate := func(tenant string) int64 {
			t.Helper()
			w := work()
			w.Tenant, w.ID = tenant, ""
			v, err := first.Submit(t.Context(), w)
			if err != nil {
				t.Fatal(err)
			}
			return v.Rate.Limit
		}
		if got := rate("acme"); got != 50 {
			t.Errorf("%d/s is in force for a tenant with settings of its own that are not applied yet", got)
		}
		time.Sleep(awhile)
		for _, tenant := range []string{"acme", "globex", "another"} {
			if got := rate(tenant); got != 80 {
				t.Errorf("%d/s is in force for %s after all", got, tenant)
			}
		}
		if got, err := first.Tenant(t.Context(), "globex"); err != nil || got.Policy.Capacity != 9 {
			t.Errorf("the capacity of the file is %d, %v", got.Policy.Capacity, err)
		}
	})
}

// cancelling ends a context when it sees the script for the first time, and does not send it.
type cancelling struct {
	script string
	cancel context.CancelFunc
	done   atomic.Bool
}

func (c *cancelling) DialHook(next redis.DialHook) redis.DialHook { return next }

func (c *cancelling) see(ctx context.Context, cmds ...redis.Cmder) error {
	for _, cmd := range cmds {
		if args := cmd.Args(); len(args) > 1 && args[1] == c.script && c.done.CompareAndSwap(false, true) {
			c.cancel()
			return ctx.Err()
		}
	}
	return nil
}

func (c *cancelling) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := c.see(ctx, cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (c *cancelling) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := c.see(ctx, cmds...); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

// TestEmptiedStore: a FLUSHALL under running processes is noticed, said, and survived: layout and
// policies of the file are written again, and jobs are taken and leave. A record of the layout that
// alone was deleted is not taken for that.
func TestEmptiedStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := embeddedEngine(t)
		fifty := int64(50)
		var log bytes.Buffer
		metrics := prometheus.NewRegistry()
		options := queue.Options{
			Shards: 2, Defaults: perSecond(100), Tenants: map[string]shaper.Overrides{"acme": {Capacity: &fifty}},
			Registerer: metrics, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		}
		q := beside(t, e, options)
		options.Registerer, options.Logger = nil, slog.New(slog.DiscardHandler)
		other := beside(t, e, options)
		if _, err := q.Tune(t.Context(), "acme",
			queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
				o.Rate = &shaper.Rate{Limit: 7, Period: time.Second}
				return o, nil
			}}); err != nil {
			t.Fatal(err)
		}
		losses := func(want int) {
			t.Helper()
			n := 0.0
			families, err := metrics.Gather()
			for _, f := range families {
				if f.GetName() == "sluice_store_lost_total" {
					n = f.GetMetric()[0].GetCounter().GetValue()
				}
			}
			if err != nil {
				t.Errorf("Gather: %v", err)
			}
			queuetest.Compare(t, "the losses counted", n, float64(want))
			if logged := strings.Count(log.String(), "was emptied"); logged != want {
				t.Errorf("%d losses logged, want %d:\n%s", logged, want, log.String())
			}
		}
		if err := e.Client().Del(t.Context(), "sluice:meta").Err(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(awhile)
		losses(0)
		if err := e.Client().FlushAll(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*queue.Queue{q, other} { // takes jobs at once
			if v, err := p.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.Admitted {
				t.Fatalf("Submit: %v, %v", v.Outcome, err)
			}
		}
		time.Sleep(awhile)
		losses(1)
		tenant, err := q.Tenant(t.Context(), "acme")
		if err != nil {
			t.Errorf("Tenant: %v", err)
		}
		queuetest.Compare(t, "the capacity", tenant.Policy.Capacity, 50)
		queuetest.Compare(t, "the rate's limit", tenant.Policy.Rate.Limit, 100)
		queuetest.Compare(t, "the depth", tenant.Depth, 2)
		third, err := queue.Open(t.Context(), e, queue.Options{Shards: 3})
		if !errors.Is(err, queue.ErrSchema) {
			t.Errorf("the layout is not written again: %v, %v", third, err)
		}
		time.Sleep(time.Minute)
		losses(1)
	})
}

// TestOldPlacementIsRefused: a process that has not heard of a new pool yet cannot put a job beside
// it. It reads the new policies, and its next submission is in the pool.
func TestOldPlacementIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := embeddedEngine(t)
		first := beside(t, e, queue.Options{Defaults: perSecond(100)})
		second := beside(t, e, queue.Options{Defaults: perSecond(100)})
		rate := shaper.Rate{Limit: 10, Period: time.Second}
		pools := map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: &rate}}}
		if err := first.SetPolicies(t.Context(), shaper.Baseline{Defaults: perSecond(100), Pools: pools}, nil); err != nil {
			t.Fatal(err)
		}
		w := work()
		w.Route = "erp"
		_, err := second.Submit(t.Context(), w)
		if !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "submit the job again") {
			t.Fatalf("Submit where the flow was before: %v, want it refused", err)
		}
		if v, err := second.Submit(t.Context(), w); err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("Submit once it follows: %v, %v", v.Outcome, err)
		}
		p, err := first.Pool(t.Context(), "erp")
		queuetest.Compare(t, "the error", err, nil)
		queuetest.Compare(t, "the depth of the pool", p.Depth, 1)
	})
}

// TestAnIdOfBeforeAPool: a job whose id was made before its route got a pool is refused for a
// while, not as a mistake of the client. Its next submission has an id of the pool's shard.
func TestAnIdOfBeforeAPool(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := beside(t, embeddedEngine(t), queue.Options{Defaults: perSecond(100)})
		w := work()
		w.Route = "erp"
		var err error
		if w.ID, err = q.NewID(w.Tenant, w.Route); err != nil {
			t.Fatal(err)
		}
		rate := shaper.Rate{Limit: 10, Period: time.Second}
		pools := map[string]shaper.PoolSettings{"erp": {Routes: []string{"erp"}, Overrides: shaper.Overrides{Rate: &rate}}}
		if err := q.SetPolicies(t.Context(), shaper.Baseline{Defaults: perSecond(100), Pools: pools}, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Submit(t.Context(), w); !errors.Is(err, queue.ErrUnavailable) {
			t.Fatalf("Submit with an id of before: %v, want ErrUnavailable", err)
		}
		if w.ID, err = q.NewID(w.Tenant, w.Route); err != nil {
			t.Fatal(err)
		}
		if v, err := q.Submit(t.Context(), w); err != nil || v.Outcome != shaper.Admitted {
			t.Fatalf("Submit with a new id: %v, %v", v.Outcome, err)
		}
	})
}
