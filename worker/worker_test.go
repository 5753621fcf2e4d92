package worker

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

func TestJobsLeaveAtTheirStamps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(2)
		type departure struct {
			id   string
			late time.Duration
		}
		var mu sync.Mutex
		var seen []departure
		r := startRig(t, q, Config{}, func(_ context.Context, l *queue.Lease) queue.Settlement {
			mu.Lock()
			defer mu.Unlock()
			seen = append(seen, departure{l.ID, q.now().Sub(l.Stamp)})
			return queue.Settlement{Event: shaper.Succeed}
		})
		for i := range 40 {
			q.put(i%2, fmt.Sprintf("job-%02d", i), time.Duration(100+5*i)*time.Millisecond)
		}
		q.wakes <- queue.Wake{Shard: 0}
		q.wakes <- queue.Wake{Shard: 1}
		pass(time.Second)
		r.end(t)
		if len(seen) != 40 {
			t.Fatalf("%d deliveries, want 40", len(seen))
		}
		for i, d := range seen {
			if want := fmt.Sprintf("job-%02d", i); d.id != want {
				t.Errorf("departure %d is %s, want %s", i, d.id, want)
			}
			if d.late < 0 || d.late > 10*time.Microsecond {
				t.Errorf("%s left %v after its stamp", d.id, d.late)
			}
		}
		if n := q.events()[shaper.Succeed]; n != 40 {
			t.Errorf("%d settled as succeeded, want 40", n)
		}
		if n := testutil.ToFloat64(r.metrics.deliveries[outcomeSucceeded]); n != 40 {
			t.Errorf("metric counts %v, want 40", n)
		}
		// 40 jobs 5 ms apart and a poll every 10 ms: the horizon gathers them.
		if n := len(q.ticks); n > 60 {
			t.Errorf("%d polls for 40 jobs in 200 ms", n)
		}
	})
}

// TestLongPollsDoNotShiftDepartures: over a slow network nobody knows when during a poll the clock
// was read. It is read for itself then, though not while nothing leaves, and not often.
func TestLongPollsDoNotShiftDepartures(t *testing.T) {
	for _, cluster := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			q := newFakeQueue(2)
			q.trip, q.cluster = 3*time.Millisecond, cluster
			var mu sync.Mutex
			var late []time.Duration
			r := startRig(t, q, Config{}, func(_ context.Context, l *queue.Lease) queue.Settlement {
				mu.Lock()
				defer mu.Unlock()
				late = append(late, q.now().Sub(l.Stamp))
				return queue.Settlement{Event: shaper.Succeed}
			})
			pass(time.Minute)
			q.set(func() { q.early = 0.05 }) // of a poll's trip; a reading's clock is read midway
			warmUp := len(q.shards)
			if q.readings != warmUp {
				t.Errorf("%d readings while nothing left, want %d", q.readings, warmUp)
			}
			for i := range 1200 {
				q.put(0, fmt.Sprintf("job-%04d", i), time.Duration(100+10*i)*time.Millisecond)
			}
			q.wakes <- queue.Wake{Shard: 0}
			pass(20 * time.Second)
			r.end(t)
			if len(late) != 1200 {
				t.Fatalf("%d deliveries, want 1200", len(late))
			}
			if most := slices.Max(late); most > 30*time.Microsecond {
				t.Errorf("cluster %v: jobs left up to %v after their stamps", cluster, most)
			}
			if least := slices.Min(late); least < -30*time.Microsecond {
				t.Errorf("cluster %v: jobs left up to %v before their stamps", cluster, -least)
			}
			if n := q.readings - warmUp; n < readMost || n > 3*readMost {
				t.Errorf("%d readings in 12 s, want up to %d in five", n, readMost)
			}
		})
	}
}

// TestHeartbeatsReportTheClock: a job of a shard that was just gained is due before its clock can
// be read. The heartbeat has reported the clock.
func TestHeartbeatsReportTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		var late time.Duration
		r := startRig(t, q, Config{}, func(_ context.Context, l *queue.Lease) queue.Settlement {
			late = q.now().Sub(l.Stamp)
			return queue.Settlement{Event: shaper.Succeed}
		})
		others := []string{"other-0"}
		for owner(append(others, r.id), 0) == r.id {
			others = append(others, fmt.Sprintf("other-%d", len(others)))
		}
		q.set(func() { q.others = others })
		pass(20 * time.Second)
		q.set(func() { q.trip, q.early, q.others = 12*time.Millisecond, 1, nil })
		q.put(0, "job", 30*time.Millisecond)
		q.wakes <- queue.Wake{Shard: queue.AllShards}
		pass(time.Second)
		if late.Abs() > 30*time.Microsecond {
			t.Errorf("the job left %v after its stamp", late)
		}
		r.end(t)
	})
}

// TestPollsAreBetweenDepartures: a poll at the instant of a departure would take the processor from
// it. One is planned half a horizon before the next stamp, which for most rates is itself one.
func TestPollsAreBetweenDepartures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{}, succeed)
		pass(time.Second)
		const every = 5 * time.Millisecond
		first := time.Now().Add(100 * time.Millisecond)
		for i := range 200 {
			q.put(0, fmt.Sprintf("job-%03d", i), time.Until(first)+time.Duration(i)*every)
		}
		q.wakes <- queue.Wake{Shard: 0}
		q.set(func() { q.ticks = nil })
		pass(2 * time.Second)
		r.end(t)
		polls := 0
		for _, tick := range q.ticks {
			since := tick.at.Sub(first)
			if since < 10*time.Millisecond || since > 199*every {
				continue
			}
			polls++
			if off := since % every; min(off, every-off) < 2*time.Millisecond {
				t.Errorf("a poll %v after a departure", off)
			}
		}
		if polls < 20 || polls > 200 {
			t.Errorf("%d polls for 200 jobs in a second", polls)
		}
	})
}

func TestIdleWorkerPollsSeldom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(64)
		r := startRig(t, q, Config{}, succeed)
		pass(time.Second)
		q.polls()
		pass(150 * time.Second)
		polls := q.polls()
		for n := range q.shards {
			if polls[n] < 9 || polls[n] > 12 {
				t.Errorf("shard %d was polled %d times in 150 idle seconds, want 10 to 12", n, polls[n])
			}
		}
		r.end(t)
	})
}

func TestWakeBringsAPollAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(4)
		r := startRig(t, q, Config{}, succeed)
		pass(3 * time.Second)
		q.put(2, "now", 0)
		at := time.Now()
		q.wakes <- queue.Wake{Shard: 2}
		q.wakes <- queue.Wake{Shard: 99} // of nobody here
		pass(time.Second)
		if s := q.settlements(); len(s) != 1 || s[0].at.Sub(at) > 2*time.Millisecond {
			t.Errorf("settled %+v, woken at %v", s, at)
		}
		r.end(t)
	})
}

func TestRedisAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(8)
		var log bytes.Buffer
		cfg := Config{Lease: 3 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		r := startRig(t, q, cfg, func(ctx context.Context, l *queue.Lease) queue.Settlement {
			sleep(ctx, 2*time.Second)
			return queue.Settlement{Event: shaper.Succeed}
		})
		pass(time.Second)
		q.put(1, "before", 0)
		q.wakes <- queue.Wake{Shard: 1}
		pass(500 * time.Millisecond) // the lease will not be extended in time either
		q.set(func() { q.away = true })
		q.put(1, "meanwhile", 0)
		q.wakes <- queue.Wake{Shard: 1}
		pass(time.Minute)
		if n := len(q.settlements()); n != 0 {
			t.Fatalf("%d settled while Redis was away", n)
		}
		if used := r.capacity.count(true); used != 1 {
			t.Errorf("%v settlements pending, want 1", used)
		}
		q.set(func() { q.away = false })
		pass(4 * time.Second)
		if n := q.events()[shaper.Succeed]; n != 2 {
			t.Errorf("%d settled after Redis came back, want 2", n)
		}
		r.end(t)
		for _, line := range []string{"redis is away", "redis is back"} {
			if n := strings.Count(log.String(), line); n != 1 {
				t.Errorf("%q is logged %d times, want once:\n%s", line, n, &log)
			}
		}
	})
}

func TestUnansweredPollIsRepeatedAndCharged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		release := make(chan struct{})
		var running atomic.Int32
		r := startRig(t, q, Config{Concurrency: 8}, func(context.Context, *queue.Lease) queue.Settlement {
			running.Add(1)
			<-release
			return queue.Settlement{Event: shaper.Succeed}
		})
		pass(time.Second)
		for i := range 4 {
			q.put(0, fmt.Sprint(i), 0)
		}
		// The answer with the four jobs is lost once; meanwhile somebody takes three of the slots
		// that polls may reserve.
		q.set(func() { q.shards[0].loseReply = 1 })
		q.wakes <- queue.Wake{Shard: 0}
		pass(time.Millisecond)
		taken := r.capacity.reserve(newRequest(), 3, false)
		pass(15 * time.Millisecond)
		if running.Load() != 0 {
			t.Fatal("the poll was repeated too soon")
		}
		pass(time.Second)
		if n := running.Load(); n != 4 {
			t.Errorf("%d running, want the 4 that were leased", n)
		}
		if n := r.capacity.taken(); n != 4+taken {
			t.Errorf("%d slots are taken, want %d", n, 4+taken)
		}
		r.capacity.give(taken)
		close(release)
		pass(time.Second)
		r.end(t)
		if n := q.events()[shaper.Succeed]; n != 4 {
			t.Errorf("%d succeeded, want 4", n)
		}
	})
}

func TestCapacityIsNeverExceeded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const shards, jobs, limit = 8, 30, 5
		q := newFakeQueue(shards)
		var running, most atomic.Int32
		r := startRig(t, q, Config{Concurrency: limit}, func(ctx context.Context, _ *queue.Lease) queue.Settlement {
			most.Store(max(most.Load(), running.Add(1)))
			sleep(ctx, 100*time.Millisecond)
			running.Add(-1)
			return queue.Settlement{Event: shaper.Succeed}
		})
		for s := range shards {
			for j := range jobs {
				q.put(s, fmt.Sprint(s, "-", j), 0)
			}
			q.wakes <- queue.Wake{Shard: s}
		}
		// 240 jobs of 100 ms, five at a time, take 4.8 s if no slot is left empty.
		pass(6 * time.Second)
		if n := q.events()[shaper.Succeed]; n != shards*jobs {
			t.Errorf("%d delivered in time, want %d", n, shards*jobs)
		}
		if most.Load() != limit {
			t.Errorf("%d ran at once, want %d", most.Load(), limit)
		}
		// No shard is starved: the slots are granted in turn, though not in equal portions.
		r.end(t)
		got := make([]int, shards)
		for _, tick := range q.ticks {
			if tick.at.Before(q.settled[len(q.settled)/2].at) {
				got[tick.shard] += tick.leases
			}
		}
		if slices.Min(got) < jobs/6 {
			t.Errorf("leases per shard by half time: %v", got)
		}
	})
}

func TestOwnerWithoutCapacityAsksForHelp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		release := make(chan struct{})
		r := startRig(t, q, Config{Concurrency: 1}, func(context.Context, *queue.Lease) queue.Settlement {
			<-release
			return queue.Settlement{Event: shaper.Succeed}
		})
		pass(100 * time.Millisecond)
		q.put(0, "one", 0)
		q.put(0, "two", 0)
		q.wakes <- queue.Wake{Shard: 0}
		pass(50 * time.Millisecond)
		if n := len(q.helpSignals(queue.HelpRaise)); n != 1 {
			t.Fatalf("help was asked for %d times at once, want once", n)
		}
		pass(5 * time.Second)
		raised := q.helpSignals(queue.HelpRaise)
		if len(raised) < 5 || len(raised) > 6 {
			t.Errorf("asked %d times in 5 s, want once a second", len(raised))
		}
		for i := 1; i < len(raised); i++ {
			if gap := raised[i].Sub(raised[i-1]); gap < time.Second {
				t.Errorf("asked again after %v", gap)
			}
		}
		close(release)
		freed := time.Now()
		pass(3 * time.Second)
		cleared := q.helpSignals(queue.HelpClear)
		if len(cleared) != 1 {
			t.Fatalf("cleared %d times, want once", len(cleared))
		}
		if after := cleared[0].Sub(freed); after < 500*time.Millisecond || after > 1100*time.Millisecond {
			t.Errorf("cleared %v after capacity was there", after)
		}
		r.end(t)
		if n := q.events()[shaper.Succeed]; n != 2 {
			t.Errorf("%d succeeded, want 2", n)
		}
	})
}

func TestOwnerClearsTheHelpFlagOfAFormerOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		q.shards[0].help = true
		r := startRig(t, q, Config{}, succeed)
		pass(3 * time.Second)
		r.end(t)
		if n := len(q.helpSignals(queue.HelpClear)); n != 1 || q.shards[0].help {
			t.Errorf("cleared %d times, flag %v", n, q.shards[0].help)
		}
	})
}

func TestHelperLeasesBesideTheOwner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(16)
		q.others = []string{"other"}
		r := startRig(t, q, Config{}, succeed)
		pass(100 * time.Millisecond)
		foreign := -1
		for n := range q.shards {
			if owner([]string{r.id, "other"}, n) == "other" {
				foreign = n
			}
		}
		if foreign < 0 {
			t.Fatal("the other worker owns nothing")
		}
		if q.polls()[foreign] != 0 {
			t.Fatal("a shard of another was polled without a call for help")
		}
		q.set(func() { q.shards[foreign].help = true })
		for i := range 10 {
			q.put(foreign, fmt.Sprint(i), time.Duration(i)*100*time.Millisecond)
		}
		q.wakes <- queue.Wake{Shard: foreign, Help: true}
		pass(2 * time.Second)
		if n := q.events()[shaper.Succeed]; n != 10 {
			t.Errorf("the helper delivered %d, want 10", n)
		}
		// The owner is well again: the helper sees it with its next poll, and then leaves the shard
		// alone.
		q.set(func() { q.shards[foreign].help = false })
		pass(15 * time.Second)
		q.polls()
		q.put(foreign, "later", 0)
		q.wakes <- queue.Wake{Shard: foreign}
		pass(30 * time.Second)
		if q.polls()[foreign] != 0 {
			t.Error("the helper went on polling")
		}
		// No free capacity, no help.
		taken := r.capacity.reserve(newRequest(), 1000, false)
		q.wakes <- queue.Wake{Shard: foreign, Help: true}
		pass(time.Second)
		if q.polls()[foreign] != 0 {
			t.Error("it helped without capacity")
		}
		r.capacity.give(taken)
		r.end(t)
	})
}

func TestShardsMoveWithTheLiveWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(16)
		r := startRig(t, q, Config{}, succeed)
		pass(100 * time.Millisecond)
		q.set(func() { q.others = []string{"other"} })
		pass(2 * time.Second)
		q.polls()
		pass(60 * time.Second)
		polls := q.polls()
		for n := range q.shards {
			if mine := owner([]string{r.id, "other"}, n) == r.id; mine != (polls[n] > 0) {
				t.Errorf("shard %d: owned %v, polled %d times", n, mine, polls[n])
			}
		}
		// The other one leaves, and says so: its shards are polled within a round trip or two,
		// by the same consumers.
		q.set(func() { q.others = nil })
		q.wakes <- queue.Wake{Shard: queue.AllShards}
		pass(5 * time.Millisecond)
		if n := len(q.polls()); n != 16 {
			t.Errorf("%d shards polled after the other worker left, want 16", n)
		}
		r.end(t)
	})
}

func TestPanicIsAFailedAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{}, func(context.Context, *queue.Lease) queue.Settlement {
			panic("secret payload")
		})
		pass(time.Second)
		q.put(0, "panics", 0)
		q.wakes <- queue.Wake{Shard: 0}
		pass(time.Second)
		r.end(t)
		if len(q.settled) != 1 {
			t.Fatalf("%d settlements", len(q.settled))
		}
		s := q.settled[0]
		queuetest.Compare(t, "event, attempts of the route", []any{s.Event, s.MaxAttempts}, []any{shaper.Retry, 10})
		queuetest.Compare(t, "error", s.Error.Message, "the delivery panicked")
		if s.Delay <= 0 {
			t.Errorf("the delay is %v, want a backoff", s.Delay)
		}
		if age := q.now().Sub(shaper.InstantOf(s.Error.At)); age < 0 || age > 2*time.Second {
			t.Errorf("the error is from %v, the shard's clock says %v", s.Error.At, q.now().Time())
		}
	})
}

// TestUnknownRoutesWait: jobs of a route that only another worker has, as while a new file is
// rolled out, go back without an attempt, after a pause.
func TestUnknownRoutesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{}, func(context.Context, *queue.Lease) queue.Settlement {
			t.Error("delivered")
			return queue.Settlement{}
		})
		pass(time.Second)
		q.put(0, "lost", 0)
		q.set(func() { q.shards[0].jobs[0].Route = "gone" })
		q.wakes <- queue.Wake{Shard: 0}
		pass(shortagePause / 2)
		q.set(func() {
			if n := len(q.settled); n != 0 {
				t.Errorf("%d settlements before the pause", n)
			}
		})
		pass(shortagePause)
		r.end(t)
		if len(q.settled) == 0 {
			t.Fatal("not given back")
		}
		for _, s := range q.settled {
			queuetest.Compare(t, "event", s.Event, shaper.Release)
		}
	})
}

func TestLostLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{Lease: 3 * time.Second},
			func(ctx context.Context, _ *queue.Lease) queue.Settlement {
				sleep(ctx, 5*time.Second)
				return queue.Settlement{Event: shaper.Succeed}
			})
		pass(time.Second)
		q.put(0, "lost", 0)
		q.put(0, "kept", 0)
		q.set(func() { q.lose[queue.LeaseRef{ID: "lost", Epoch: 1}] = true })
		q.wakes <- queue.Wake{Shard: 0}
		pass(6 * time.Second)
		r.end(t)
		if n := q.extended[queue.LeaseRef{ID: "lost", Epoch: 1}]; n != 1 {
			t.Errorf("a lost lease was extended %d times, want once", n)
		}
		if n := q.extended[queue.LeaseRef{ID: "kept", Epoch: 1}]; n < 2 {
			t.Errorf("the other one was extended %d times", n)
		}
		if n := testutil.ToFloat64(r.metrics.deliveries[outcomeStale]); n != 1 {
			t.Errorf("%v stale, want 1", n)
		}
	})
}

func TestLostLeaseInThePacerIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		r := startRig(t, q, Config{}, succeed)
		pass(time.Second)
		l := queue.Lease{LeaseRef: queue.LeaseRef{ID: "lost"}, Route: "default"}
		j := &job{lease: l, at: r.watch.now().add(time.Second)}
		j.deadline.Store(int64(never))
		r.accept(0, []*job{j})
		j.lost.Store(true)
		pass(2 * time.Second)
		r.end(t)
		if len(q.settled) != 0 {
			t.Errorf("settled %+v", q.settled)
		}
	})
}
