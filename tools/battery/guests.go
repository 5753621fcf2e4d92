package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// guests are the checks of tenants that submit once.
func guests() []check {
	return []check{{
		id:     "G2",
		what:   "guests at random addresses, one job each, beside tenants with a backlog; then they are idle",
		target: "no guest is left behind, memory of Redis within 2 % of where it was",
		quick:  scale{jobs: 5_000, tenants: 10_000, limit: time.Minute},
		full:   scale{jobs: 100_000, tenants: 10_000, limit: 4 * time.Minute},
		run:    guestsGoIdle,
	}, {
		id:     "G3",
		what:   "guests of 64 IPv4 addresses, of an IPv6 /48 and of a /44 fill a Redis of 64 MB and 120 tenants",
		target: "each customer, active, new or named in the file, gets 202; guests use ≤ 25 % and ≤ 64 tenants",
		quick:  scale{window: 6 * time.Second, limit: time.Minute},
		full:   scale{window: 20 * time.Second, limit: 2 * time.Minute},
		run:    guestsFillTheStore,
	}}
}

const (
	residentJobs  = 2
	guestClients  = 256
	guestIdle     = 11 * time.Minute // more than the ten after which a tenant is forgotten
	guestsGrowth  = 2.0              // % of memory that may be left behind
	guestsSettled = 500              // jobs of one call
)

// guestsGoIdle drives the queue itself, without intake and deliveries.
func guestsGoIdle(ctx context.Context, w *world, f *findings) error {
	w.settings = settings{}.withDefaults()
	clock, err := w.newClock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = clock.file.Close() }()
	w.settings.redisEnv = clock.env
	if err := w.startRedis(ctx); err != nil {
		return err
	}
	log := slog.New(slog.DiscardHandler)
	engine, err := queue.OpenEngine(ctx, queue.EngineOptions{URL: "unix://" + w.socket(), Logger: log})
	if err != nil {
		return err
	}
	defer func() { _ = engine.Close() }()
	q, err := queue.Open(ctx, engine, queue.Options{
		Defaults:  shaper.Policy{Rate: shaper.Rate{Limit: 1, Period: time.Second}, Burst: 1, Capacity: 100},
		Tiers:     map[string]shaper.Overrides{"resident": {Paused: new(true)}},
		Retention: queue.Retention{Succeeded: time.Second, Idempotency: time.Second}, Logger: log,
	})
	if err != nil {
		return err
	}
	defer func() { _ = q.Close() }()

	residents := names("resident", w.scale.tenants)
	if err := submitAll(ctx, q, len(residents)*residentJobs, func(i int) queue.Submission {
		s := guestJob(residents[i%len(residents)])
		s.Tier = "resident"
		return s
	}); err != nil {
		return err
	}
	worker := newDrainer(q)
	if _, err := worker.pass(ctx); err != nil { // what a shard keeps of its worker is there before and after
		return err
	}
	before, err := w.footprint(ctx)
	if err != nil {
		return err
	}
	w.say("%d tenants wait with %d jobs each, in %.1f MiB", len(residents), residentJobs, before.used/(1<<20))

	draining, stop := context.WithCancel(ctx)
	drained := make(chan error, 1)
	go func() { drained <- worker.run(draining) }()
	started := time.Now()
	err = submitAll(ctx, q, w.scale.jobs, func(i int) queue.Submission {
		a := w.rng.Uint32() // drawn under the lock of submitAll
		return guestJob(fmt.Sprintf("guest:%d.%d.%d.%d", byte(a>>24), byte(a>>16), byte(a>>8), byte(a)))
	})
	if err == nil {
		err = until(ctx, "every guest's job is delivered", 50*time.Millisecond, func() (bool, error) {
			return worker.settled.Load() >= int64(w.scale.jobs), nil
		})
	}
	stop()
	if err = errors.Join(err, <-drained); err != nil {
		return err
	}
	totals, err := q.Totals(ctx)
	if err != nil {
		return err
	}
	peak, err := w.footprint(ctx)
	if err != nil {
		return err
	}
	w.say("%d guests came and were served in %v", w.scale.jobs, time.Since(started).Round(time.Second))

	if err := clock.set(guestIdle); err != nil {
		return err
	}
	if err := clock.verify(ctx, w, guestIdle); err != nil {
		return err
	}
	started = time.Now()
	var left queue.Totals
	if err := until(ctx, "the guests are forgotten", time.Millisecond, func() (bool, error) {
		if _, err := worker.pass(ctx); err != nil {
			return false, err
		}
		left, err = q.Totals(ctx)
		return left.Tenants <= int64(len(residents)), err
	}); err != nil {
		return err
	}
	forgotten := time.Since(started)
	// What has ended is deleted by Redis in its own time, and so are the empty places of its
	// tables.
	var after footprint
	large := w.scale.jobs >= 1_000_000 // else the tables, which may keep twice their places, are too much of it
	within := func() bool {
		return after.keys <= before.keys && growth(before.data, after.data) <= guestsGrowth &&
			(!large || growth(before.used, after.used) <= guestsGrowth)
	}
	patience, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		if after, err = w.footprint(ctx); err != nil {
			return err
		}
		if within() || pause(patience, 200*time.Millisecond) != nil {
			break
		}
	}
	f.info("guests", float64(w.scale.jobs), "")
	f.info("tenants live at the peak", float64(totals.Tenants), "")
	f.info("memory before", before.used/(1<<20), "MiB")
	f.info("at the peak", peak.used/(1<<20), "MiB")
	f.info("after", after.used/(1<<20), "MiB")
	f.atMost("growth of the data", growth(before.data, after.data), guestsGrowth, "%")
	if large {
		f.atMost("growth of all", growth(before.used, after.used), guestsGrowth, "%")
	}
	f.atMost("keys left behind", float64(after.keys-before.keys), 0, "")
	f.atMost("jobs of residents lost", float64(int64(len(residents)*residentJobs)-left.Depth), 0, "")
	f.info("forgotten within", forgotten.Seconds(), "s")
	return ctx.Err()
}

func guestJob(tenant string) queue.Submission {
	return queue.Submission{
		Tenant: tenant, Route: "default", Type: "order.create", Payload: []byte(`{"sku":1}`), MaxAttempts: 3,
	}
}

// footprint is what Redis holds.
type footprint struct {
	keys       int64
	used, data float64 // bytes in all, and without the tables and buffers, which shrink by leaps
}

func (w *world) footprint(ctx context.Context) (p footprint, err error) {
	if p.keys, err = w.store.DBSize(ctx).Result(); err != nil {
		return p, err
	}
	info, err := w.store.InfoMap(ctx, "memory").Result()
	if err != nil {
		return p, err
	}
	for name, into := range map[string]*float64{"used_memory": &p.used, "used_memory_dataset": &p.data} {
		if _, err := fmt.Sscan(info["Memory"][name], into); err != nil {
			return p, fmt.Errorf("%s of redis: %w", name, err)
		}
	}
	return p, nil
}

// growth is in percent.
func growth(before, after float64) float64 { return (after/before - 1) * 100 }

// submitAll submits n jobs, which job makes one after another, as many clients.
func submitAll(ctx context.Context, q *queue.Queue, n int, job func(i int) queue.Submission) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var mu sync.Mutex
	next := 0
	var clients sync.WaitGroup
	for range guestClients {
		clients.Go(func() {
			for ctx.Err() == nil {
				mu.Lock()
				i := next
				next++
				if i >= n {
					mu.Unlock()
					return
				}
				s := job(i)
				mu.Unlock()
				v, err := q.Submit(ctx, s)
				if err == nil && v.Outcome != shaper.Admitted {
					err = fmt.Errorf("job %d: %s", i, v.Outcome)
				}
				if err != nil {
					fail(err)
					return
				}
			}
		})
	}
	clients.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// drainer leases the due jobs of any shard and settles them at once as succeeded.
type drainer struct {
	q         *queue.Queue
	consumers []*queue.Consumer
	settled   atomic.Int64
}

func newDrainer(q *queue.Queue) *drainer {
	d := &drainer{q: q, consumers: make([]*queue.Consumer, q.Broker().Shards())}
	for i := range d.consumers {
		d.consumers[i] = q.Broker().Consumer("drainer", i)
	}
	return d
}

func (d *drainer) run(ctx context.Context) error {
	for ctx.Err() == nil {
		n, err := d.pass(ctx)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if n == 0 && pause(ctx, time.Millisecond) != nil {
			return nil
		}
	}
	return nil
}

// pass polls every shard once and settles the leases.
func (d *drainer) pass(ctx context.Context) (n int, err error) {
	var batch []queue.Settlement
	for _, c := range d.consumers {
		tick, err := c.Tick(ctx, queue.TickOptions{
			Max: guestsSettled, Lease: 30 * time.Second, Horizon: 20 * time.Millisecond, Sweep: time.Second,
		})
		if err != nil {
			return n, err
		}
		for _, l := range tick.Leases {
			batch = append(batch, queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Succeed, Attempt: l.Attempt})
		}
	}
	if len(batch) == 0 {
		return 0, nil
	}
	if _, err := d.q.Broker().Settle(ctx, batch); err != nil {
		return n, err
	}
	d.settled.Add(int64(len(batch)))
	return len(batch), nil
}
