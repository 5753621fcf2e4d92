package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var figureTests = map[string]func(*suite){
	"a tenant never seen has the defaults":       tenantNeverSeen,
	"figures are sums over flows":                figuresSum,
	"the effective rate is the strictest":        effectiveRate,
	"limited_by names what limits a flow":        limits,
	"pauses of routes":                           pausedRoutes,
	"the oldest wait grows from admission":       oldestWait,
	"the oldest wait goes on when a job returns": oldestWaitGoesOn,
	"the oldest wait begins when a job is due":   oldestWaitOfDue,
	"a hold has an end and a cause":              holdTold,
	"an operator ends a hold":                    holdEnded,
	"present dead letters are counted":           deadCounted,
	"totals are sums over shards":                totals,
	"a listing pages through every tenant":       listing,
	"a cursor that no listing gave is refused":   foreignCursor,
	"a scan reports the depth of every tenant":   scan,
}

var fileTests = map[string]func(*suite){
	"the file's policies hold from the start":      filePublished,
	"the API outranks the file":                    fileUnderAPI,
	"a tenant removed from the file falls back":    fileWithdrawn,
	"an unchanged file changes no revision":        fileUnchanged,
	"the backlog obeys a changed file":             fileBacklog,
	"waiting flows obey changed defaults":          defaultsChanged,
	"a lowered default capacity admits no more":    defaultCapacity,
	"a default pause holds waiting flows and ends": defaultPause,
	"scheduled jobs outlive a restart":             restartScheduled,
	"an unseen grant is released after a restart":  restartLeases,
}

func tenantNeverSeen(s *suite) {
	t := s.tenant("never seen")
	Compare(s, "the policy", t.Policy, shaper.Policy{Rate: quick, Burst: 1, Capacity: 1000})
	Compare(s, "the figures", t.Figures, queue.Figures{LimitedBy: "idle", EffectiveRate: 1000})
	equal(s, "the revision", t.Revision, 0)
	names, _, err := s.q.Tenants(s.ctx, "", 10)
	if err != nil || len(names) != 0 {
		s.Errorf("reading listed %q, %v", names, err)
	}
}

// effectiveRate: a hold slows the rate, not the further ones. The figure is the strictest of the
// rates that are then in force.
func effectiveRate(s *suite) {
	s.policy(func(p *shaper.Policy) {
		p.Rate = shaper.Rate{Limit: 10, Period: time.Second}
		p.Rates = []shaper.Pace{{Rate: shaper.Rate{Limit: 4, Period: time.Second}, Burst: 1}}
	})
	s.backlog(2, work())
	equal(s, "the effective rate", s.tenant(tenant).EffectiveRate, 4)
	s.settle(s.lease(1)[0], shaper.Hold, after(time.Hour))
	equal(s, "the effective rate with half of the rate in force", s.tenant(tenant).EffectiveRate, 4)
	s.tune(func(o *shaper.Overrides) { o.Rates = &[]shaper.PaceJSON{{Limit: 6, PeriodMS: 1000}} })
	equal(s, "the same below a further rate that is less strict", s.tenant(tenant).EffectiveRate, 5)
}

func figuresSum(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 3 })
	other := work()
	other.Route = "reports"
	s.backlog(3, work())
	s.backlog(2, other)
	leases := s.lease(5)
	s.settle(leases[0], shaper.Succeed)
	s.settle(leases[1], shaper.Die)
	s.settle(leases[2], shaper.Retry, after(time.Hour))
	t := s.tenant(tenant)
	got := fmt.Sprint(t.Depth, t.Running, t.Admitted, t.Departed, t.Succeeded, t.DeadTotal)
	equal(s, "depth, running, admitted, departed, succeeded, dead", got, "1 2 5 5 1 1")
}

func limits(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Concurrency = slow, 1 })
	equal(s, "what limits a new tenant", s.tenant(tenant).LimitedBy, "idle")
	s.backlog(2, work())
	equal(s, "what limits a backlog", s.tenant(tenant).LimitedBy, "rate")
	l := s.lease(1)[0]
	equal(s, "what limits at the cap", s.tenant(tenant).LimitedBy, "concurrency")
	bounded := pollOptions(1, near)
	bounded.Bounds = []queue.Bound{{Route: l.Route, Slots: 0}}
	s.tune(func(o *shaper.Overrides) { o.Concurrency, o.Rate = pointer(int64(0)), pointer(quick) })
	s.await("a poll whose bounds put the flow off", func() bool {
		s.poll("w", bounded) // of a poll that is sent twice, the first sending puts the flow off
		return s.tenant(tenant).LimitedBy == "upstream"
	})
	equal(s, "the same in a scan", s.scan(1)[tenant].LimitedBy, "upstream")
	s.settle(l, shaper.Hold, after(time.Hour))
	equal(s, "what limits in a hold", s.tenant(tenant).LimitedBy, "held")
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	equal(s, "what limits in a pause", s.tenant(tenant).LimitedBy, "paused")
}

// pausedRoutes: a tenant is not idle while jobs wait, also if all of these are of paused routes.
func pausedRoutes(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.tune(func(o *shaper.Overrides) {
		o.Routes = map[string]shaper.Overrides{"fast": {Paused: pointer(true)}, "slow": {Paused: pointer(true)}}
	})
	equal(s, "what limits without jobs", s.tenant(tenant).LimitedBy, "idle")
	paused := work()
	paused.Route = "fast"
	s.backlog(2, paused)
	equal(s, "what limits in a pause of the route", s.tenant(tenant).LimitedBy, "paused")
	equal(s, "the same in a scan", s.scan(1)[tenant].LimitedBy, "paused")
	s.backlog(2, work())
	equal(s, "what limits beside another route", s.tenant(tenant).LimitedBy, "rate")
	equal(s, "that in a scan", s.scan(1)[tenant].LimitedBy, "rate")
}

func oldestWait(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(2, work())
	var wait time.Duration
	s.await("the oldest job to have waited 20 ms", func() bool {
		before := wait
		wait = s.tenant(tenant).OldestWait
		return wait >= 20*time.Millisecond && wait > before
	})
	s.lease(2)
	equal(s, "the oldest wait of an empty queue", s.tenant(tenant).OldestWait, 0)
}

// oldestWaitGoesOn: neither a retry nor a hold nor a release lets the wait begin anew; the end of
// the job ends it.
func oldestWaitGoesOn(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = quick })
	s.admit(work())
	admitted := time.Now()
	for _, event := range []shaper.Event{shaper.Retry, shaper.Release, shaper.Retry, shaper.Hold} {
		s.await("the job to be leased", func() bool {
			leases := s.leaseUpTo(1, near)
			if len(leases) == 0 {
				return false
			}
			s.settle(leases[0], event, after(30*time.Millisecond))
			return true
		})
		// What passed between the admission and the instant noted here.
		least := time.Since(admitted) - 5*time.Millisecond
		for what, wait := range map[string]time.Duration{
			"tenant": s.tenant(tenant).OldestWait, "scan": s.scan(10)[tenant].OldestWait,
		} {
			if wait < least {
				s.Errorf("after a %s the oldest wait of the %s is %v, %v after the admission", event, what, wait, least)
			}
		}
	}
	s.await("the job to be leased once more", func() bool {
		leases := s.leaseUpTo(1, near)
		return len(leases) == 1 && s.settle(leases[0], shaper.Succeed) == queue.Settled
	})
	equal(s, "the oldest wait after the end", s.tenant(tenant).OldestWait, 0)
}

// oldestWaitOfDue: a scheduled job waits from the instant that it was scheduled for, also while its
// tenant is paused.
func oldestWaitOfDue(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	w := work()
	w.Delay = time.Hour
	s.admit(w)
	equal(s, "the oldest wait before the job is due", s.tenant(tenant).OldestWait, 0)
	w.Delay = 30 * time.Millisecond
	begin := time.Now()
	s.admit(w)
	s.await("the job to be due", func() bool { return s.tenant(tenant).OldestWait > 0 })
	if wait, most := s.scan(10)[tenant].OldestWait, time.Since(begin)-w.Delay+5*time.Millisecond; wait > most {
		s.Errorf("the job has waited %v, it is due for %v at the most", wait, most)
	}
}

// holdTold checks the figures of a hold: its end, its cause and the status of the last answer. Of
// several holds the one that ends last is reported. After its end none is.
func holdTold(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = quick })
	refused := queue.HoldCause{By: queue.HeldByRetryAfter, Status: 503}
	because := func(c queue.HoldCause) func(*queue.Settlement) {
		return func(t *queue.Settlement) { t.Cause = c }
	}
	s.backlog(4, work())
	leases := s.lease(4)
	if t := s.tenant(tenant); !t.HeldUntil.IsZero() || t.HeldBy != (queue.HoldCause{}) {
		s.Errorf("before a hold the tenant is held until %v by %+v", t.HeldUntil, t.HeldBy)
	}
	begin := time.Now()
	s.settle(leases[0], shaper.Hold, after(time.Minute), because(refused))
	s.settle(leases[1], shaper.Hold, after(time.Second), because(queue.HoldCause{By: queue.HeldByBreaker}))
	for what, f := range map[string]queue.Figures{
		"tenant": s.tenant(tenant).Figures, "flow": s.tenant(tenant).Routes["default"].Figures,
		"scan": s.scan(10)[tenant].Figures,
	} {
		if in := f.HeldUntil.Sub(begin); f.HeldBy != refused || in < 59*time.Second || in > 80*time.Second {
			s.Errorf("%s: held by %+v for %v, want %+v and a minute", what, f.HeldBy, in, refused)
		}
	}
	s.settle(leases[2], shaper.Hold, after(time.Hour), because(queue.HoldCause{
		By: queue.HeldByBreaker, Status: 502,
	}))
	equal(s, "the cause of a longer hold", s.tenant(tenant).HeldBy, queue.HoldCause{By: queue.HeldByBreaker,
		Status: 502})
	s.settle(leases[3], shaper.Hold, after(2*time.Hour))
	equal(s, "the cause of a hold that names none", s.tenant(tenant).HeldBy, queue.HoldCause{})
}

// holdEnded: jobs leave at once, the rate comes back from where it was, and the history tells who
// did it.
func holdEnded(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = quick })
	s.backlog(3, work())
	s.settle(s.lease(1)[0], shaper.Hold, after(time.Hour))
	if leases := s.leaseUpTo(1, near); len(leases) != 0 {
		s.Fatalf("held, and %d jobs left", len(leases))
	}
	change := queue.Change{Edit: keep, EndHolds: true, Actor: "operator", Reason: "mended"}
	change.DryRun = true
	if _, err := s.q.Tune(s.ctx, tenant, change); err != nil || s.tenant(tenant).HeldUntil.IsZero() {
		s.Errorf("a dry run ended the hold, %v", err)
	}
	change.DryRun = false
	t, err := s.q.Tune(s.ctx, tenant, change)
	if err != nil {
		s.Fatalf("Tune: %v", err)
	}
	equal(s, "the end of the hold", t.HeldUntil, time.Time{})
	equal(s, "whether the hold limits", t.LimitedBy == "held", false)
	within(s, "the effective rate, from half of 1000", t.EffectiveRate, 490, 900)
	s.await("a job to leave", func() bool { return len(s.leaseUpTo(1, near)) == 1 })
	history, err := s.q.History(s.ctx, tenant)
	if err != nil || len(history) != 1 {
		s.Fatalf("the history is %+v, %v, want one entry", history, err)
	}
	h := history[0]
	Compare(s, "the entry", Only(h, "Action", "Actor", "Reason"),
		queue.HistoryEntry{Action: queue.ActionUnhold, Actor: "operator", Reason: "mended"})
}

// deadCounted: the total counts deaths, the other number what is left of them.
func deadCounted(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = quick })
	s.backlog(3, work())
	leases := s.lease(3)
	for _, l := range leases {
		s.settle(l, shaper.Die)
	}
	_, err := s.q.Purge(s.ctx, tenant, queue.Filter{State: queue.ListDead, IDs: []string{leases[0].ID}})
	if err != nil {
		s.Fatalf("Purge: %v", err)
	}
	for what, f := range map[string]queue.Figures{
		"tenant": s.tenant(tenant).Figures, "flow": s.tenant(tenant).Routes["default"].Figures,
		"scan": s.scan(10)[tenant].Figures,
	} {
		if f.Dead != 2 || f.DeadTotal != 3 {
			s.Errorf("%s: %d dead letters of %d deaths, want 2 of 3", what, f.Dead, f.DeadTotal)
		}
	}
}

// names are names of many tenants.
func manyNames(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("tenant %d", i)
	}
	return names
}

func totals(s *suite) {
	for i, name := range manyNames(20) {
		w := work()
		w.Tenant = name
		s.backlog(1+i%3, w)
	}
	equal(s, "the depth", s.totals().Depth, 39)
	s.lease(5)
	got := s.totals()
	equal(s, "the leased jobs", got.Running, 5)
	equal(s, "the depth without them", got.Depth, 34)
}

func (s *suite) totals() queue.Totals {
	s.Helper()
	t, err := s.q.Totals(s.ctx)
	if err != nil {
		s.Fatalf("Totals: %v", err)
	}
	return t
}

func listing(s *suite) {
	names := manyNames(30)
	for _, name := range names[:29] {
		w := work()
		w.Tenant = name
		s.admit(w)
	}
	if _, err := s.q.Tune(s.ctx, names[29], queue.Change{Edit: ofCapacity(7)}); err != nil {
		s.Fatalf("Tune: %v", err)
	}
	slices.Sort(names)
	for _, page := range []int{1, 7, 29, 30, 31} {
		var got []string
		for cursor, pages := "", 0; pages == 0 || cursor != ""; pages++ {
			some, next, err := s.q.Tenants(s.ctx, cursor, page)
			if err != nil || len(some) > page || pages > 40 {
				s.Fatalf("page %d of %d: %d names, %v", pages, page, len(some), err)
			}
			got, cursor = append(got, some...), next
		}
		slices.Sort(got)
		if !slices.Equal(got, names) {
			s.Errorf("listed by %d: %q, want %q", page, got, names)
		}
	}
}

func scan(s *suite) {
	equal(s, "the tenants of an empty store", len(s.scan(10)), 0)
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	reports := work()
	reports.Route = "reports"
	s.backlog(3, work())
	s.backlog(2, reports)
	odd := work()
	odd.Tenant = "odd name"
	s.admit(odd)
	var dead []queue.Lease
	for _, l := range s.lease(6) {
		if l.Tenant == tenant && len(dead) < 2 {
			s.settle(l, shaper.Die)
			dead = append(dead, l)
		}
	}
	s.backlog(2, work())
	later := work()
	later.Delay = time.Hour
	s.admit(later)
	s.await("the oldest job to have waited", func() bool {
		return s.scan(10)[tenant].OldestWait > 10*time.Millisecond
	})
	got := s.scan(10)
	waits := func(b queue.Brief) string { return fmt.Sprint(b.Depth, b.Running, b.Dead) }
	equal(s, "what waits", waits(got[tenant]), "3 3 2")
	equal(s, "what waits of a tenant with an odd name", waits(got["odd name"]), "0 1 0")
	equal(s, "the tenants", len(got), 2)
	if _, err := s.q.Purge(s.ctx, tenant, queue.Filter{State: queue.ListDead}); err != nil {
		s.Fatalf("Purge: %v", err)
	}
	equal(s, "the dead letters after a purge", s.scan(10)[tenant].Dead, 0)
}

func foreignCursor(s *suite) {
	for _, cursor := range []string{
		"x", "-", "1", "0", "0-", "-0", "0--1", "1-0", "99-0", "0-99999999999999999999", "0-x", "0-0-0",
		" 0-0",
	} {
		if names, _, err := s.q.Tenants(s.ctx, cursor, 10); !errors.Is(err, queue.ErrCursor) {
			s.Errorf("cursor %q: %q, %v, want ErrCursor", cursor, names, err)
		}
	}
}

// file restarts with a configuration file that names tenants.
func (s *suite) file(tenants map[string]shaper.Overrides) {
	s.Helper()
	s.restart(func(o *queue.Options) { o.Tenants = tenants })
}

func filePublished(s *suite) {
	s.file(map[string]shaper.Overrides{
		tenant: {Rate: &slow, Capacity: pointer(int64(2))}, "odd name": {Paused: pointer(true)},
		"no settings": {},
	})
	t := s.tenant(tenant)
	equal(s, "the rate", t.Policy.Rate, slow)
	equal(s, "the source of the rate", t.Sources["rate"], shaper.SourceFile)
	equal(s, "the source of the burst", t.Sources["burst"], shaper.SourceDefault)
	equal(s, "paused", s.tenant("odd name").Policy.Paused, true)
	equal(s, "the revision of a tenant without settings in the file", s.tenant("no settings").Revision, 0)
	s.backlog(2, work())
	equal(s, "the outcome", s.submit(work()).Outcome, shaper.Full)
	s.spaced(s.lease(2), time.Minute)
}

func fileUnderAPI(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Capacity = pointer(int64(5)) })
	s.file(map[string]shaper.Overrides{tenant: {Rate: &slow, Capacity: pointer(int64(2))}})
	t := s.tenant(tenant)
	equal(s, "the capacity", t.Policy.Capacity, 5)
	equal(s, "its source", t.Sources["capacity"], shaper.SourceAPI)
	equal(s, "the rate", t.Policy.Rate, slow)
	s.backlog(5, work())
	equal(s, "the outcome", s.submit(work()).Outcome, shaper.Full)
	t = s.tune(func(o *shaper.Overrides) { o.Capacity = nil })
	equal(s, "the capacity after the reset", t.Policy.Capacity, 2)
	equal(s, "its source", t.Sources["capacity"], shaper.SourceFile)
}

func fileWithdrawn(s *suite) {
	s.file(map[string]shaper.Overrides{tenant: {Rate: &slow}, "odd name": {Rate: &slow}, "kept": {Rate: &slow}})
	s.tune(func(o *shaper.Overrides) { o.Burst = pointer(int64(2)) })
	s.file(map[string]shaper.Overrides{"kept": {Rate: &slow}, "odd name": {}})
	t := s.tenant(tenant)
	equal(s, "the rate", t.Policy.Rate, quick)
	equal(s, "its source", t.Sources["rate"], shaper.SourceDefault)
	equal(s, "the burst", t.Policy.Burst, 2)
	equal(s, "the rate of a tenant that is no longer in the file", s.tenant("odd name").Policy.Rate, quick)
	equal(s, "the rate of a tenant still named", s.tenant("kept").Policy.Rate, slow)
}

func fileUnchanged(s *suite) {
	tenants := map[string]shaper.Overrides{tenant: {
		Rate: &slow, Rates: &[]shaper.PaceJSON{{Limit: 5, PeriodMS: 60_000}},
	}}
	s.file(tenants)
	before := s.tenant(tenant).Revision
	s.file(tenants)
	equal(s, "the revision", s.tenant(tenant).Revision, before)
}

func fileBacklog(s *suite) {
	s.file(map[string]shaper.Overrides{tenant: {Rate: &slow}})
	s.backlog(4, work())
	s.spaced(s.lease(2), time.Minute)
	s.file(map[string]shaper.Overrides{tenant: {Rate: &shaper.Rate{Limit: 1, Period: time.Hour}}})
	s.spaced(s.leaseUpTo(2, 3*time.Hour), time.Hour)
}

func defaultsChanged(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = shaper.Rate{Limit: 1, Period: 24 * time.Hour} })
	other := work()
	other.Tenant = "other one"
	s.backlog(4, work())
	s.backlog(4, other)
	s.lease(2)
	s.none()
	s.policy(func(*shaper.Policy) {}) // quick again
	leases := s.lease(6)
	for _, name := range []string{tenant, other.Tenant} {
		own := slices.DeleteFunc(slices.Clone(leases), func(l queue.Lease) bool { return l.Tenant != name })
		equal(s, "the jobs that left of "+name, len(own), 3)
		s.spaced(own, time.Millisecond)
	}
}

func defaultCapacity(s *suite) {
	s.backlog(5, work())
	s.policy(func(p *shaper.Policy) { p.Capacity = 5 })
	v := s.submit(work())
	equal(s, "the outcome", v.Outcome, shaper.Full)
	equal(s, "the capacity in the decision", v.Capacity, 5)
}

func defaultPause(s *suite) {
	s.backlog(2, work())
	s.policy(func(p *shaper.Policy) { p.Paused = true })
	s.none()
	s.policy(func(*shaper.Policy) {})
	s.lease(2)
}

func restartScheduled(s *suite) {
	w := work()
	w.Delay = time.Minute
	j := s.job(s.admit(w).ID)
	s.policy(func(*shaper.Policy) {})
	equal(s, "the stamp", s.lease(1)[0].Stamp.Time(), j.Scheduled)
}

func restartLeases(s *suite) {
	id := s.admit(work()).ID
	s.await("the job to be leased", func() bool { return len(s.poll("before", short()).Leases) == 1 })
	s.policy(func(*shaper.Policy) {})
	var again []queue.Lease
	s.await("the job to be leased again", func() bool {
		again = s.poll("after", short()).Leases
		return len(again) > 0
	})
	s.sameOrder(again, id)
	equal(s, "the epoch", again[0].Epoch, 2)
}
