package queuetest

import (
	"errors"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var tuneTests = map[string]func(*suite){
	"a setting comes from the API until it is reset":       tuneAndReset,
	"every setting can be tuned":                           tuneEverySetting,
	"an edit that fails changes nothing":                   tuneEditFails,
	"a revision that is not in force is refused":           tuneRevision,
	"a change that changes nothing leaves no trace":        tuneNothing,
	"concurrent changes lose none":                         tuneConcurrently,
	"a policy that breaks rules lists all problems":        tuneProblems,
	"the backlog obeys a higher rate at once":              tuneFaster,
	"the backlog obeys a lower rate and keeps its jobs":    tuneSlower,
	"a lowered capacity keeps the depth":                   tuneCapacity,
	"a raised cap lets jobs leave at once":                 tuneCap,
	"pause and resume keep the rate":                       pauseResume,
	"settings that another file contradicts can be paused": tuneContradicted,
	"resume leaves only what a pause elsewhere needs":      resumeLeavesNothing,
	"overrides outlive a restart":                          tuneRestart,
	"tuning one tenant leaves the others alone":            tuneOthers,
}

func tuneAndReset(s *suite) {
	before := s.tenant(tenant)
	equal(s, "the revision of a tenant never seen", before.Revision, 0)
	for _, setting := range shaper.Names(shaper.Settings()) {
		equal(s, "the source of "+setting, before.Sources[setting], shaper.SourceDefault)
	}
	t, err := s.q.Tune(s.ctx, tenant, queue.Change{Reason: "too loud", Actor: "ops",
		Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
			o.Rate = &slow
			return o, nil
		}})
	if err != nil {
		s.Fatalf("Tune: %v", err)
	}
	equal(s, "the rate", t.Policy.Rate, slow)
	equal(s, "the source of the rate", t.Sources["rate"], shaper.SourceAPI)
	equal(s, "the source of the capacity", t.Sources["capacity"], shaper.SourceDefault)
	equal(s, "the reason", t.Reason, "too loud")
	equal(s, "the revision", t.Revision, 1)
	equal(s, "the effective rate", t.EffectiveRate, 1.0/60)
	t = s.tune(func(o *shaper.Overrides) {
		if o.Rate == nil || *o.Rate != slow {
			s.Errorf("the edit got %+v", *o)
		}
		o.Rate = nil
	})
	equal(s, "the rate after the reset", t.Policy.Rate, quick)
	equal(s, "the source after the reset", t.Sources["rate"], shaper.SourceDefault)
	equal(s, "the revision", t.Revision, 2)
	equal(s, "the reason", t.Reason, "")
}

func tuneEverySetting(s *suite) {
	want := shaper.Policy{
		Rate: shaper.Rate{Limit: 7, Period: 3 * time.Second}, Burst: 4, Capacity: 9, CapacityBytes: 900, Concurrency: 5, MaxWait: 1500 * time.Millisecond, Paused: true, Draining: true, Denied: true, Types: []string{"a", "b"}, MaxCost: 77, Weight: 6, Reserve: shaper.Rate{Limit: 1, Period: time.Second},
		Rates: []shaper.Pace{{Rate: shaper.Rate{Limit: 1000, Period: 24 * time.Hour}, Burst: 20}, {Rate: shaper.Rate{Limit: 5, Period: time.Second}, Burst: 1}},
	}
	t := s.tune(func(o *shaper.Overrides) {
		o.Rate, o.Burst, o.Capacity, o.CapacityBytes, o.Concurrency = &want.Rate, &want.Burst, &want.Capacity,
			&want.CapacityBytes, &want.Concurrency
		o.MaxWaitMS, o.Paused, o.Draining, o.Denied = pointer(int64(1500)), pointer(true), pointer(true), pointer(true)
		o.Rates = &[]shaper.PaceJSON{{Limit: 1000, PeriodMS: 86_400_000, Burst: 20}, {Limit: 5, PeriodMS: 1000}}
		o.Weight, o.Reserve, o.MaxCost, o.Types = &want.Weight, &want.Reserve, &want.MaxCost, &want.Types
	})
	if diff := cmp.Diff(want, t.Policy); diff != "" {
		s.Errorf("the policy (-want +got):\n%s", diff)
	}
	for _, setting := range shaper.Names(shaper.Settings()) {
		equal(s, "the source of "+setting, t.Sources[setting], shaper.SourceAPI)
	}
	equal(s, "the effective rate while paused", t.EffectiveRate, 0)
	t = s.tune(func(o *shaper.Overrides) { o.Paused = pointer(false) })
	equal(s, "the effective rate", t.EffectiveRate, 1000.0/86400)
}

func tuneEditFails(s *suite) {
	broken := errors.New("no such tier")
	_, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		return shaper.Overrides{Rate: &slow}, broken
	}})
	if !errors.Is(err, broken) || errors.Is(err, queue.ErrUnavailable) {
		s.Errorf("Tune: %v, want the edit's own error", err)
	}
	equal(s, "the revision", s.tenant(tenant).Revision, 0)
}

// ofCapacity is an edit that sets the capacity.
func ofCapacity(n int64) func(shaper.Overrides) (shaper.Overrides, error) {
	return func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Capacity = &n
		return o, nil
	}
}

func keep(o shaper.Overrides) (shaper.Overrides, error) { return o, nil }

func tuneRevision(s *suite) {
	for _, wrong := range []int64{1, -1} {
		if _, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: keep, IfRevision: &wrong}); !errors.Is(err,
			queue.ErrRevision) {
			s.Errorf("revision %d of a new tenant: %v, want ErrRevision", wrong, err)
		}
	}
	for revision := range int64(3) {
		t, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: ofCapacity(revision), IfRevision: &revision})
		if err != nil || t.Revision != revision+1 {
			s.Errorf("Tune against revision %d: %+v, %v", revision, t, err)
		}
	}
	if _, err := s.q.Tune(s.ctx, tenant,
		queue.Change{Edit: keep, IfRevision: pointer(int64(2))}); !errors.Is(err, queue.ErrRevision) {
		s.Errorf("an old revision: %v, want ErrRevision", err)
	}
}

func tuneNothing(s *suite) {
	set := func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Rate, o.Routes = &slow, map[string]shaper.Overrides{"default": {Capacity: pointer(int64(7))}}
		return o, nil
	}
	for _, edit := range []func(shaper.Overrides) (shaper.Overrides, error){keep, set, set, keep} {
		if _, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: edit, Reason: "again"}); err != nil {
			s.Fatalf("Tune: %v", err)
		}
	}
	t := s.tenant(tenant)
	equal(s, "the revision: made known, and set", t.Revision, 2)
	equal(s, "the rate", t.Policy.Rate, slow)
	history, err := s.q.History(s.ctx, tenant)
	if err != nil || len(history) != 2 {
		s.Errorf("History: %v, %v, want two entries", history, err)
	}
}

func tuneConcurrently(s *suite) {
	const writers = 8
	var all sync.WaitGroup
	for range writers {
		all.Go(func() {
			_, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
				n := int64(1)
				if o.Capacity != nil {
					n += *o.Capacity
				}
				o.Capacity = &n
				return o, nil
			}})
			if err != nil {
				s.Errorf("Tune: %v", err)
			}
		})
	}
	all.Wait()
	t := s.tenant(tenant)
	equal(s, "the capacity", t.Policy.Capacity, writers)
	equal(s, "the revision", t.Revision, writers)
}

func tuneProblems(s *suite) {
	_, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Capacity, o.Burst, o.MaxWaitMS = pointer(int64(-1)), pointer(int64(0)), pointer(int64(-5))
		return o, nil
	}})
	var problems shaper.Problems
	if !errors.As(err, &problems) || len(problems) != 3 {
		s.Errorf("Tune: %v, want three problems", err)
	}
	equal(s, "the revision", s.tenant(tenant).Revision, 0)
}

func tuneFaster(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = shaper.Rate{Limit: 1, Period: 24 * time.Hour} })
	s.backlog(10, work())
	first := s.lease(1)[0]
	s.none()
	s.tune(func(o *shaper.Overrides) { o.Rate = &quick })
	leases := s.lease(9)
	// The wait of a day shrinks to a millisecond, which has passed: the next stamp is that of the
	// change, the others follow.
	if d := leases[0].Stamp.Sub(first.Stamp); d < time.Millisecond || d > limit {
		s.Errorf("the next stamp came %v after the last", d)
	}
	s.spaced(leases, time.Millisecond)
}

func tuneSlower(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Burst = 5 })
	s.backlog(6, work())
	first := s.lease(1)
	s.tune(func(o *shaper.Overrides) { o.Rate, o.Burst = &slow, pointer(int64(1)) })
	equal(s, "the depth", s.tenant(tenant).Depth, 5)
	leases := s.lease(5)
	s.spaced(leases, time.Minute)
	if leases[0].Stamp < first[0].Stamp {
		s.Errorf("stamps fell from %d to %d", first[0].Stamp, leases[0].Stamp)
	}
}

func tuneCapacity(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(5, work())
	equal(s, "the depth", s.tune(func(o *shaper.Overrides) { o.Capacity = pointer(int64(3)) }).Depth, 5)
	v := s.submit(work())
	Compare(s, "above a lowered capacity",
		Only(v.Admission, "Outcome", "Depth", "Capacity", "Remaining"),
		shaper.Admission{Outcome: shaper.Full, Depth: 5, Capacity: 3})
	s.lease(3)
	equal(s, "the position after three left", s.admit(work()).Position, 3)
	equal(s, "the outcome at the bound", s.submit(work()).Outcome, shaper.Full)
}

func tuneCap(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Concurrency = 1 })
	s.backlog(5, work())
	s.lease(1)
	s.none()
	s.tune(func(o *shaper.Overrides) { o.Concurrency = pointer(int64(3)) })
	s.lease(2)
	s.none()
	s.tune(func(o *shaper.Overrides) { o.Concurrency = pointer(int64(0)) })
	s.lease(2)
}

func pauseResume(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(3, work())
	first := s.lease(1)
	t := s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	equal(s, "what limits", t.LimitedBy, "paused")
	equal(s, "the depth", t.Depth, 2)
	s.none()
	equal(s, "the result of a lease given before", s.settle(first[0], shaper.Succeed), queue.Settled)
	t = s.tune(func(o *shaper.Overrides) { o.Paused = nil })
	equal(s, "what limits", t.LimitedBy, "rate")
	s.spaced(append(first, s.lease(2)...), time.Minute)
}

func tuneRestart(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Capacity = pointer(int64(3)) })
	s.policy(func(p *shaper.Policy) { p.Capacity, p.Rate = 7, slow })
	t := s.tenant(tenant)
	equal(s, "the capacity", t.Policy.Capacity, 3)
	equal(s, "the rate", t.Policy.Rate, slow)
	s.backlog(3, work())
	equal(s, "the outcome", s.submit(work()).Outcome, shaper.Full)
}

func tuneOthers(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	for _, name := range []string{"acme2", "acm", "ACME", "acme/default", "acme "} {
		if t := s.tenant(name); t.Policy.Paused || t.Revision != 0 {
			s.Errorf("tenant %q is %+v", name, t)
		}
	}
}

// A file may contradict what the API has set before. A change is refused for what it breaks itself.
func tuneContradicted(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Reserve = &shaper.Rate{Limit: 50, Period: time.Second} })
	b := shaper.Baseline{Defaults: shaper.Policy{
		Rate: shaper.Rate{Limit: 20, Period: time.Second}, Burst: 1, Capacity: 1000,
	}}
	if err := s.q.SetPolicies(s.ctx, b, nil); err != nil {
		s.Fatalf("SetPolicies: %v", err)
	}
	equal(s, "paused", s.tune(func(o *shaper.Overrides) { o.Paused = new(true) }).Policy.Paused, true)
	equal(s, "resumed", s.tune(func(o *shaper.Overrides) { o.Paused = nil }).Policy.Paused, false)
	_, err := s.q.Tune(s.ctx, tenant, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		o.Burst = new(int64(-1))
		return o, nil
	}})
	var problems shaper.Problems
	if !errors.As(err, &problems) || len(problems) != 1 || problems[0].Field != "burst" {
		s.Errorf("a burst of -1: %v, want that problem alone", err)
	}
}

// What was paused and resumed follows the file again; a pause of the file is overridden.
func resumeLeavesNothing(s *suite) {
	turn := func(subject string, paused bool) shaper.Overrides {
		change := queue.Change{Resume: !paused, Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
			o.Paused = &paused
			o.Routes = map[string]shaper.Overrides{"fast": {Paused: &paused}}
			return o, nil
		}}
		t, err := s.q.Tune(s.ctx, subject, change)
		if err != nil {
			s.Fatalf("Tune %s: %v", subject, err)
		}
		return t.API
	}
	equal(s, "paused by the API", len(turn(tenant, true).Set()), 1)
	equal(s, "resumed", turn(tenant, false).Empty(), true)
	b := shaper.Baseline{Defaults: shaper.Policy{Rate: quick, Burst: 1, Capacity: 1000, Paused: true}}
	if err := s.q.SetPolicies(s.ctx, b, map[string]shaper.Overrides{
		"other": {Paused: new(false), Routes: map[string]shaper.Overrides{"fast": {Paused: new(true)}}},
	}); err != nil {
		s.Fatalf("SetPolicies: %v", err)
	}
	equal(s, "the file pauses", s.tenant(tenant).Policy.Paused, true)
	equal(s, "overridden", turn(tenant, false).Set()[0], "paused")
	api := turn("other", false)
	if api.Paused != nil || api.Routes["fast"].Paused == nil {
		s.Errorf("of a tenant with a paused route remains %+v, want the route alone", api)
	}
}
