package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// clusters are the checks on a Redis Cluster.
func clusters() []check {
	return []check{
		{
			id: "K1",
			what: "cluster slots migrating to and fro under load, those of busy shards and that of the " +
				"workers",
			target: "no half-done change, lost 0, unexpected 0" + poolTarget,
			quick:  scale{jobs: 2000, tenants: 12, rounds: 8, window: 10 * time.Second},
			full:   scale{jobs: 10_000, tenants: 24, rounds: 30, window: 45 * time.Second, limit: 5 * time.Minute},
			run:    slotsMigrating,
		},
		{
			id: "K3", what: "a master of a cluster is killed, and one hangs, while jobs come and go",
			target: "tenants of the master depart again ≤ 1 s after the takeover",
			quick:  scale{tenants: 24, rounds: 1, window: 3 * time.Second},
			full:   scale{tenants: 24, rounds: 5, window: 5 * time.Second, limit: 4 * time.Minute},
			run:    mastersStruck,
		},
	}
}

// slotsMigrating moves slots between the two nodes of a cluster, the way redis-cli does it, while
// jobs come and go. Intake may answer 503 meanwhile; its clients try again with the same key.
func slotsMigrating(ctx context.Context, w *world, f *findings) error {
	perTenant := float64(w.scale.jobs) / float64(w.scale.tenants) / w.scale.window.Seconds()
	tenants := names("tenant", w.scale.tenants)
	s := settings{
		defaults: tenant{rate: fmt.Sprintf("%d/s", int(perTenant)+2)}, tenants: map[string]tenant{}, pool: "70/s",
	}
	for _, t := range tenants {
		s.tenants[t] = tenant{} // named in the file, so that all keys of a policy are there
	}
	nodes, err := w.openCluster(ctx, s, 2, 0, "api", "worker", "worker")
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(nodes[0].client.Close(), nodes[1].client.Close()) }()
	slots, err := w.busySlots(ctx, tenants)
	if err != nil {
		return err
	}
	w.sink.set(slowly(5*time.Millisecond, 100*time.Millisecond))
	from, err := w.stockPool(ctx)
	if err != nil {
		return err
	}
	wait := w.background(ctx, load{
		name: "k1", jobs: w.scale.jobs, over: w.scale.window, tenants: spread("tenant", w.scale.tenants),
		insist: true, clients: 128,
	})
	if err := w.waitForLater(ctx, tenants); err != nil {
		return err
	}
	tuning, stop := context.WithCancel(ctx)
	defer stop()
	tuned := make(chan int, 1)
	go func() { tuned <- w.tuneAll(tuning, tenants) }()
	var migrations []migration
	for i := range w.scale.rounds {
		if err := pause(ctx, w.between(0, w.scale.window/time.Duration(w.scale.rounds)/2)); err != nil {
			return err
		}
		// A slot goes to and fro before another one is chosen; now and then it takes longer than a
		// lease.
		stay := w.between(50*time.Millisecond, 600*time.Millisecond)
		if i%8 == 3 {
			stay = w.settings.lease + w.settings.lease/2
		}
		w.say("migration %d of %d", i+1, w.scale.rounds)
		m, err := w.migrate(ctx, nodes, slots[i/2%len(slots)], stay)
		if err != nil {
			return err
		}
		migrations = append(migrations, m)
	}
	stop()
	changes := <-tuned
	if err := wait(); err != nil {
		return err
	}
	var half []string
	for _, m := range migrations {
		for _, key := range m.twice {
			half = append(half, key+" was made anew on the other node while it was on its way there")
		}
	}
	draining, cancel := context.WithTimeout(ctx, w.scale.window+20*time.Second)
	err = w.drain(draining)
	cancel()
	if err != nil && ctx.Err() == nil { // books that do not add up never become 0
		left, err := w.halfDone(ctx, nodes)
		f.none("half-done changes", append(append(half, "the queue does not become empty"), left...))
		return err
	}
	e, err := w.settle(ctx, f)
	if err != nil {
		return err
	}
	e.succeeded(f)
	left, err := w.halfDone(ctx, nodes)
	if err != nil {
		return err
	}
	f.none("half-done changes", append(half, left...))
	var moved float64
	for _, m := range migrations {
		moved += float64(m.keys)
	}
	slotOf := map[string]int{}
	for _, t := range append(tenants, poolTenants...) {
		placed := t
		if slices.Contains(poolTenants, t) {
			placed = "+" + poolName
		}
		if slotOf[t], err = w.slotOf(ctx, placed); err != nil {
			return err
		}
	}
	open := func(tenant string, first, last instant, after time.Duration) bool {
		return slices.ContainsFunc(migrations, func(m migration) bool {
			return m.meets(slotOf[tenant], first, last, after)
		})
	}
	refusals := 0.0
	var others, elsewhere, again []string
	requests, _ := w.ledger.entries()
	for _, r := range requests {
		switch {
		case r.Status == http.StatusServiceUnavailable && open(r.Tenant, r.Sent, r.Answered, 0):
			refusals++
		case r.Status == http.StatusServiceUnavailable:
			elsewhere = append(elsewhere, fmt.Sprintf("key %s of slot %d from %v to %v", r.Key,
				slotOf[r.Tenant], time.Duration(r.Sent), time.Duration(r.Answered)))
		case r.Status != http.StatusAccepted:
			others = append(others, fmt.Sprintf("key %s: %d", r.Key, r.Status))
		}
	}
	// A lease that could not be settled while its slot was open is taken back when it has run out,
	// or one lease of grace later.
	for _, d := range e.Duplicates {
		if !open(d.again.Tenant, d.before.At, d.again.At, 2*w.settings.lease) {
			text := fmt.Sprintf("job %s of slot %d at %v and %v", d.again.Job, slotOf[d.again.Tenant],
				time.Duration(d.before.At), time.Duration(d.again.At))
			for _, m := range migrations {
				if d.before.At <= m.end && d.again.At >= m.begun {
					text += fmt.Sprintf("; slot %d was open from %v to %v", m.slot, time.Duration(m.begun),
						time.Duration(m.end))
				}
			}
			again = append(again, text)
		}
	}
	f.info("migrations", float64(len(migrations)), "")
	f.info("keys moved", moved, "")
	f.info("policy changes", float64(changes), "")
	f.atLeast("503s of open slots", refusals, 1, "") // else nothing was put to the test
	f.none("503s of other slots", elsewhere)
	f.none("answers other than 202 and 503", others)
	f.info("duplicates", float64(len(e.Duplicates)), "")
	f.none("duplicates of other slots", again)
	e.pool(w, f, from)
	return nil
}

// tuneAll changes the tenants' policies in turn, in a setting that nothing depends on, and returns
// how often it could.
func (w *world) tuneAll(ctx context.Context, tenants []string) (changes int) {
	for i := 0; pause(ctx, 5*time.Millisecond) == nil; i++ {
		body := fmt.Sprintf(`{"concurrency":%d}`, 300+i%2+i%3)
		_, err := w.operate(ctx, w.living("api")[0], http.MethodPatch, tenants[i%len(tenants)], body)
		if err == nil {
			changes++
		}
	}
	return changes
}
