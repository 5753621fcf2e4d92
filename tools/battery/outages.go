package main

import (
	"context"
	"fmt"
	"time"
)

// outages are the checks in which Redis goes away.
func outages() []check {
	return []check{
		{
			id: "R3", what: "redis kill -9 under load, appendfsync always",
			target: "lost 0; no 202 while down; intake back ≤ 1 s, deliveries ≤ 2 s after Redis answers" + poolTarget,
			quick:  scale{jobs: 4000, tenants: 20, kills: 3, window: 12 * time.Second},
			full:   scale{jobs: 12_000, tenants: 20, kills: 5, window: 30 * time.Second, limit: 2 * time.Minute},
			run:    redisKilled("always"),
		},
		{
			id: "R3-everysec", what: "the same with appendfsync everysec (a kill leaves the page cache)",
			target:   "as R3",
			full:     scale{jobs: 12_000, tenants: 20, kills: 5, window: 30 * time.Second, limit: 2 * time.Minute},
			fullOnly: true,
			run:      redisKilled("everysec"),
		},
	}
}

// outage is from the instant at which Redis was certainly gone to that at which it answered again;
// launched is when its restart began.
type outage struct{ gone, launched, back instant }

func redisKilled(fsync string) func(context.Context, *world, *findings) error {
	return func(ctx context.Context, w *world, f *findings) error {
		// Half the load that the rates can carry, so that each flow is always about to deliver, and
		// there is soon no backlog of the outage left.
		perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
		s := settings{fsync: fsync, defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant*2))}, pool: "70/s"}
		if err := w.open(ctx, s, "api", "worker", "worker"); err != nil {
			return err
		}
		w.sink.set(slowly(5*time.Millisecond, 100*time.Millisecond))
		from, err := w.stockPool(ctx)
		if err != nil {
			return err
		}
		wait := w.background(ctx, load{
			name: "r3", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
			clients: 256,
		})
		var outages []outage
		for i := range w.scale.kills {
			mean := w.scale.window / time.Duration(w.scale.kills+1)
			if err := pause(ctx, w.between(mean/4, mean/2)); err != nil {
				return err
			}
			w.redis.kill()
			o := outage{gone: w.ledger.now()}
			w.say("kill %d of %d", i+1, w.scale.kills)
			if err := pause(ctx, w.between(100*time.Millisecond, mean/2)); err != nil {
				return err
			}
			o.launched = w.ledger.now()
			if err := w.startRedis(ctx); err != nil {
				return err
			}
			o.back = w.ledger.now()
			outages = append(outages, o)
		}
		if err := wait(); err != nil {
			return err
		}
		e, err := w.settle(ctx, f)
		if err != nil {
			return err
		}
		e.succeeded(f)
		requests, deliveries := w.ledger.entries()
		var while []string
		var intake, again time.Duration
		for i, o := range outages {
			end := w.ledger.now()
			if i+1 < len(outages) {
				end = outages[i+1].gone
			}
			firstAck, firstDelivery := end, end
			for _, r := range requests {
				if r.Outcome != acknowledged {
					continue
				}
				if r.Sent > o.gone && r.Answered < o.launched {
					while = append(while, fmt.Sprintf("key %s, sent %v after the kill", r.Key, r.Sent.since(o.gone)))
				}
				if r.Answered >= o.back {
					firstAck = min(firstAck, r.Answered)
				}
			}
			for _, d := range deliveries {
				if d.At >= o.back {
					firstDelivery = min(firstDelivery, d.At)
				}
			}
			intake = max(intake, firstAck.since(o.back))
			again = max(again, firstDelivery.since(o.back))
		}
		f.info("kills", float64(len(outages)), "")
		f.none("202 while down", while)
		f.atMost("intake back", ms(intake), 1000, "ms")
		f.timed()
		f.atMost("deliveries back", ms(again), 2000, "ms")
		f.timed()
		f.info("duplicates", float64(len(e.Duplicates)), "")
		e.pool(w, f, from)
		return nil
	}
}
