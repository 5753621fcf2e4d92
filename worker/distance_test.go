package worker

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestFarRedisKeepsTheRate: a worker keeps a flow's stamps however long Redis takes to answer, and
// wherever that time is spent: on the network, half of it each way, or on a disk that syncs before
// each answer.
func TestFarRedisKeepsTheRate(t *testing.T) {
	const jobs, every = 500, 10 * time.Millisecond
	for _, c := range []struct {
		name  string
		trip  time.Duration
		early float64 // the part of the round trip before the script runs
	}{
		{"near", 300 * time.Microsecond, 0.5},
		{"another zone", 2 * time.Millisecond, 0.5},
		{"40 ms", 40 * time.Millisecond, 0.5},
		{"160 ms", 160 * time.Millisecond, 0.5},
		{"320 ms", 320 * time.Millisecond, 0.5},
		{"a disk of 30 ms", 30 * time.Millisecond, 0.01},
		{"a disk of 150 ms", 150 * time.Millisecond, 0.01},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				q := newFakeQueue(4)
				q.trip, q.early = c.trip, c.early
				var mu sync.Mutex
				left := map[string]time.Time{}
				r := startRig(t, q, Config{}, func(ctx context.Context, l *queue.Lease) queue.Settlement {
					mu.Lock()
					defer mu.Unlock()
					left[l.ID] = time.Now()
					return succeed(ctx, l)
				})
				pass(2 * time.Second)
				start := time.Now().Add(2 * time.Second)
				for i := range jobs {
					q.put(1, fmt.Sprint(i), time.Until(start)+time.Duration(i)*every)
				}
				q.wakes <- queue.Wake{Shard: 1}
				pass(2*time.Second + jobs*every + 2*time.Second)
				kept := 0
				for i := range jobs {
					late := left[fmt.Sprint(i)].Sub(start.Add(time.Duration(i) * every))
					if late >= -c.trip && late <= c.trip/2+20*time.Millisecond {
						kept++
					}
				}
				if events := q.events(); kept < jobs*98/100 || events[shaper.Succeed] != jobs {
					t.Errorf("%d of %d jobs left at their stamps; %v", kept, jobs, events)
				}
				r.end(t)
			})
		})
	}
}

// TestIdleShardsDoNotDelayABusyOne: Redis moves away, and then the polls of 63 idle shards come
// due. The jobs of a busy shard still leave at their stamps.
func TestIdleShardsDoNotDelayABusyOne(t *testing.T) {
	const jobs, every = 2000, 10 * time.Millisecond
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(64)
		q.trip, q.early = 2*time.Millisecond, 0.5
		var mu sync.Mutex
		late := 0
		start := time.Now().Add(5 * time.Second)
		r := startRig(t, q, Config{}, func(ctx context.Context, l *queue.Lease) queue.Settlement {
			mu.Lock()
			defer mu.Unlock()
			n, _ := strconv.Atoi(l.ID)
			if d := time.Since(start.Add(time.Duration(n) * every)); d > 20*time.Millisecond {
				late++
			}
			return succeed(ctx, l)
		})
		for i := range jobs {
			q.put(1, fmt.Sprint(i), time.Until(start)+time.Duration(i)*every)
		}
		q.wakes <- queue.Wake{Shard: 1}
		pass(4 * time.Second)
		q.set(func() { q.trip = 160 * time.Millisecond })
		pass(5*time.Second + jobs*every)
		released := q.events()[shaper.Release]
		if late+released > jobs*3/100 { // while the worker measures the new distance
			t.Errorf("%d of %d jobs left late, %d were given back", late, jobs, released)
		}
		r.end(t)
	})
}

// TestFarRedisLetsALoneJobLeave: a job that may leave at once leaves by the first answer that
// brings it, on an idle shard too.
func TestFarRedisLetsALoneJobLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(4)
		q.trip, q.early = 160*time.Millisecond, 0.5
		r := startRig(t, q, Config{}, succeed)
		for i := range 5 {
			pass(30 * time.Second)
			q.put(i%4, fmt.Sprint(i), 0)
			q.wakes <- queue.Wake{Shard: i % 4}
		}
		pass(2 * time.Second)
		if events := q.events(); events[shaper.Succeed] != 5 || events[shaper.Release] != 0 {
			t.Errorf("the settlements are %v", events)
		}
		r.end(t)
	})
}

// TestAWorkerThatMissesItsStampsSaysSo, once when it begins and once when it ends.
func TestAWorkerThatMissesItsStampsSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := newFakeQueue(1)
		var logged queuetest.Log
		// The lease bounds the horizon: 25 ms do not reach over a round trip of 200 ms.
		r := startRig(t, q, Config{Lease: 100 * time.Millisecond, Logger: logged.Logger(slog.LevelInfo)}, succeed)
		pass(time.Second)
		burst := func(name string) {
			for i := range 300 {
				q.put(0, fmt.Sprintf("%s%d", name, i), time.Duration(i)*100*time.Millisecond)
			}
			q.wakes <- queue.Wake{Shard: 0}
			pass(45 * time.Second)
		}
		q.set(func() { q.trip, q.early = 200*time.Millisecond, 0.5 })
		burst("far")
		q.set(func() { q.trip = 300 * time.Microsecond })
		burst("near")
		text := logged.String()
		if n := strings.Count(text, "most leased jobs miss their stamps"); n != 1 {
			t.Errorf("the worker said %d times that it misses stamps:\n%s", n, text)
		}
		if n := strings.Count(text, "leased jobs leave at their stamps again"); n != 1 {
			t.Errorf("the worker said %d times that it keeps stamps again:\n%s", n, text)
		}
		r.end(t)
	})
}

// TestDistance: two stalls among many measurements count for a second, and only for how early to
// poll; three count for longer. Old measurements are dropped.
func TestDistance(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	var d distance
	add := func(at, whole int) { d.observe(roundTrip{moment(ms(at)), ms(whole), ms(whole) / 2}) }
	check := func(at, whole, back int) {
		t.Helper()
		if got := d.estimate(moment(ms(at))); got.whole != ms(whole) || got.back != ms(back) {
			t.Errorf("at %d ms the round trip is %v and %v back, want %d and %d ms", at, got.whole, got.back, whole, back)
		}
	}
	check(0, 0, 0)
	add(0, 50)
	check(1, 50, 25)
	add(1, 4)
	check(2, 50, 2)
	for i := range 20 {
		add(2+i, 2)
	}
	check(30, 2, 1)
	add(31, 90)
	add(32, 80)
	check(33, 90, 1)
	check(1033, 2, 1)
	add(1034, 70)
	check(1035, 70, 35)
	check(2100, 70, 35)
	check(12_000, 0, 0)
}

// TestHorizonGrowsWithTheRoundTrip: near, the horizon is as configured; far, half of it covers the
// round trip, within the lease.
func TestHorizonGrowsWithTheRoundTrip(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	for _, c := range []struct{ whole, back, horizon, lead int }{
		{0, 0, 20, 0},
		{5, 3, 20, 0},
		{6, 6, 22, 6},
		{160, 80, 330, 80},
		{30, 30, 70, 30},
		{9000, 4500, 7500, 3750},
	} {
		horizon, lead := roundTrip{0, ms(c.whole), ms(c.back)}.reach(ms(20), ms(7500))
		if horizon != ms(c.horizon) || lead != ms(c.lead) {
			t.Errorf("over %d ms, %d back, the horizon is %v and the lead %v, want %d and %d ms", c.whole,
				c.back, horizon, lead, c.horizon, c.lead)
		}
	}
}
