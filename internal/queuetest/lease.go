package queuetest

import (
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var leaseTests = map[string]func(*suite){
	"jobs leave in the order of admission":             firstInFirstOut,
	"stamps keep the rate over several workers":        rateOverWorkers,
	"a poll leases at most its maximum":                leaseAtMost,
	"a poll with a maximum of 0 leases nothing":        leaseNone,
	"an idle poll returns the next instant":            nextPoll,
	"an idle shard has nothing planned":                idleShard,
	"a shard's clock is the clock of its polls":        readClock,
	"no job is leased beyond the horizon":              horizonHolds,
	"the concurrency cap holds over workers":           concurrencyCap,
	"a throttled flow does not block another":          throttledFlow,
	"a paused flow does not block another":             pausedFlowBlocksNobody,
	"many flows are all served":                        manyFlows,
	"an expired lease gives the job back":              leaseExpires,
	"an extended lease does not expire":                leaseExtended,
	"a lease lasts from its stamp":                     leaseFromStamp,
	"a job given back leaves before later ones":        givenBackKeepsSequence,
	"released jobs may exceed the bound, new ones not": givenBackPassesBound,
}

func firstInFirstOut(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = shaper.Rate{Limit: 1, Period: time.Second} })
	jobs := s.backlog(250, work())
	leases := s.lease(250)
	s.sameOrder(leases, ids(jobs)...)
	s.spaced(leases, time.Second)
	for _, l := range leases {
		if l.Epoch != 1 || l.Attempt != 1 {
			s.Errorf("a first lease is %+v", l)
		}
	}
}

func rateOverWorkers(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = shaper.Rate{Limit: 7, Period: 3 * time.Second} })
	s.backlog(70, work())
	s.warm()
	var stamps []shaper.Instant
	for i := 0; len(stamps) < 70; i++ {
		worker := []string{"w", "x", "y"}[i%3]
		for _, l := range s.poll(worker, pollOptions(1+i%4, far)).Leases {
			stamps = append(stamps, l.Stamp)
		}
		if i > 1000 {
			s.Fatalf("%d jobs leased by three workers, want 70", len(stamps))
		}
	}
	if !slices.IsSorted(stamps) {
		s.Error("stamps fell")
	}
	for i, stamp := range stamps {
		// n departures take n·period/limit, rounded down to a microsecond.
		if want := stamps[0].Add(time.Duration(i) * 3 * time.Second / 7); stamp != want {
			s.Errorf("stamp %d is %d, want %d", i, stamp, want)
		}
	}
}

func leaseAtMost(s *suite) {
	s.backlog(10, work())
	s.warm()
	tick := s.poll("w", pollOptions(4, far))
	equal(s, "the number of leases", len(tick.Leases), 4)
	s.lease(6)
}

func leaseNone(s *suite) {
	s.backlog(2, work())
	for range 5 {
		if tick := s.poll("w", pollOptions(0, far)); len(tick.Leases) > 0 {
			s.Errorf("leased %+v without room", tick.Leases)
		}
	}
	s.lease(2)
}

func nextPoll(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(2, work())
	first := s.leaseUpTo(2, near)
	equal(s, "the number of leases", len(first), 1)
	s.settle(first[0], shaper.Succeed)
	tick := s.poll("w", pollOptions(1, near))
	equal(s, "the next thing due", tick.Next, first[0].Stamp.Add(time.Minute))
	equal(s, "more", tick.More, false)
	if tick.Now == 0 || tick.Sent.IsZero() || tick.Received.Before(tick.Sent) {
		s.Errorf("the poll's times are %+v", tick)
	}
}

func readClock(s *suite) {
	s.none()
	before := s.poll("w", pollOptions(1, near))
	r, err := s.consumer("w").Clock(s.ctx)
	if err != nil {
		s.Fatalf("Clock: %v", err)
	}
	after := s.poll("w", pollOptions(1, near))
	if r.Now < before.Now || r.Now > after.Now {
		s.Errorf("the clock says %d between polls at %d and %d", r.Now, before.Now, after.Now)
	}
	if r.Sent.Before(before.Received) || r.Received.Before(r.Sent) || r.Received.After(after.Sent) {
		s.Errorf("the reading's times are %v and %v", r.Sent, r.Received)
	}
}

func idleShard(s *suite) {
	s.none()
	tick := s.poll("w", pollOptions(1, near))
	equal(s, "the next thing due", tick.Next, 0)
	equal(s, "more", tick.More, false)
}

func horizonHolds(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(10, work())
	leases := s.leaseUpTo(10, 3*time.Minute+30*time.Second)
	equal(s, "the number of leases", len(leases), 4)
	s.spaced(leases, time.Minute)
}

func concurrencyCap(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Concurrency = 2 })
	s.backlog(5, work())
	first := s.leaseUpTo(5, far)
	equal(s, "the number of leases", len(first), 2)
	equal(s, "another worker's leases", len(s.poll("x", pollOptions(5, far)).Leases), 0)
	equal(s, "what limits", s.tenant(tenant).LimitedBy, "concurrency")
	s.settle(first[0], shaper.Succeed)
	second := s.lease(1)
	s.none()
	s.settle(first[1], shaper.Retry, after(time.Minute))
	s.lease(1)
	s.none()
	s.settle(second[0], shaper.Release)
	s.sameOrder(s.lease(1), second[0].ID)
	equal(s, "running", s.tenant(tenant).Running, 2)
}

func throttledFlow(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(500, work())
	s.leaseUpTo(500, near)
	other := work()
	other.Tenant = "other"
	want := s.admit(other)
	s.sameOrder(s.leaseUpTo(10, near), want.ID)
}

func pausedFlowBlocksNobody(s *suite) {
	s.backlog(10, work())
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	other := work()
	other.Tenant = "other"
	want := s.admit(other)
	s.sameOrder(s.leaseUpTo(10, far), want.ID)
}

func manyFlows(s *suite) {
	const flows = 150 // more than one poll takes on
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	for i := range flows {
		w := work()
		w.Tenant = "t" + string(rune('a'+i%26)) + string(rune('a'+i/26))
		s.admit(w)
	}
	seen := map[string]bool{}
	for _, l := range s.lease(flows) {
		seen[l.Tenant] = true
	}
	equal(s, "the number of tenants served", len(seen), flows)
}

// short are the options of a worker whose leases run out while a test waits.
func short() queue.TickOptions {
	return queue.TickOptions{Max: 10, Lease: 300 * time.Millisecond, Horizon: near, Sweep: 10 * time.Millisecond}
}

func leaseExpires(s *suite) {
	jobs := s.backlog(2, work())
	var first, second []queue.Lease
	s.await("both jobs to be leased", func() bool {
		first = append(first, s.poll("w", short()).Leases...)
		return len(first) == 2
	})
	s.await("both jobs to be leased again", func() bool {
		second = append(second, s.poll("x", short()).Leases...)
		return len(second) >= 2
	})
	s.sameOrder(second, ids(jobs)...)
	for i, l := range second {
		equal(s, "the epoch", l.Epoch, first[i].Epoch+1)
		equal(s, "the attempt", l.Attempt, 1)
		if l.Stamp <= first[1].Stamp {
			s.Errorf("the new stamp is %d, want it after the last one before, %d", l.Stamp, first[1].Stamp)
		}
		equal(s, "settling the lease that ran out", s.settle(first[i], shaper.Succeed), queue.Stale)
	}
	equal(s, "running", s.tenant(tenant).Running, 2)
}

func leaseExtended(s *suite) {
	s.backlog(2, work())
	var leases []queue.Lease
	s.await("both jobs to be leased", func() bool {
		leases = append(leases, s.poll("w", short()).Leases...)
		return len(leases) == 2
	})
	s.extend(leases[0].LeaseRef, time.Hour)
	var again []queue.Lease
	s.await("the other job to be leased again", func() bool {
		again = append(again, s.poll("x", short()).Leases...)
		return len(again) > 0
	})
	s.sameOrder(again, leases[1].ID)
	s.extend(leases[0].LeaseRef, time.Millisecond) // does not shorten it
	lost, err := s.q.Broker().Extend(s.ctx, []queue.LeaseRef{leases[0].LeaseRef, leases[1].LeaseRef}, time.Hour)
	if err != nil || !slices.Equal(lost, []queue.LeaseRef{leases[1].LeaseRef}) {
		s.Errorf("Extend: lost %v, %v", lost, err)
	}
	equal(s, "the result", s.settle(leases[0], shaper.Succeed), queue.Settled)
}

func (s *suite) extend(ref queue.LeaseRef, lease time.Duration) {
	s.Helper()
	if lost, err := s.q.Broker().Extend(s.ctx, []queue.LeaseRef{ref}, lease); err != nil || len(lost) > 0 {
		s.Errorf("Extend: lost %v, %v", lost, err)
	}
}

func leaseFromStamp(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(2, work())
	l := s.lease(2)[1]
	equal(s, "the lease after the stamp", l.Deadline.Sub(l.Stamp), pollOptions(1, far).Lease)
}

func givenBackKeepsSequence(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	jobs := s.backlog(4, work())
	leases := s.lease(3)
	s.settle(leases[2], shaper.Release)
	s.settle(leases[0], shaper.Hold)
	equal(s, "the position of the first", s.job(jobs[0].ID).Position, 1)
	s.sameOrder(s.lease(3), jobs[0].ID, jobs[2].ID, jobs[3].ID)
}

func givenBackPassesBound(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 2 })
	s.backlog(2, work())
	leases := s.lease(2)
	s.backlog(2, work())
	for _, l := range leases {
		s.settle(l, shaper.Release)
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 4)
	v := s.submit(work())
	Compare(s, "above the bound", Only(v.Admission, "Outcome", "Depth", "Remaining"),
		shaper.Admission{Outcome: shaper.Full, Depth: 4})
	// Three must leave before there is room for one.
	gap := v.Now.Add(v.RetryAfter).Sub(leases[1].Stamp.Add(2 * time.Minute))
	if gap < 0 || gap >= time.Millisecond {
		s.Errorf("retry-after ends %v after capacity frees", gap)
	}
	s.lease(3)
	s.admit(work())
}
