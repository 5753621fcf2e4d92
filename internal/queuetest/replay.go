package queuetest

import (
	"errors"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var replayTests = map[string]func(*suite){
	"a dead job comes back at the end of the queue":  replayAtEnd,
	"a replay resets the attempts":                   replayAttempts,
	"a replayed job obeys its epoch":                 replayEpoch,
	"a job that is not dead is a conflict":           replayConflict,
	"a full queue refuses a replay":                  replayFull,
	"a replay restarts the max wait":                 replayMaxWait,
	"a replayed job holds its key":                   replayKey,
	"a replayed job's record does not run out":       replayPersists,
	"a replay obeys the tier that its client claims": replayTier,
	"a replay answers what a read shows":             replayShown,
}

// dead admits a job and lets it die.
func (s *suite) dead(w queue.Submission) queue.Lease {
	s.Helper()
	s.admit(w)
	l := s.lease(1)[0]
	equal(s, "the result", s.settle(l, shaper.Die), queue.Settled)
	return l
}

func (s *suite) replay(id string) queue.Decision {
	s.Helper()
	v, err := s.q.Replay(s.ctx, tenant, id, queue.Replaying{MaxAttempts: 2})
	if err != nil || v.Outcome != shaper.Admitted {
		s.Fatalf("Replay: %+v, %v", v, err)
	}
	return v
}

// replayShown: whatever a job died of, the answer to its replay is the job as it is read then.
func replayShown(s *suite) {
	w := work()
	w.MaxAttempts = 2
	lapsed := func(failed bool) string {
		s.admit(w)
		l := s.lease(1)[0]
		if failed {
			s.settle(l, shaper.Retry, failing)
			l = s.lease(1)[0]
		}
		for s.settle(l, shaper.LeaseExpired) != queue.Died {
			l = s.lease(1)[0]
		}
		return l.ID
	}
	s.admit(w)
	failed := s.lease(1)[0]
	equal(s, "the result", s.settle(failed, shaper.Die, failing), queue.Settled)
	ids := map[string]string{
		"without an error": s.dead(w).ID, "of a failure": failed.ID,
		"of lost leases": lapsed(false), "of lost leases after a failure": lapsed(true),
	}
	s.policy(func(p *shaper.Policy) { p.Paused = true })
	for what, id := range ids {
		Compare(s, "a job that died "+what, s.replay(id).Job, s.job(id))
	}
}

// failing gives a settlement an error.
func failing(t *queue.Settlement) { t.Error = &queue.JobError{Message: "refused", Status: 500} }

func replayAtEnd(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	w := work()
	w.Payload = []byte("kept while dead")
	dead := s.dead(w)
	waiting := s.backlog(2, work())
	v := s.replay(dead.ID)
	equal(s, "the position", v.Position, 3)
	equal(s, "the depth", v.Depth, 3)
	equal(s, "the job's state", v.Job.State, shaper.Queued)
	equal(s, "the job's position", v.Job.Position, 3)
	if !v.Job.Finished.IsZero() {
		s.Errorf("the replayed job has ended at %v", v.Job.Finished)
	}
	leases := s.lease(3)
	s.sameOrder(leases, waiting[0].ID, waiting[1].ID, dead.ID)
	equal(s, "the payload", string(leases[2].Payload), "kept while dead")
	equal(s, "the stamp's distance", leases[2].Stamp.Sub(leases[1].Stamp), time.Minute)
}

func replayTier(s *suite) {
	s.restart(func(o *queue.Options) {
		o.Tiers = map[string]shaper.Overrides{"pro": {}, "free": {Denied: pointer(true)}}
	})
	w := work()
	w.Tier = "pro"
	dead := s.dead(w)
	replay := func(tier *string, outcome shaper.Outcome) {
		s.Helper()
		v, err := s.q.Replay(s.ctx, tenant, dead.ID, queue.Replaying{MaxAttempts: 2, Tier: tier})
		if err != nil || v.Outcome != outcome {
			s.Errorf("Replay: %+v, %v, want %s", v, err, outcome)
		}
	}
	replay(pointer("free"), shaper.Denied) // it has fallen to another tier since
	replay(nil, shaper.Admitted)           // an operator
	equal(s, "the result", s.settle(s.lease(1)[0], shaper.Die), queue.Settled)
	w.Tier = "free"
	equal(s, "the outcome", s.submit(w).Outcome, shaper.Denied)
	replay(pointer("pro"), shaper.Admitted)
}

func replayAttempts(s *suite) {
	dead := s.dead(work())
	equal(s, "the attempts", s.replay(dead.ID).Job.Attempts, 0)
	for attempt := 1; attempt <= 2; attempt++ {
		l := s.lease(1)[0]
		equal(s, "the attempt", l.Attempt, attempt)
		equal(s, "the attempts allowed", l.MaxAttempts, 2)
		s.settle(l, shaper.Retry)
	}
	j := s.job(dead.ID)
	equal(s, "the state", j.State, shaper.Dead)
	equal(s, "the attempts", j.Attempts, 2)
}

func replayEpoch(s *suite) {
	dead := s.dead(work())
	s.replay(dead.ID)
	equal(s, "the earlier settlement", s.settle(dead, shaper.Die), queue.Repeated)
	l := s.lease(1)[0]
	if l.Epoch <= dead.Epoch {
		s.Errorf("the epoch fell from %d to %d", dead.Epoch, l.Epoch)
	}
	equal(s, "a settlement under the old epoch", s.settle(dead, shaper.Succeed), queue.Stale)
	equal(s, "the state", s.job(dead.ID).State, shaper.Leased)
}

func replayConflict(s *suite) {
	id := s.admit(work()).ID
	for _, state := range []shaper.State{shaper.Queued, shaper.Leased, shaper.Succeeded} {
		v, err := s.q.Replay(s.ctx, tenant, id, queue.Replaying{MaxAttempts: 2})
		if !errors.Is(err, queue.ErrConflict) {
			s.Errorf("replaying a %s job: %v, want ErrConflict", state, err)
		}
		Compare(s, "the job of the conflict", Only(v.Job, "ID", "State"), queue.Job{ID: id, State: state})
		switch state {
		case shaper.Queued:
			s.lease(1)
		case shaper.Leased:
			s.settle(queue.Lease{LeaseRef: queue.LeaseRef{ID: id, Epoch: 1}, MaxAttempts: 3}, shaper.Succeed)
		}
	}
	dead := s.dead(work())
	s.replay(dead.ID)
	if v, err := s.q.Replay(s.ctx, tenant, dead.ID, queue.Replaying{MaxAttempts: 2}); !errors.Is(err, queue.ErrConflict) {
		s.Errorf("replaying a replayed job: %+v, %v", v, err)
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 1)
}

func replayFull(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 1 })
	dead := s.dead(work())
	s.admit(work())
	v, err := s.q.Replay(s.ctx, tenant, dead.ID, queue.Replaying{MaxAttempts: 2})
	if err != nil {
		s.Fatalf("Replay: %v", err)
	}
	Compare(s, "the refusal", Only(v.Admission, "Outcome", "Depth", "Capacity"),
		shaper.Admission{Outcome: shaper.Full, Depth: 1, Capacity: 1})
	equal(s, "the state", v.Job.State, shaper.Dead)
	if gap := v.Now.Add(v.RetryAfter).Sub(dead.Stamp.Add(time.Minute)); gap < 0 || gap >= time.Millisecond {
		s.Errorf("retry-after ends %v after capacity frees", gap)
	}
	s.lease(1)
	s.replay(dead.ID)
}

func replayMaxWait(s *suite) {
	w := work()
	w.MaxWait = time.Minute
	dead := s.dead(w)
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	v := s.replay(dead.ID)
	tick := s.poll("x", pollOptions(1, near))
	for tick.More {
		tick = s.poll("x", pollOptions(1, near))
	}
	// A worker looks half a horizon before what is next, and an expiry before its time would be in
	// vain.
	if gap := tick.Next.Sub(v.Now.Add(time.Minute)); gap > near/2 || gap < -10*time.Second {
		s.Errorf("the next thing due is %v after a minute from the replay", gap)
	}
}

func replayKey(s *suite) {
	dead := s.dead(keyed())
	s.replay(dead.ID)
	v := s.submit(keyed())
	equal(s, "the outcome", v.Outcome, shaper.Replayed)
	equal(s, "the id", v.Job.ID, dead.ID)
	equal(s, "the state", v.Job.State, shaper.Queued)
	s.settle(s.lease(1)[0], shaper.Succeed)
	equal(s, "the state at the end", s.submit(keyed()).Job.State, shaper.Succeeded)
}

func replayPersists(s *suite) {
	s.restart(func(o *queue.Options) {
		o.Retention = queue.Retention{Dead: 2 * time.Second, Succeeded: time.Second}
	})
	dead, gone := s.dead(work()), s.dead(work())
	s.replay(dead.ID)
	s.awaitForgotten(gone.ID)
	equal(s, "the state", s.job(dead.ID).State, shaper.Queued)
	s.sameOrder(s.lease(1), dead.ID)
}
