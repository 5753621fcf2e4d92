package queuetest

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// What is stored is damaged here as a person at redis-cli would do it: by writing to a key of
// Sluice.
var damageTests = map[string]func(*suite){
	"a damaged flow refuses only its own submissions":   damagedFlowAdmits,
	"a damaged idempotency key refuses one submission":  damagedKeyAdmits,
	"a submission that was refused is not counted":      damagedCountsNothing,
	"a damaged flow does not stop the shard":            damagedFlowTicks,
	"a repaired flow continues":                         damagedFlowMended,
	"a damaged retry is dropped":                        damagedRetry,
	"a damaged job of an expired lease is dropped":      damagedLease,
	"an expired job ends without its damaged key":       damagedKeyExpires,
	"a damaged job does not keep others from settling":  damagedSettle,
	"a damaged job does not keep others from extending": damagedExtend,
}

// damage puts a text where a flow's count was, which nothing repairs.
func (s *suite) damage(key string) {
	s.Helper()
	if err := s.engine.Client().HSet(s.ctx, key, "depth", "by hand").Err(); err != nil {
		s.Fatal(err)
	}
}

// broken replaces a text by a list, which no script expects.
func (s *suite) broken(key string) {
	s.Helper()
	if err := s.engine.Client().Del(s.ctx, key).Err(); err != nil {
		s.Fatal(err)
	}
	if err := s.engine.Client().RPush(s.ctx, key, "by hand").Err(); err != nil {
		s.Fatal(err)
	}
}

// onlyKey returns the key of the shard that matches.
func (s *suite) onlyKey(pattern string) string {
	s.Helper()
	client := s.engine.Client()
	if cluster, ok := client.(*redis.ClusterClient); ok {
		node, err := cluster.MasterForKey(s.ctx, s.shard().Clock())
		if err != nil {
			s.Fatal(err)
		}
		client = node
	}
	keys, _, err := client.Scan(s.ctx, 0, pattern, 1000).Result()
	if err != nil || len(keys) != 1 {
		s.Fatalf("keys %q, %v", keys, err)
	}
	return keys[0]
}

func (s *suite) shard() store.ShardKeys { return store.NewKeyspace(1).Shard(0) }

// of is work of a tenant.
func of(tenant string) queue.Submission {
	w := work()
	w.Tenant = tenant
	return w
}

// together submits the jobs at once, most of them in the same exchange.
func (s *suite) together(list []queue.Submission) []error {
	errs := make([]error, len(list))
	var g sync.WaitGroup
	for i := range list {
		g.Go(func() { _, errs[i] = s.q.Submit(s.ctx, list[i]) })
	}
	g.Wait()
	return errs
}

func damagedFlowAdmits(s *suite) {
	for _, key := range []string{s.shard().Flow("bad/default")} {
		s.submit(of("bad"))
		s.damage(key)
		var list []queue.Submission
		for i := range 40 {
			list = append(list, of([]string{"good", "bad", "other", "fine"}[i%4]))
		}
		for i, err := range s.together(list) {
			if bad := list[i].Tenant == "bad"; bad != errors.Is(err, queue.ErrScript) || !bad && err != nil {
				s.Errorf("%s: %s: %v", key, list[i].Tenant, err)
			}
			if err != nil && !strings.Contains(err.Error(), "bad/default") {
				s.Errorf("the error does not name the flow: %v", err)
			}
		}
		if err := s.engine.Client().Del(s.ctx, key).Err(); err != nil {
			s.Fatal(err)
		}
	}
	if t := s.tenant("good"); t.Figures.Depth != 10 || t.Figures.Admitted != 10 {
		s.Errorf("good has %+v, want 10 jobs", t.Figures)
	}
	s.warm()
	if leases := s.poll("w", pollOptions(1000, far)).Leases; len(leases) < 30 {
		s.Errorf("%d jobs leave, want 30 and more", len(leases))
	}
}

func damagedKeyAdmits(s *suite) {
	w := keyed()
	job := s.admit(w)
	if _, err := s.q.Submit(s.ctx, w); err != nil {
		s.Fatal(err)
	}
	s.broken(s.onlyKey("*:idem:*"))
	list := []queue.Submission{w}
	for range 20 {
		list = append(list, work())
	}
	for i, err := range s.together(list) {
		if (i == 0) != errors.Is(err, queue.ErrScript) || i > 0 && err != nil {
			s.Errorf("submission %d: %v", i, err)
		}
	}
	if got := s.job(job.ID); got.State != shaper.Queued {
		s.Errorf("the job of the key is %v", got.State)
	}
}

func damagedCountsNothing(s *suite) {
	s.submit(work())
	s.lease(1)
	before := s.tenant(tenant).Figures
	s.damage(s.shard().Flow(tenant + "/default"))
	for range 3 {
		if _, err := s.q.Submit(s.ctx, work()); !errors.Is(err, queue.ErrScript) {
			s.Errorf("Submit: %v, want ErrScript", err)
		}
	}
	if err := s.engine.Client().HSet(s.ctx, s.shard().Flow(tenant+"/default"), "depth", before.Depth).
		Err(); err != nil {
		s.Fatal(err)
	}
	if after := s.tenant(tenant).Figures; after.Depth != before.Depth || after.Admitted != before.Admitted {
		s.Errorf("the tenant has %+v, had %+v before the refusals", after, before)
	}
}

func damagedFlowTicks(s *suite) {
	s.warm()
	for _, key := range []string{s.shard().Flow("bad/default")} {
		s.submit(of("bad"))
		s.submit(of("good"))
		s.damage(key)
		t := s.poll("w", pollOptions(10, far))
		if len(t.Leases) != 1 || t.Leases[0].Tenant != "good" {
			s.Errorf("%s: leases %+v, want one of good", key, t.Leases)
		}
		if len(t.Damaged) == 0 { // the answer that reported it was lost: the next such poll reports it too
			t = s.poll("w", pollOptions(10, far))
		}
		if len(t.Damaged) != 1 || !strings.HasPrefix(t.Damaged[0], "flow bad/default: ") ||
			t.Damaged[0] == "flow bad/default: " {
			s.Errorf("%s: damaged %q, want the flow and its error", key, t.Damaged)
		}
		// It is not looked at each time.
		if t := s.poll("w", pollOptions(10, near)); len(t.Damaged) != 0 {
			s.Errorf("%s: damaged at the next poll: %q", key, t.Damaged)
		}
		if err := s.engine.Client().Del(s.ctx, key).Err(); err != nil {
			s.Fatal(err)
		}
	}
}

func damagedFlowMended(s *suite) {
	s.submit(of("bad"))
	key := s.shard().Flow("bad/default")
	s.warm()
	raw, err := s.engine.Client().HGetAll(s.ctx, key).Result()
	if err != nil {
		s.Fatal(err)
	}
	before, err := s.q.Totals(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	s.damage(key)
	if t := s.poll("w", pollOptions(10, far)); len(t.Leases) != 0 || len(t.Damaged) != 1 {
		s.Errorf("leases %+v, damaged %q", t.Leases, t.Damaged)
	}
	if after, err := s.q.Totals(s.ctx); err != nil || after.Depth != before.Depth ||
		after.Bytes != before.Bytes {
		s.Errorf("the shard has %+v, had %+v before the poll (%v)", after, before, err)
	}
	if err := s.engine.Client().Del(s.ctx, key).Err(); err != nil {
		s.Fatal(err)
	}
	if err := s.engine.Client().HSet(s.ctx, key, raw).Err(); err != nil {
		s.Fatal(err)
	}
	if t := s.poll("w", pollOptions(10, far)); len(t.Leases) != 1 || len(t.Damaged) != 0 {
		s.Errorf("mended: leases %+v, damaged %q", t.Leases, t.Damaged)
	}
}

func damagedRetry(s *suite) {
	jobs := s.backlog(2, work())
	for _, l := range s.lease(2) {
		s.settle(l, shaper.Retry)
	}
	s.broken(s.shard().Job(jobs[0].ID))
	var all []queue.Lease
	s.await("the other job", func() bool {
		all = append(all, s.poll("w", pollOptions(10, far)).Leases...)
		return len(all) > 0
	})
	if len(all) != 1 || all[0].ID != jobs[1].ID {
		s.Errorf("leases %+v, want that of %s", all, jobs[1].ID)
	}
	if t := s.tenant(tenant); t.Figures.Depth != 0 {
		s.Errorf("%d jobs wait, want none: the damaged one is dropped", t.Figures.Depth)
	}
}

func damagedLease(s *suite) {
	jobs := s.backlog(2, work())
	o := pollOptions(10, far)
	o.Lease = time.Millisecond
	s.warm()
	if t := s.poll("lost", o); len(t.Leases) != 2 {
		s.Fatalf("leases %+v", t.Leases)
	}
	s.broken(s.shard().Job(jobs[0].ID))
	var damaged []string
	s.await("the other job", func() bool {
		o := pollOptions(10, far)
		o.Sweep = time.Millisecond
		t := s.poll("w", o)
		damaged = append(damaged, t.Damaged...)
		return len(t.Leases) == 1 && t.Leases[0].ID == jobs[1].ID
	})
	if len(damaged) > 1 || len(damaged) == 1 && !strings.HasPrefix(damaged[0], "job "+jobs[0].ID+": ") {
		s.Errorf("damaged %q, want the job at most once, for an answer may be lost", damaged)
	}
}

func damagedKeyExpires(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Paused = new(true) })
	w := keyed()
	w.MaxWait = 50 * time.Millisecond
	job := s.admit(w)
	s.broken(s.onlyKey("*:idem:*"))
	s.await("its end", func() bool {
		s.poll("w", pollOptions(10, near))
		return s.job(job.ID).State == shaper.Expired
	})
}

func damagedSettle(s *suite) {
	jobs := s.backlog(5, work())
	leases := s.lease(5)
	s.broken(s.shard().Job(jobs[2].ID))
	var batch []queue.Settlement
	for _, l := range leases {
		batch = append(batch, queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Event: shaper.Succeed})
	}
	results, err := s.q.Broker().Settle(s.ctx, batch)
	if err != nil {
		s.Errorf("Settle: %v", err)
	}
	for i, r := range results {
		want := (map[bool]queue.SettleResult{true: queue.Stale, false: queue.Settled})[i == 2]
		if r != want && r != queue.Repeated {
			s.Errorf("settlement %d: %q, want %q", i, r, want)
		}
	}
}

func damagedExtend(s *suite) {
	jobs := s.backlog(5, work())
	var refs []queue.LeaseRef
	for _, l := range s.lease(5) {
		refs = append(refs, l.LeaseRef)
	}
	s.broken(s.shard().Job(jobs[2].ID))
	lost, err := s.q.Broker().Extend(context.WithoutCancel(s.ctx), refs, time.Minute)
	if err != nil || len(lost) != 1 || lost[0].ID != jobs[2].ID {
		s.Errorf("Extend: lost %+v, %v", lost, err)
	}
}
