package queue_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const (
	patience = 20 * time.Second // of a test
	// Within which intake must say that Redis is away: two seconds, and one for a busy machine.
	failFast = 3 * time.Second
)

// lateness adds up, until stop is called, by how much timers of this process are late. It is what a
// busy machine adds to a duration.
func lateness() (stop func() time.Duration) {
	const pause = 20 * time.Millisecond
	end, sum := make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		late := time.Duration(0)
		for {
			slept := time.Now()
			select {
			case <-end:
				sum <- late
				return
			case <-time.After(pause):
				late += time.Since(slept) - pause
			}
		}
	}()
	return func() time.Duration { close(end); return <-sum }
}

var looking = queue.TickOptions{Max: 100, Lease: time.Minute, Horizon: time.Hour, Sweep: time.Second}

// one is a queue of one shard on a server that the test breaks.
func one(t *testing.T, args ...string) (*redistest.Server, *queue.Queue) {
	t.Helper()
	s := redistest.Start(t, args...)
	return s, open(t, queue.EngineOptions{URL: s.URL()}, func(o *queue.Options) { o.Shards = 1 })
}

func admit(t *testing.T, q *queue.Queue) string {
	t.Helper()
	v, err := q.Submit(t.Context(), work())
	if err != nil || v.Outcome != shaper.Admitted {
		t.Fatalf("Submit: %+v, %v", v, err)
	}
	return v.Job.ID
}

// leaseAll polls until nothing is left to do.
func leaseAll(t *testing.T, c *queue.Consumer) (leases []queue.Lease) {
	t.Helper()
	for more := true; more; {
		tick, err := c.Tick(t.Context(), looking)
		if err != nil {
			t.Fatalf("Tick: %v", err)
		}
		leases, more = append(leases, tick.Leases...), tick.More
	}
	return leases
}

func within[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case v := <-c:
		return v
	case <-timer.C:
		t.Fatalf("waited %v in vain for: %s", patience, what)
		panic("not reached")
	}
}

// breakages are the ways in which Redis goes away, and how it comes back.
var breakages = map[string]struct{ away, back func(*redistest.Server) }{
	"killed": {(*redistest.Server).Kill, (*redistest.Server).Restart},
	"frozen": {(*redistest.Server).Freeze, (*redistest.Server).Thaw},
}

// TestIntakeFailsFast: while Redis is away, intake says so soon; when it is back, intake works,
// though a restarted server has forgotten the scripts.
func TestIntakeFailsFast(t *testing.T) {
	for name, broken := range breakages {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, q := one(t)
			before := admit(t, q)
			broken.away(s)
			calls := map[string]func() error{
				"Submit": func() error { _, err := q.Submit(t.Context(), work()); return err },
				"SubmitBatch": func() error {
					_, err := q.SubmitBatch(t.Context(), []queue.Submission{work(), work()}, true)
					return err
				},
				"Job":    func() error { _, err := q.Job(t.Context(), "acme", before); return err },
				"Cancel": func() error { _, err := q.Cancel(t.Context(), "acme", before); return err },
				"Tenant": func() error { _, err := q.Tenant(t.Context(), "acme"); return err },
				"Totals": func() error { _, err := q.Totals(t.Context()); return err },
				"Ping":   func() error { return q.Ping(t.Context()) },
			}
			var all sync.WaitGroup
			for name, call := range calls {
				all.Go(func() {
					start, late := time.Now(), lateness()
					err := call()
					took, allowed := time.Since(start), failFast+late()
					if !errors.Is(err, queue.ErrUnavailable) || took > allowed {
						t.Errorf("%s took %v: %v, want ErrUnavailable within %v", name, took, err, allowed)
					}
				})
			}
			all.Wait()
			broken.back(s)
			var v queue.Decision
			queuetest.Await(t, "a submission to be admitted again", func() bool {
				var err error
				v, err = q.Submit(t.Context(), work())
				return err == nil && v.Outcome == shaper.Admitted
			})
			if _, err := q.Job(t.Context(), "acme", before); err != nil {
				t.Errorf("the job of before: %v", err)
			}
			if err := q.Ping(t.Context()); err != nil {
				t.Errorf("Ping: %v", err)
			}
		})
	}
}

// TestFirstCallAfterAnOutage: the first call after an outage of Redis succeeds, however many have
// failed before.
func TestFirstCallAfterAnOutage(t *testing.T) {
	s, q := one(t)
	s.Kill()
	failed := make(chan error)
	const calls = 200 // more than the client has places for connections
	for range calls {
		go func() {
			_, err := q.Tenant(t.Context(), "acme")
			failed <- err
		}()
	}
	for range calls {
		if err := within(t, "a failure", failed); !errors.Is(err, queue.ErrUnavailable) {
			t.Fatalf("Tenant while Redis is away: %v", err)
		}
	}
	s.Restart()
	if _, err := q.Tenant(t.Context(), "acme"); err != nil {
		t.Errorf("the first call after Redis is back: %v", err)
	}
}

// TestScriptsForgotten: a server that has lost the scripts learns them again, in single calls and
// in pipelines.
func TestScriptsForgotten(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := open(t, queue.EngineOptions{URL: s.URL()}, func(o *queue.Options) { o.Shards = 8 })
	c := client(t, s.URL())
	forget := func() {
		if err := c.ScriptFlush(context.Background()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	var ends []queue.Settlement
	for i := range 8 {
		forget()
		w := work()
		w.Tenant = fmt.Sprint("t", i)
		if v, err := q.Submit(t.Context(), w); err != nil || v.Outcome != shaper.Admitted {
			t.Errorf("Submit: %+v, %v", v, err)
		}
	}
	for shard := range 8 {
		forget()
		for _, l := range leaseAll(t, q.Broker().Consumer("w", shard)) {
			ends = append(ends, queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: 3})
		}
	}
	forget()
	results, err := q.Broker().Settle(t.Context(), ends)
	if err != nil || len(results) != 8 {
		t.Fatalf("Settle: %v, %v", results, err)
	}
	for i, r := range results {
		if r != queue.Settled {
			t.Errorf("result %d is %s", i, r)
		}
	}
	forget()
	if err := q.Ping(t.Context()); err != nil {
		t.Errorf("Ping: %v", err)
	}
}

// TestWorkerOutlivesRedis: a worker whose polls fail calls again, and loses and doubles nothing.
func TestWorkerOutlivesRedis(t *testing.T) {
	t.Parallel()
	s, q := one(t)
	id := admit(t, q)
	c := q.Broker().Consumer("w", 0)
	leases := leaseAll(t, c)
	s.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.Tick(ctx, looking); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("Tick: %v, want ErrUnavailable", err)
	}
	s.Restart()
	var again []queue.Lease
	queuetest.Await(t, "a poll to be answered", func() bool {
		tick, err := c.Tick(t.Context(), looking)
		again = append(again, tick.Leases...)
		return err == nil
	})
	if len(leases) != 1 {
		t.Fatalf("leased %v, want one job", leases)
	}
	queuetest.Compare(t, "the job leased", leases[0].ID, id)
	queuetest.Compare(t, "the jobs leased after the restart", len(again), 0)
	results, err := q.Broker().Settle(t.Context(), []queue.Settlement{{
		LeaseRef: leases[0].LeaseRef, Event: shaper.Succeed, MaxAttempts: 3,
	}})
	if err != nil || results[0] != queue.Settled {
		t.Errorf("Settle: %v, %v", results, err)
	}
}

// TestWakesOutliveRedis: wake-ups missed while Redis was away are made up for by one for all
// shards.
func TestWakesOutliveRedis(t *testing.T) {
	t.Parallel()
	s, q := one(t)
	leaseAll(t, q.Broker().Consumer("w", 0))
	wakes := q.Broker().Wakes(t.Context())
	if w := within(t, "the first wake", wakes); w.Shard != queue.AllShards {
		t.Errorf("the first wake is %+v", w)
	}
	s.Kill()
	s.Restart()
	if w := within(t, "the wake after the reconnection", wakes); w.Shard != queue.AllShards {
		t.Errorf("the wake after the reconnection is %+v", w)
	}
	queuetest.Await(t, "a submission", func() bool {
		_, err := q.Submit(t.Context(), work())
		return err == nil
	})
	for within(t, "a wake by the submission", wakes).Shard != 0 {
		continue
	}
}

// TestWakesBegunWhileAway: the first wake comes when Redis does.
func TestWakesBegunWhileAway(t *testing.T) {
	t.Parallel()
	s, q := one(t)
	s.Kill()
	wakes := q.Broker().Wakes(t.Context())
	s.Restart()
	if w := within(t, "the first wake", wakes); w.Shard != queue.AllShards {
		t.Errorf("the first wake is %+v", w)
	}
}

// TestWatchOutlivesRedis: an end is not lost over a restart, whether it comes before the
// subscription is back or after.
func TestWatchOutlivesRedis(t *testing.T) {
	t.Parallel()
	s, q := one(t)
	id := admit(t, q)
	leases := leaseAll(t, q.Broker().Consumer("w", 0))
	ended, stop, err := q.Watch(t.Context(), id)
	if err != nil {
		t.Fatalf("Watch: %v", err)
	}
	defer stop()
	s.Kill()
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, _, err := q.Watch(short, "another"); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("Watch while Redis is away: %v, want ErrUnavailable", err)
	}
	s.Restart()
	queuetest.Await(t, "the settlement", func() bool {
		r, err := q.Broker().Settle(t.Context(), []queue.Settlement{{
			LeaseRef: leases[0].LeaseRef, Event: shaper.Succeed, MaxAttempts: 3,
		}})
		return err == nil && r[0] != queue.Stale
	})
	for {
		j, err := q.Job(t.Context(), "acme", id)
		if err == nil && j.State == shaper.Succeeded {
			break
		}
		within(t, "a signal", ended)
	}
	within(t, "the signal of the end or of the new connection", ended)
}

// TestFullMemory: at maxmemory intake is refused with nothing changed, and what is there drains
// (invariant 9).
func TestFullMemory(t *testing.T) {
	t.Parallel()
	s, q := one(t)
	ids := []string{admit(t, q), admit(t, q), admit(t, q), admit(t, q)}
	c := client(t, s.URL())
	if err := c.ConfigSet(context.Background(), "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Submit(t.Context(), work()); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("Submit: %v, want ErrUnavailable", err)
	}
	tenant, err := q.Tenant(t.Context(), "acme")
	if err != nil {
		t.Errorf("Tenant: %v", err)
	}
	queuetest.Compare(t, "the figures after the refusal",
		queuetest.Only(tenant.Figures, "Depth", "Admitted"), queue.Figures{Depth: 4, Admitted: 4})
	if j, err := q.Cancel(t.Context(), "acme", ids[3]); err != nil || j.State != shaper.Cancelled {
		t.Errorf("Cancel: %+v, %v", j, err)
	}
	leases := leaseAll(t, q.Broker().Consumer("w", 0))
	if len(leases) != 3 {
		t.Fatalf("leased %+v, want three jobs", leases)
	}
	if lost, err := q.Broker().Extend(t.Context(), []queue.LeaseRef{leases[0].LeaseRef},
		time.Hour); err != nil || len(lost) > 0 {
		t.Errorf("Extend: %v, %v", lost, err)
	}
	var ends []queue.Settlement
	for i, event := range []shaper.Event{shaper.Succeed, shaper.Retry, shaper.Die} {
		ends = append(ends, queue.Settlement{LeaseRef: leases[i].LeaseRef, Event: event, MaxAttempts: 3})
	}
	if results, err := q.Broker().Settle(t.Context(), ends); err != nil ||
		fmt.Sprint(results) != "[settled settled settled]" {
		t.Errorf("Settle: %v, %v", results, err)
	}
	if _, err := q.Replay(t.Context(), "acme", leases[2].ID, queue.Replaying{MaxAttempts: 3}); !errors.Is(err, queue.ErrUnavailable) {
		t.Errorf("Replay: %v, want ErrUnavailable, for it is an intake", err)
	}
	if _, err := q.Tune(t.Context(), "acme",
		queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
			return o, nil
		}}); err != nil {
		t.Errorf("Tune: %v", err)
	}
	if _, err := q.Broker().Heartbeat(t.Context(), "w", time.Second); err != nil {
		t.Errorf("Heartbeat: %v", err)
	}
	if err := c.ConfigSet(context.Background(), "maxmemory", "0").Err(); err != nil {
		t.Fatal(err)
	}
	admit(t, q)
}

// TestIntakeReserve: intake ends before Redis is full, so that what is there can drain, and begins
// again by itself.
func TestIntakeReserve(t *testing.T) {
	t.Parallel()
	s, q := one(t)
	admit(t, q)
	c := client(t, s.URL())
	piece := strings.Repeat("x", 64<<10)
	for range 320 {
		if err := c.RPush(t.Context(), "ballast", piece).Err(); err != nil {
			t.Fatal(err)
		}
	}
	info, err := c.InfoMap(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	used, err := strconv.Atoi(info["Memory"]["used_memory"])
	if err != nil {
		t.Fatal(err)
	}
	if err := c.ConfigSet(t.Context(), "maxmemory", strconv.Itoa(used/92*100)).Err(); err != nil {
		t.Fatal(err)
	}
	reserving := func() *queue.Queue { // it reads anew how much is free
		return open(t, queue.EngineOptions{URL: s.URL()}, func(o *queue.Options) {
			o.Shards, o.Store.FlowShare = 1, 50
		})
	}
	reserved := reserving()
	if v, err := reserved.Submit(t.Context(), work()); err != nil || v.Outcome != shaper.StoreFull {
		t.Errorf("Submit within the reserve: %+v, %v", v, err)
	}
	for _, l := range leaseAll(t, reserved.Broker().Consumer("w", 0)) {
		if results, err := reserved.Broker().Settle(t.Context(),
			[]queue.Settlement{{LeaseRef: l.LeaseRef, Event: shaper.Die}}); err != nil ||
			results[0] != queue.Settled {
			t.Errorf("Settle within the reserve: %v, %v", results, err)
		}
	}
	if err := c.Del(t.Context(), "ballast").Err(); err != nil {
		t.Fatal(err)
	}
	admit(t, reserving())
}
