package queuetest

import (
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var costTests = map[string]func(*suite){
	"an actual cost replaces the estimate once": actualCost,
	"a failed attempt may report a cost":        actualCostOfFailures,
	"a cost out of bounds is refused":           actualCostBounds,
	"a rate by jobs counts jobs":                rateByJobs,
	"a refused batch names the job":             costlyJobOfBatch,
	"estimates count jobs and costs":            estimatesByJobs,
}

// costing returns a settlement's actual cost.
func costing(n int64) func(*queue.Settlement) {
	return func(t *queue.Settlement) { t.ActualCost = &n }
}

// startsAfter insists on how long after the stamp of a lease a job is estimated to start.
func (s *suite) startsAfter(id string, l queue.Lease, want time.Duration) {
	s.Helper()
	equal(s, "the start after the last stamp", s.job(id).EstimatedStart.Sub(l.Stamp.Time()), want)
}

func actualCost(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	for _, actual := range []int64{4, 30, 0} {
		w := work()
		w.Cost = 10
		id := s.admit(w).ID
		equal(s, "the cost of a new job", s.job(id).Cost, 10)
		l := s.lease(1)[0]
		equal(s, "the cost of the lease", l.Cost, 10)
		next := s.admit(work()).ID
		s.startsAfter(next, l, 10*time.Minute)
		equal(s, "the result", s.settle(l, shaper.Succeed, costing(actual)), queue.Settled)
		if j := s.job(id); j.Cost != 10 || j.ActualCost == nil || *j.ActualCost != actual {
			s.Errorf("the ended job costs %d, actually %v, want 10 and %d", j.Cost, j.ActualCost, actual)
		}
		want := time.Duration(actual) * time.Minute
		if actual > 0 {
			s.startsAfter(next, l, want)
			equal(s, "the result of the same settlement", s.settle(l, shaper.Succeed, costing(actual)), queue.Repeated)
			equal(s, "the result of a stale one", s.settle(queue.Lease{Tenant: l.Tenant, LeaseRef: queue.LeaseRef{ID: l.ID, Epoch: 9}}, shaper.Succeed, costing(500)), queue.Stale)
			s.startsAfter(next, l, want)
			equal(s, "the stamp after", s.lease(1)[0].Stamp.Sub(l.Stamp), want)
		} else if start := s.job(next).EstimatedStart; start.Before(l.Stamp.Time()) || start.After(l.Stamp.Time().Add(time.Minute)) {
			s.Errorf("after a job that cost nothing the next starts at %v, its stamp was %v", start, l.Stamp.Time())
		}
	}
}

func actualCostOfFailures(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	for _, event := range []shaper.Event{shaper.Retry, shaper.Die, shaper.Hold} {
		w := work()
		w.Cost = 10
		id := s.admit(w).ID
		l := s.lease(1)[0]
		next := s.admit(work()).ID
		s.settle(l, event, after(time.Hour), costing(3), func(t *queue.Settlement) { t.Cause.By = queue.HeldByBreaker })
		if j := s.job(id); j.ActualCost == nil || *j.ActualCost != 3 {
			s.Errorf("after %s the actual cost is %v, want 3", event, j.ActualCost)
		}
		if event == shaper.Hold {
			equal(s, "the cause", s.tenant(tenant).HeldBy.By, queue.HeldByBreaker)
			continue
		}
		s.startsAfter(next, l, 3*time.Minute)
		if _, err := s.q.Cancel(s.ctx, tenant, next); err != nil {
			s.Fatal(err)
		}
	}
}

func actualCostBounds(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	for _, n := range []int64{-1, shaper.MaxCost + 1} {
		t := queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Event: shaper.Succeed, ActualCost: &n}
		if results, err := s.q.Broker().Settle(s.ctx, []queue.Settlement{t}); err == nil {
			s.Errorf("an actual cost of %d: %v", n, results)
		}
	}
	equal(s, "the result", s.settle(l, shaper.Succeed, costing(shaper.MaxCost)), queue.Settled)
}

func costlyJobOfBatch(s *suite) {
	s.policy(func(p *shaper.Policy) { p.MaxCost = 5 })
	s.tune(func(o *shaper.Overrides) {
		o.Routes = map[string]shaper.Overrides{"mail": {MaxCost: pointer(int64(4))}}
	})
	fits, costly := work(), work()
	fits.Cost, costly.Cost, costly.Route = 5, 5, "mail"
	for _, v := range s.batch(true, fits, costly, costly) {
		equal(s, "the outcome", v.Outcome, shaper.TooCostly)
		equal(s, "the job that is refused", v.Refused, 1)
		equal(s, "its bound", v.MaxCost, 4)
	}
}

func rateByJobs(s *suite) {
	s.policy(func(p *shaper.Policy) {
		p.Rate, p.Rates = quick, []shaper.Pace{{Rate: slow, Burst: 1, ByJobs: true}}
	})
	w := work()
	w.Cost = 500
	s.backlog(3, w)
	s.spaced(s.lease(3), time.Minute)
	equal(s, "the rate of the tenant", s.tenant(tenant).Policy.Rates[0].ByJobs, true)
	s.tune(func(o *shaper.Overrides) {
		o.Rates = &[]shaper.PaceJSON{{Limit: 2, PeriodMS: 60_000, By: shaper.ByJobs}}
	})
	s.backlog(3, w)
	s.spaced(s.lease(3), 30*time.Second)
}

func estimatesByJobs(s *suite) {
	s.policy(func(p *shaper.Policy) {
		p.Rate = shaper.Rate{Limit: 10, Period: time.Second}
		p.Rates = []shaper.Pace{{Rate: shaper.Rate{Limit: 1, Period: time.Second}, Burst: 1, ByJobs: true}}
		p.Capacity = 6
	})
	w := work()
	first := s.admit(w)
	w.Cost = 2 // 0.2 s of the costs, 1 s of the jobs
	second := s.admit(w)
	within(s, "the start of the second", second.EstimatedStart.Sub(first.EstimatedStart), time.Second, time.Second+limit)
	w.Cost = 30 // 3 s of the costs
	third := s.admit(w)
	within(s, "the start of the third", third.EstimatedStart.Sub(first.EstimatedStart), 2*time.Second, 2*time.Second+limit)
	leases := s.lease(3)
	equal(s, "the stamp of the third", leases[2].Stamp.Sub(leases[0].Stamp), 2*time.Second)
	fourth := s.admit(work())
	equal(s, "the start of the fourth", fourth.EstimatedStart.Sub(leases[2].Stamp.Time()), 3*time.Second)
}
