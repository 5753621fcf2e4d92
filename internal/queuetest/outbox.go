package queuetest

import (
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var outboxTests = map[string]func(*suite){
	"every end of a job that asks for it is a completion":         outboxEnds,
	"no completion without a callback URL":                        outboxNone,
	"one caller at a time claims a completion":                    outboxOnce,
	"a repeated claim returns the same completions":               outboxAgain,
	"an unacknowledged completion is claimed again":               outboxComesAgain,
	"a replay before the hand-over leaves the callback for later": outboxReplay,
	"a poll reports completions":                                  outboxPoll,
	"the trace parent and the URL stay with the job":              outboxTrace,
}

// called is a submission that asks for a callback.
func called() queue.Submission {
	w := work()
	w.CallbackURL = "https://partner.example/done?order=1"
	return w
}

func (s *suite) claim(name string, lease time.Duration) []queue.Completion {
	s.Helper()
	list, _, err := s.q.Broker().Completions(s.ctx, 0, name, 100, lease)
	if err != nil {
		s.Fatalf("Completions: %v", err)
	}
	return list
}

func (s *suite) handedOver(list []queue.Completion) {
	s.Helper()
	if err := s.q.Broker().HandedOver(s.ctx, 0, list); err != nil {
		s.Fatalf("HandedOver: %v", err)
	}
}

func outboxEnds(s *suite) {
	want := map[string]shaper.State{}
	for event, state := range map[shaper.Event]shaper.State{
		shaper.Succeed: shaper.Succeeded, shaper.Die: shaper.Dead,
	} {
		j := s.admit(called())
		s.settle(s.lease(1)[0], event, func(t *queue.Settlement) {
			t.Response = &queue.Response{Status: 200, Body: []byte("done")}
		})
		want[j.ID] = state
	}
	late := called()
	late.MaxWait = time.Millisecond
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	expired, cancelled := s.admit(late), s.admit(called())
	want[expired.ID], want[cancelled.ID] = shaper.Expired, shaper.Cancelled
	if _, err := s.q.Cancel(s.ctx, tenant, cancelled.ID); err != nil {
		s.Fatal(err)
	}
	s.await("the expiry", func() bool { s.warm(); return s.job(expired.ID).State == shaper.Expired })
	list := s.claim("first", time.Minute)
	equal(s, "the completions", len(list), len(want))
	for _, c := range list {
		equal(s, "the state", c.Job.State, want[c.Job.ID])
		equal(s, "the URL", c.CallbackURL, called().CallbackURL)
		if c.Job.Finished.IsZero() || c.Job.Created.IsZero() {
			s.Errorf("times are missing: %+v", c.Job)
		}
		if c.Job.State == shaper.Succeeded && (c.Job.Response == nil || string(c.Job.Response.Body) != "done") {
			s.Errorf("the response is %+v", c.Job.Response)
		}
	}
}

func outboxNone(s *suite) {
	s.admit(work())
	s.settle(s.lease(1)[0], shaper.Succeed)
	equal(s, "the completions", len(s.claim("first", time.Minute)), 0)
}

func outboxOnce(s *suite) {
	s.backlog(3, called())
	for _, l := range s.lease(3) {
		s.settle(l, shaper.Succeed)
	}
	first, more, err := s.q.Broker().Completions(s.ctx, 0, "first", 2, time.Minute)
	if err != nil || len(first) != 2 || !more {
		s.Fatalf("the first claim: %d, more %v, %v", len(first), more, err)
	}
	second, more, err := s.q.Broker().Completions(s.ctx, 0, "second", 2, time.Minute)
	if err != nil || len(second) != 1 || more {
		s.Fatalf("the second claim: %d, more %v, %v", len(second), more, err)
	}
	if slices.ContainsFunc(first, func(c queue.Completion) bool { return c.Job.ID == second[0].Job.ID }) {
		s.Error("a completion was given twice")
	}
}

func outboxAgain(s *suite) {
	s.admit(called())
	s.settle(s.lease(1)[0], shaper.Succeed)
	first := s.claim("first", time.Minute)
	equal(s, "the claim", text(s.claim("first", time.Minute)), text(first))
	s.handedOver(first)
	s.handedOver(first)
	equal(s, "after the hand-over", len(s.claim("second", 0)), 0)
}

func outboxComesAgain(s *suite) {
	s.admit(called())
	s.settle(s.lease(1)[0], shaper.Succeed)
	first := s.claim("first", 0)
	equal(s, "the next claim", text(s.claim("second", time.Minute)), text(first))
	equal(s, "the one after", len(s.claim("third", 0)), 0)
}

func outboxReplay(s *suite) {
	l := s.dead(called())
	claimed := s.claim("first", time.Minute)
	equal(s, "the completions", len(claimed), 1)
	s.replay(l.ID)
	s.settle(s.lease(1)[0], shaper.Succeed)
	s.handedOver(claimed) // of the end before: it takes nothing out
	list := s.claim("second", time.Minute)
	equal(s, "the completions after the replay", len(list), 1)
	equal(s, "the state", list[0].Job.State, shaper.Succeeded)
	if list[0].Epoch <= claimed[0].Epoch {
		s.Errorf("the epoch fell from %d to %d", claimed[0].Epoch, list[0].Epoch)
	}
}

func outboxPoll(s *suite) {
	o := pollOptions(1, near)
	o.Outbox = true
	s.warm()
	equal(s, "before", s.poll("w", o).Outbox, false)
	s.admit(called())
	s.settle(s.lease(1)[0], shaper.Succeed)
	equal(s, "after", s.poll("w", o).Outbox, true)
	equal(s, "without being asked", s.poll("w", pollOptions(1, near)).Outbox, false)
	s.claim("first", time.Hour)
	tick := s.poll("w", o)
	equal(s, "when claimed", tick.Outbox, false)
	if wait := tick.Next.Sub(tick.Now); wait < 59*time.Minute || wait > time.Hour+time.Minute {
		s.Errorf("the next poll is in %v, want it when the claim ends", wait)
	}
}

func outboxTrace(s *suite) {
	w := called()
	w.TraceParent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	w.Tenant, w.Route = "a tenant whose name is hashed", "and a route"
	v, err := s.q.Submit(s.ctx, w)
	if err != nil || v.Outcome != shaper.Admitted {
		s.Fatalf("Submit: %+v, %v", v, err)
	}
	l := s.lease(1)[0]
	equal(s, "the trace parent", l.TraceParent, w.TraceParent)
	equal(s, "the tenant", l.Tenant, w.Tenant)
	equal(s, "the payload", string(l.Payload), string(w.Payload))
	s.settle(l, shaper.Succeed)
	equal(s, "the URL", s.claim("first", time.Minute)[0].CallbackURL, w.CallbackURL)
}
