package queuetest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"time"

	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var motionTests = map[string]func(*suite){
	"a scan reports what the tenants report":           scanAgrees,
	"a scan reports holds and dead letters":            scanStopped,
	"a scan uses the policy of now":                    scanRetuned,
	"a scan in pages has every tenant":                 scanPortions,
	"a scan of no tenants ends":                        scanEmpty,
	"totals count admissions, refusals and departures": totalsCount,
	"totals do not count a released departure":         totalsReleased,
	"workers report lateness":                          latenessTold,
	"a silent worker is not counted":                   workersGone,
	"waits are those of jobs delivered once":           waitsOfDone,
	"the store reports its health":                     storeHealth,
}

// scan reads all tenants, in pages of about most.
func (s *suite) scan(most int) map[string]queue.Brief {
	s.Helper()
	all := map[string]queue.Brief{}
	for cursor, parts := "", 0; parts == 0 || cursor != ""; parts++ {
		part, next, err := s.q.Scan(s.ctx, cursor, most)
		if err != nil || parts > 1000 {
			s.Fatalf("Scan: page %d, %v", parts, err)
		}
		for _, b := range part {
			all[b.Name] = b
		}
		cursor = next
	}
	return all
}

// agree compares the scan with each tenant. The oldest wait grows between the two.
func (s *suite) agree(names ...string) {
	s.Helper()
	all := s.scan(10)
	for _, name := range names {
		got, t := all[name], s.tenant(name)
		want := queue.Brief{
			Name: name, Tier: t.Tier, Rate: t.Policy.Rate, Rates: t.Policy.Rates, Capacity: t.Policy.Capacity,
			Paused: t.Policy.Paused, Figures: t.Figures,
		}
		if got.OldestWait > want.OldestWait || (got.OldestWait == 0) != (want.OldestWait == 0) {
			s.Errorf("%s: the oldest wait is %v in the scan, %v after it", name, got.OldestWait, want.OldestWait)
		}
		got.OldestWait, want.OldestWait = 0, 0
		if !reflect.DeepEqual(got, want) {
			s.Errorf("%s is %+v in the scan, want %+v", name, got, want)
		}
	}
}

func scanAgrees(s *suite) {
	two := int64(2)
	s.restart(func(o *queue.Options) {
		o.Defaults.Rate = slow
		o.Routes = map[string]shaper.Overrides{"reports": {Concurrency: &two}}
		o.Tiers = map[string]shaper.Overrides{"gold": {Capacity: pointer(int64(7)), Rate: &quick}}
		o.Tenants = map[string]shaper.Overrides{"filed": {Paused: pointer(true)}}
	})
	names := []string{tenant, "odd name", "é/{x}", "filed", "claims a tier"}
	for i, name := range names {
		for _, route := range []string{"default", "reports"} {
			w := work()
			w.Tenant, w.Route = name, route
			if name == "claims a tier" {
				w.Tier = "gold"
			}
			s.backlog(2+i, w)
		}
	}
	s.leaseUpTo(4, near)
	if _, err := s.q.Tune(s.ctx, "only said", queue.Change{Edit: ofCapacity(7)}); err != nil {
		s.Fatalf("Tune: %v", err)
	}
	s.agree(append(names, "only said")...)
	equal(s, "tenants in the scan", len(s.scan(10)), 6)
}

func scanStopped(s *suite) {
	s.restart(func(o *queue.Options) { o.Defaults.Rate, o.Retention.DeadCapacity = quick, 1 })
	held := work()
	held.Tenant = "held"
	s.backlog(3, held)
	s.settle(s.lease(3)[0], shaper.Hold, after(time.Hour))
	s.backlog(2, work())
	s.settle(s.lease(2)[0], shaper.Die)
	s.admit(work())
	s.agree("held", tenant)
	equal(s, "what limits a held tenant", s.scan(1)["held"].LimitedBy, "held")
	equal(s, "what limits a tenant full of dead letters", s.scan(1)[tenant].LimitedBy, "paused")
}

func scanRetuned(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = shaper.Rate{Limit: 1, Period: 24 * time.Hour} })
	s.backlog(3, work())
	s.lease(1)
	s.agree(tenant)
	s.tune(func(o *shaper.Overrides) {
		o.Rate, o.Rates = &quick, &[]shaper.PaceJSON{{Limit: 5, PeriodMS: 60_000}}
	})
	s.agree(tenant)
	s.policy(func(p *shaper.Policy) { p.Capacity = 12 }) // the shard has not looked at its flows by it
	equal(s, "the capacity in the scan", s.scan(10)[tenant].Capacity, 12)
	s.agree(tenant)
}

func scanPortions(s *suite) {
	names := manyNames(300)
	for _, name := range names {
		w := work()
		w.Tenant = name
		s.admit(w)
	}
	slices.Sort(names)
	for _, most := range []int{-1, 1, 50, 1000} {
		if got := slices.Sorted(maps.Keys(s.scan(most))); !slices.Equal(got, names) {
			s.Errorf("in portions of %d: %d tenants, want %d", most, len(got), len(names))
		}
	}
	for _, cursor := range []string{
		"x", "-", "1", "0", "0-", "-0", "0--1", "1-0", "0-x", "0-99999999999999999999", " 0-0", "0-1-0",
	} {
		if _, _, err := s.q.Scan(s.ctx, cursor, 10); !errors.Is(err, queue.ErrCursor) {
			s.Errorf("cursor %q: %v, want ErrCursor", cursor, err)
		}
	}
}

func scanEmpty(s *suite) { equal(s, "tenants", len(s.scan(10)), 0) }

// counted are the totals that only grow.
func (s *suite) counted() string {
	s.Helper()
	t := s.totals()
	return fmt.Sprint(t.Admitted, t.Rejected, t.Departed)
}

func totalsCount(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Capacity = 3 })
	equal(s, "totals of nothing", s.counted(), "0 0 0")
	s.backlog(3, work())
	s.submit(work())
	if _, err := s.q.SubmitBatch(s.ctx, slices.Repeat([]queue.Submission{work()}, 4), true); err != nil {
		s.Fatalf("SubmitBatch: %v", err)
	}
	other := work()
	other.Tenant = "other"
	s.admit(other)
	refused := s.totals().Rejected
	if refused < 5 { // a refusal is not remembered: one that is sent again counts again
		s.Errorf("%d refused, want 5 at the least", refused)
	}
	equal(s, "totals before departures", s.counted(), fmt.Sprint(4, refused, 0))
	for _, l := range s.lease(4) {
		s.settle(l, shaper.Succeed)
	}
	equal(s, "totals after departures", s.counted(), fmt.Sprint(4, refused, 4))
	sum := [3]int64{}
	for _, b := range s.scan(10) {
		sum[0], sum[1], sum[2] = sum[0]+b.Admitted, sum[1]+b.Rejected, sum[2]+b.Departed
	}
	equal(s, "the sum over tenants", fmt.Sprint(sum[0], sum[1], sum[2]), fmt.Sprint(4, refused, 4))
}

func totalsReleased(s *suite) {
	s.backlog(1, work())
	s.settle(s.lease(1)[0], shaper.Release)
	equal(s, "totals after a release", s.counted(), "1 0 0")
	s.settle(s.lease(1)[0], shaper.Retry)
	s.lease(1)
	equal(s, "totals after a retry", s.counted(), "1 0 2")
}

func (s *suite) workers() reports.Workers {
	s.Helper()
	w, err := reports.New(store.Of(s.q)).Workers(s.ctx)
	if err != nil {
		s.Fatalf("Workers: %v", err)
	}
	return w
}

func latenessTold(s *suite) {
	equal(s, "workers of nobody", s.workers().Live, 0)
	s.beat("a", time.Hour)
	s.beat("b", time.Hour)
	s.beat("idle", time.Hour)
	var a, b reports.Lateness
	a[reports.LatenessClass(100*time.Microsecond)] = 98
	b[reports.LatenessClass(100*time.Microsecond)], b[reports.LatenessClass(4*time.Millisecond)] = 1, 1
	for name, l := range map[string]reports.Lateness{"a": a, "b": b, "gone": b} {
		if err := reports.New(store.Of(s.q)).ReportLateness(s.ctx, name, l); err != nil {
			s.Fatalf("ReportLateness: %v", err)
		}
	}
	w := s.workers()
	equal(s, "live workers", w.Live, 3)
	equal(s, "departures", w.Lateness.Sum(), 100)
	for _, q := range []struct {
		share  float64
		lo, hi time.Duration
	}{
		{0.5, 100 * time.Microsecond, 113 * time.Microsecond},
		{0.99, 100 * time.Microsecond, 113 * time.Microsecond},
		{1, 4 * time.Millisecond, 4500 * time.Microsecond},
	} {
		if got := w.Lateness.Quantile(q.share); got < q.lo || got > q.hi {
			s.Errorf("the quantile %v is %v, want %v to %v", q.share, got, q.lo, q.hi)
		}
	}
}

func workersGone(s *suite) {
	s.beat("silent", time.Hour)
	s.await("the silent worker to be counted no more", func() bool {
		s.beat("w", time.Hour)
		return s.workers().Live == 1
	})
	if err := s.q.Broker().Leave(s.ctx, "w"); err != nil {
		s.Fatalf("Leave: %v", err)
	}
	equal(s, "workers after the last has left", s.workers().Live, 0)
}

func waitsOfDone(s *suite) {
	waits := func() []time.Duration {
		s.Helper()
		w, err := s.q.Waits(s.ctx, tenant, 2)
		if err != nil {
			s.Fatalf("Waits: %v", err)
		}
		return w
	}
	equal(s, "waits of a tenant never seen", len(waits()), 0)
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(4, work())
	leases := s.lease(4)
	s.settle(leases[0], shaper.Retry)
	s.settle(leases[1], shaper.Die)
	equal(s, "waits of jobs that have not succeeded", len(waits()), 0)
	s.settle(leases[2], shaper.Succeed)
	s.settle(leases[3], shaper.Succeed)
	got := waits()
	if len(got) != 2 || got[0] != leases[2].Stamp.Sub(leases[2].Created) ||
		got[1] != leases[3].Stamp.Sub(leases[3].Created) || got[1] < 3*time.Minute-time.Second {
		s.Errorf("waits are %v", got)
	}
	s.settle(s.lease(1)[0], shaper.Succeed)
	equal(s, "waits with a job delivered again", len(waits()), 1)
}

func storeHealth(s *suite) {
	h, err := s.q.StoreHealth(s.ctx)
	if err != nil || h.Ping <= 0 || h.Engine != s.engine.Kind() {
		s.Errorf("the store is %+v, %v", h, err)
	}
	embedded := h.Engine == queue.EngineEmbedded
	if embedded != (h.UsedMemory == 0) || embedded != (h.Version == "") {
		s.Errorf("the store is %+v", h)
	}
}
