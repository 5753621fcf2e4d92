package queuetest

import (
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var tierTests = map[string]func(*suite){
	"a claimed tier sets the rate of the flow":               tierClaimed,
	"the file's tier outranks the claimed one, the API both": tierRanks,
	"an unknown claimed tier counts as none":                 tierUnknown,
	"a tier that vanishes falls back to the defaults":        tierVanishes,
	"a changed tier is obeyed by the backlog":                tierChanged,
	"a change to an unknown tier is refused":                 tierRefused,
	"a route's rate limits only its flow":                    routeRate,
	"a route's settings outrank the tenant's":                routeRanks,
	"a pause of a route and of the tenant add up":            routePaused,
	"the backlog obeys changed policies at once":             policiesBacklog,
	"changed policies reset tenants that they do not name":   policiesReset,
	"an override outranks changed policies":                  policiesOverridden,
	"a capacity below the depth refuses and loses nothing":   policiesCapacity,
	"a dry run checks and changes nothing":                   dryRun,
	"a tenant shows its API overrides":                       toldOverrides,
}

var (
	fourth = shaper.Rate{Limit: 4, Period: time.Minute} // 15 s apart
	third  = shaper.Rate{Limit: 3, Period: time.Minute} // 20 s apart
)

func rated(r shaper.Rate) shaper.Overrides { return shaper.Overrides{Rate: &r} }

// tiers restarts with the tiers pro and free, and the tenants of the file.
func (s *suite) tiers(named map[string]shaper.Overrides) {
	s.Helper()
	s.restart(func(o *queue.Options) {
		o.Tiers = map[string]shaper.Overrides{"pro": rated(fourth), "free": rated(slow)}
		o.Tenants = named
	})
}

// policies puts other ones into force: the suite's defaults, with edit's changes.
func (s *suite) policies(edit func(b *shaper.Baseline), named map[string]shaper.Overrides) {
	s.Helper()
	b := shaper.Baseline{Defaults: shaper.Policy{Rate: quick, Burst: 1, Capacity: 1000}}
	edit(&b)
	if err := s.q.SetPolicies(s.ctx, b, named); err != nil {
		s.Fatalf("SetPolicies: %v", err)
	}
}

func same(*shaper.Baseline) {}

// claiming is work by a tenant whose credential claims the tier.
func claiming(tier string) queue.Submission {
	w := work()
	w.Tier = tier
	return w
}

func onRoute(route string) queue.Submission {
	w := work()
	w.Route = route
	return w
}

// wantTier compares the tier, the rate in general, and the sources of both.
func (s *suite) wantTier(tier, tierSource string, rate shaper.Rate, source string) {
	s.Helper()
	t := s.tenant(tenant)
	equal(s, "the tier", t.Tier, tier)
	equal(s, "the tier's source", t.Sources["tier"], tierSource)
	equal(s, "the rate", t.Policy.Rate, rate)
	equal(s, "the rate's source", t.Sources["rate"], source)
}

func tierClaimed(s *suite) {
	s.tiers(nil)
	s.backlog(3, claiming("pro"))
	s.wantTier("pro", shaper.SourceClaim, fourth, "tier:pro")
	s.spaced(s.lease(3), 15*time.Second)
	equal(s, "the rate of the flow", s.tenant(tenant).Routes["default"].Policy.Rate, fourth)
}

func tierRanks(s *suite) {
	s.tiers(map[string]shaper.Overrides{tenant: {Tier: pointer("free")}})
	s.backlog(4, claiming("pro"))
	s.wantTier("free", shaper.SourceFile, slow, "tier:free")
	s.spaced(s.lease(2), time.Minute)
	s.tune(func(o *shaper.Overrides) { o.Tier = pointer("pro") })
	s.wantTier("pro", shaper.SourceAPI, fourth, "tier:pro")
	s.spaced(s.lease(2), 15*time.Second)
	s.tune(func(o *shaper.Overrides) { o.Tier = nil })
	s.wantTier("free", shaper.SourceFile, slow, "tier:free")
}

func tierUnknown(s *suite) {
	s.tiers(nil)
	s.backlog(3, claiming("gold"))
	equal(s, "the rate", s.tenant(tenant).Policy.Rate, quick)
	s.spaced(s.lease(3), time.Millisecond)
}

func tierVanishes(s *suite) {
	s.tiers(nil)
	s.tune(func(o *shaper.Overrides) { o.Tier = pointer("pro") })
	s.backlog(6, work())
	s.spaced(s.lease(2), 15*time.Second)
	s.policies(func(b *shaper.Baseline) { b.Defaults.Rate = third }, nil)
	t := s.tenant(tenant)
	equal(s, "the rate", t.Policy.Rate, third)
	equal(s, "the rate's source", t.Sources["rate"], shaper.SourceDefault)
	s.warm()
	s.spaced(s.lease(2), 20*time.Second)
	// It comes back.
	s.policies(func(b *shaper.Baseline) { b.Tiers = map[string]shaper.Overrides{"pro": rated(fourth)} }, nil)
	s.wantTier("pro", shaper.SourceAPI, fourth, "tier:pro")
	s.warm()
	s.spaced(s.lease(2), 15*time.Second)
}

func tierChanged(s *suite) {
	s.tiers(nil)
	s.backlog(5, claiming("free"))
	s.spaced(s.lease(2), time.Minute)
	s.policies(func(b *shaper.Baseline) { b.Tiers = map[string]shaper.Overrides{"free": rated(fourth)} }, nil)
	s.warm()
	s.spaced(s.lease(3), 15*time.Second)
}

func tierRefused(s *suite) {
	s.tiers(nil)
	_, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Tier = pointer("gold")
		return o, nil
	}})
	var problems shaper.Problems
	if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Field != "tier" ||
		!strings.Contains(problems[0].Rule, "free, pro") {
		s.Errorf("Tune: %v", err)
	}
	equal(s, "the revision", s.tenant(tenant).Revision, 0)
}

func routeRate(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Routes = map[string]shaper.Overrides{"login": rated(slow)} })
	s.backlog(3, onRoute("login"))
	s.backlog(5, onRoute("orders"))
	by := map[string][]queue.Lease{}
	for _, l := range s.lease(8) {
		by[l.Route] = append(by[l.Route], l)
	}
	s.spaced(by["login"], time.Minute)
	s.spaced(by["orders"], time.Millisecond)
	t := s.tenant(tenant)
	equal(s, "the rate of login", t.Routes["login"].Policy.Rate, slow)
	equal(s, "its source", t.Routes["login"].Sources["rate"], shaper.SourceAPI)
	equal(s, "the rate of orders", t.Routes["orders"].Policy.Rate, quick)
	equal(s, "the rate in general", t.Policy.Rate, quick)
}

func routeRanks(s *suite) {
	s.restart(func(o *queue.Options) {
		o.Routes = map[string]shaper.Overrides{"login": rated(slow)}
		o.Tiers = map[string]shaper.Overrides{"pro": {Routes: map[string]shaper.Overrides{"login": rated(third)}}}
		o.Tenants = map[string]shaper.Overrides{tenant: {Tier: pointer("pro")}, "plain": {Rate: &third}}
	})
	rate := func(name, route string) string {
		f := s.tenant(name).Routes[route]
		return f.Policy.Rate.String() + " " + f.Sources["rate"]
	}
	equal(s, "by the default of the route, beside a rate of the file", rate("plain", "login"), "1/m default")
	equal(s, "by the tier", rate(tenant, "login"), "3/m tier:pro")
	s.tune(func(o *shaper.Overrides) { o.Rate = &quick })
	equal(s, "by the tier, beside a rate of the API", rate(tenant, "login"), "3/m tier:pro")
	s.backlog(2, onRoute("login"))
	s.spaced(s.lease(2), 20*time.Second)
	s.tune(func(o *shaper.Overrides) { o.Routes = map[string]shaper.Overrides{"login": rated(fourth)} })
	equal(s, "by the API", rate(tenant, "login"), "4/m api")
	s.backlog(2, onRoute("login"))
	s.spaced(s.lease(2), 15*time.Second)
}

func routePaused(s *suite) {
	paused := shaper.Overrides{Paused: pointer(true)}
	s.tune(func(o *shaper.Overrides) { o.Routes = map[string]shaper.Overrides{"login": paused} })
	s.backlog(1, onRoute("login"))
	s.backlog(1, onRoute("orders"))
	equal(s, "the route that left", s.lease(1)[0].Route, "orders")
	s.none()
	s.tune(func(o *shaper.Overrides) {
		o.Routes["login"] = shaper.Overrides{Paused: pointer(false)}
		o.Paused = pointer(true)
	})
	s.none()
	s.tune(func(o *shaper.Overrides) { o.Paused = nil })
	equal(s, "the route that left", s.lease(1)[0].Route, "login")
}

func policiesBacklog(s *suite) {
	s.policies(func(b *shaper.Baseline) { b.Defaults.Rate = shaper.Rate{Limit: 1, Period: 24 * time.Hour} }, nil)
	s.backlog(10, work())
	s.backlog(5, onRoute("login"))
	s.warm()
	s.lease(2) // one of each
	s.none()
	s.policies(func(b *shaper.Baseline) { b.Routes = map[string]shaper.Overrides{"login": rated(slow)} }, nil)
	s.warm()
	by := map[string][]queue.Lease{}
	for _, l := range s.lease(13) {
		by[l.Route] = append(by[l.Route], l)
	}
	s.spaced(by["default"], time.Millisecond)
	s.spaced(by["login"], time.Minute)
}

func policiesReset(s *suite) {
	s.policies(same, map[string]shaper.Overrides{
		tenant: {Rate: &slow, Routes: map[string]shaper.Overrides{"login": rated(third)}},
		"kept": rated(slow),
	})
	s.backlog(4, work())
	s.spaced(s.lease(2), time.Minute)
	before := s.tenant("kept").Revision
	s.policies(same, map[string]shaper.Overrides{"kept": rated(slow)})
	t := s.tenant(tenant)
	equal(s, "the rate", t.Policy.Rate, quick)
	equal(s, "its source", t.Sources["rate"], shaper.SourceDefault)
	if _, has := t.Routes["login"]; has {
		s.Errorf("a route has settings: %+v", t.Routes["login"])
	}
	s.spaced(s.lease(2), time.Millisecond)
	equal(s, "the rate of a tenant still named", s.tenant("kept").Policy.Rate, slow)
	equal(s, "its revision", s.tenant("kept").Revision, before)
}

func policiesOverridden(s *suite) {
	s.tune(func(o *shaper.Overrides) {
		o.Rate = &slow
		o.Routes = map[string]shaper.Overrides{"login": rated(third)}
	})
	s.policies(func(b *shaper.Baseline) { b.Routes = map[string]shaper.Overrides{"login": rated(fourth)} },
		map[string]shaper.Overrides{tenant: {
			Rate: &quick, Capacity: pointer(int64(7)),
			Routes: map[string]shaper.Overrides{"login": rated(quick)},
		}})
	t := s.tenant(tenant)
	equal(s, "the rate", t.Policy.Rate, slow)
	equal(s, "its source", t.Sources["rate"], shaper.SourceAPI)
	equal(s, "the capacity", t.Policy.Capacity, 7)
	equal(s, "its source", t.Sources["capacity"], shaper.SourceFile)
	equal(s, "the rate of login", t.Routes["login"].Policy.Rate, third)
	s.backlog(2, onRoute("login"))
	s.spaced(s.lease(2), 20*time.Second)
	s.restart(func(o *queue.Options) { o.Tenants = map[string]shaper.Overrides{tenant: rated(quick)} })
	equal(s, "the rate after a restart", s.tenant(tenant).Policy.Rate, slow)
}

func policiesCapacity(s *suite) {
	jobs := s.backlog(6, work())
	s.policies(func(b *shaper.Baseline) { b.Defaults.Capacity = 4 }, nil)
	v := s.submit(work())
	Compare(s, "above the capacity", Only(v.Admission, "Outcome", "Depth", "Capacity"),
		shaper.Admission{Outcome: shaper.Full, Depth: 6, Capacity: 4})
	s.sameOrder(s.lease(2), ids(jobs[:2])...)
	equal(s, "the outcome at the capacity", s.submit(work()).Outcome, shaper.Full)
	s.sameOrder(s.lease(1), jobs[2].ID)
	last := s.admit(work())
	s.sameOrder(s.lease(4), append(ids(jobs[3:]), last.ID)...)
	equal(s, "the depth", s.tenant(tenant).Depth, 0)
}

func dryRun(s *suite) {
	s.tiers(nil)
	s.backlog(3, work())
	s.tune(func(o *shaper.Overrides) { o.Capacity = pointer(int64(9)) })
	try := func(edit func(*shaper.Overrides)) (queue.Tenant, error) {
		return s.q.Tune(s.ctx, tenant, queue.Change{DryRun: true, Reason: "only asking",
			Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
				edit(&o)
				return o, nil
			}})
	}
	t, err := try(func(o *shaper.Overrides) { o.Tier, o.Capacity = pointer("pro"), nil })
	if err != nil {
		s.Fatalf("a dry run: %v", err)
	}
	picked := func(t queue.Tenant) queue.Tenant {
		t.Policy = Only(t.Policy, "Rate", "Capacity")
		return Only(t, "Tier", "Policy", "Revision", "Depth")
	}
	three := queue.Figures{Depth: 3}
	would := queue.Tenant{
		Tier: "pro", Policy: shaper.Policy{Rate: fourth, Capacity: 1000}, Revision: 1, Figures: three,
	}
	Compare(s, "the tenant as it would be", picked(t), would)
	var problems shaper.Problems
	if _, err := try(func(o *shaper.Overrides) { o.Capacity = pointer(int64(-1)) }); !errors.As(err, &problems) {
		s.Errorf("a wrong one: %v", err)
	}
	t = s.tenant(tenant)
	is := queue.Tenant{Policy: shaper.Policy{Rate: quick, Capacity: 9}, Revision: 1, Figures: three}
	Compare(s, "the tenant, unchanged", picked(t), is)
	equal(s, "the reason", t.Reason, "")
	if entries, err := s.q.History(s.ctx, tenant); err != nil || len(entries) != 1 {
		s.Errorf("the history: %+v, %v", entries, err)
	}
	s.spaced(s.lease(3), time.Millisecond)
}

func toldOverrides(s *suite) {
	s.tiers(map[string]shaper.Overrides{tenant: {Tier: pointer("free"), Burst: pointer(int64(2))}})
	if t := s.tenant(tenant); !t.API.Empty() {
		s.Errorf("of a tenant of the file: %+v", t.API)
	}
	s.tune(func(o *shaper.Overrides) {
		o.Tier, o.Routes = pointer("pro"), map[string]shaper.Overrides{"login": {Capacity: pointer(int64(1))}}
	})
	t := s.tenant(tenant)
	if t.API.Tier == nil || *t.API.Tier != "pro" || *t.API.Routes["login"].Capacity != 1 ||
		!slices.Equal(t.API.Set(), nil) {
		s.Errorf("the overrides: %+v", t.API)
	}
}
