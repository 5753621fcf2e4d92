package queuetest

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var settleTests = map[string]func(*suite){
	"every attempt is logged":                       settleLog,
	"succeeded":                                     settleSucceeded,
	"retry":                                         settleRetry,
	"a retry leaves through the bucket":             retryThroughBucket,
	"a retry out of attempts is dead":               retryOutOfAttempts,
	"dead":                                          settleDead,
	"held":                                          settleHeld,
	"refused as overload":                           settleOverload,
	"released":                                      settleReleased,
	"released jobs do not count as departed":        releasedNotDeparted,
	"a delivery that a stop cut off":                settleLapsed,
	"holds are free twenty times":                   holdsAreFree,
	"holds for a token are always free":             holdsForTokens,
	"a response is kept whole":                      responseKept,
	"an error is kept until the next settlement":    errorKept,
	"a result does not touch the payload":           resultBesidePayload,
	"many leases end in one call":                   settleMany,
	"an invalid outcome does not end a lease":       settleNoEnd,
	"an attempt counts against the route's maximum": maximumOfTheDay,
	"too many attempts for the record are refused":  attemptsBeyondRecord,
}

var fenceTests = map[string]func(*suite){
	"the same settlement again is repeated":             settleRepeated,
	"another outcome after the end is stale":            otherOutcomeStale,
	"an epoch that is not current changes nothing":      wrongEpoch,
	"a repeated lease in one batch settles once":        twiceInBatch,
	"a repeated retry is recognised while leased again": repeatedWhileLeasedAgain,
	"extending a lost lease reports it":                 extendLost,
}

func settleSucceeded(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	equal(s, "the result", s.settle(l, shaper.Succeed), queue.Settled)
	j := s.job(l.ID)
	Compare(s, "the job", Only(j, "State", "Attempts", "Started", "LastError"),
		queue.Job{State: shaper.Succeeded, Attempts: 1, Started: l.Stamp.Time()})
	equal(s, "whether it has no end", j.Finished.IsZero(), false)
	t := s.tenant(tenant)
	Compare(s, "the tenant", Only(t.Figures, "Succeeded", "Departed", "Running", "Depth"),
		queue.Figures{Succeeded: 1, Departed: 1})
}

func settleRetry(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	at := time.Now().UTC().Truncate(time.Second)
	s.settle(l, shaper.Retry, after(time.Minute), func(t *queue.Settlement) {
		t.Error = &queue.JobError{Message: "upstream says 503", Status: 503, At: at}
	})
	j := s.job(l.ID)
	Compare(s, "the job", Only(j, "State", "Attempts", "Position", "LastError"), queue.Job{
		State: shaper.Retrying, Attempts: 1,
		LastError: &queue.JobError{Message: "upstream says 503", Status: 503, At: at},
	})
	within(s, "the backoff", j.Scheduled.Sub(j.Created), time.Minute, limit+time.Minute)
	equal(s, "whether it starts before it is due", j.EstimatedStart.Before(j.Scheduled), false)
	t := s.tenant(tenant)
	if t.Depth != 1 || t.Running != 0 {
		s.Errorf("a retrying job counts in the depth; the tenant is %+v", t)
	}
	again := s.lease(1)[0]
	equal(s, "the attempt", again.Attempt, 2)
	equal(s, "the stamp", again.Stamp.Time(), j.Scheduled)
}

func retryThroughBucket(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(2, work())
	leases := s.lease(2)
	for _, l := range leases {
		s.settle(l, shaper.Retry)
	}
	again := s.lease(2)
	s.sameOrder(again, leased(leases)...)
	s.spaced(append(leases, again...), time.Minute)
}

func retryOutOfAttempts(s *suite) {
	w := work()
	w.MaxAttempts = 2
	id := s.admit(w).ID
	s.settle(s.lease(1)[0], shaper.Retry)
	s.settle(s.lease(1)[0], shaper.Retry, after(time.Hour))
	j := s.job(id)
	Compare(s, "the job", Only(j, "State", "Attempts", "Scheduled"), queue.Job{State: shaper.Dead, Attempts: 2})
	equal(s, "whether it has no end", j.Finished.IsZero(), false)
	t := s.tenant(tenant)
	if t.DeadTotal != 1 || t.Depth != 0 {
		s.Errorf("the tenant is %+v", t)
	}
	s.none()
}

func settleDead(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	s.settle(l, shaper.Die, func(t *queue.Settlement) { t.Error = &queue.JobError{Message: "410", Status: 410} })
	j := s.job(l.ID)
	Compare(s, "the job", Only(j, "State", "Attempts", "LastError"),
		queue.Job{State: shaper.Dead, Attempts: 1, LastError: &queue.JobError{Message: "410", Status: 410}})
	s.none()
}

func settleHeld(s *suite) {
	jobs := s.backlog(3, work())
	l := s.lease(1)[0]
	s.settle(l, shaper.Hold, after(10*time.Minute))
	j := s.job(l.ID)
	Compare(s, "the job", Only(j, "State", "Attempts", "Position"), queue.Job{State: shaper.Queued, Position: 1})
	within(s, "the wait", j.EstimatedStart.Sub(j.Created), 10*time.Minute, limit+10*time.Minute)
	equal(s, "what limits", s.tenant(tenant).LimitedBy, "held")
	if leases := s.leaseUpTo(3, time.Minute); len(leases) > 0 {
		s.Errorf("leased while held: %+v", leases)
	}
	leases := s.lease(3)
	s.sameOrder(leases, ids(jobs)...)
	equal(s, "the attempt", leases[0].Attempt, 1)
	s.spaced(leases, 2*time.Millisecond) // the rate is halved at first
	equal(s, "the end of the hold", leases[0].Stamp.Time(), j.EstimatedStart)
}

// settleOverload: an upstream that refuses every job slows the flow down after a second, and each
// refusal spends an attempt.
func settleOverload(s *suite) {
	s.backlog(40, work())
	var leases []queue.Lease
	refuse := func(n int) { // in one call, because the trial takes a second
		var list []queue.Settlement
		for _, l := range leases[:n] {
			list = append(list, queue.Settlement{
				LeaseRef: l.LeaseRef, Event: shaper.Retry, MaxAttempts: l.MaxAttempts, Overload: true, Delay: time.Hour,
			})
		}
		_, err := s.q.Broker().Settle(s.ctx, list)
		equal(s, "the error", err, nil)
		leases = leases[n:]
	}
	before := s.tenant(tenant).EffectiveRate
	leases = s.leaseUpTo(1, time.Hour)
	first := leases[0].ID
	refuse(1)
	leases = s.leaseUpTo(39, time.Hour)
	refuse(30)
	began := time.Now() // of the trial, at the latest
	equal(s, "the attempts", s.job(first).Attempts, 1)
	equal(s, "the rate before a second has passed", s.tenant(tenant).EffectiveRate, before)
	s.await("the end of the trial", func() bool { return time.Since(began) > 1200*time.Millisecond })
	refuse(1)
	if after := s.tenant(tenant).EffectiveRate; after < before/2 || after > 0.7*before {
		s.Errorf("the rate is %v after an upstream refused most of a second's jobs, and was %v", after, before)
	}
}

func settleReleased(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(3, work())
	leases := s.lease(2)
	s.settle(leases[1], shaper.Release)
	j := s.job(leases[1].ID)
	Compare(s, "the job", Only(j, "State", "Attempts", "Position"), queue.Job{State: shaper.Queued, Position: 1})
	again := s.lease(2)
	equal(s, "the id", again[0].ID, leases[1].ID)
	equal(s, "the slot, given back", again[0].Stamp, leases[1].Stamp)
	equal(s, "the epoch", again[0].Epoch, 2)
	s.spaced(again, time.Minute)
}

// settleLapsed: a delivery that the worker's stop cut off keeps its slot, and is free for a while.
func settleLapsed(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(2, work())
	leases := s.lease(2)
	s.settle(leases[0], shaper.LeaseExpired)
	j := s.job(leases[0].ID)
	Compare(s, "the job", Only(j, "State", "Attempts", "Position"), queue.Job{State: shaper.Queued, Position: 1})
	again := s.lease(1)[0]
	equal(s, "the id", again.ID, leases[0].ID)
	if again.Stamp < leases[1].Stamp.Add(time.Minute) {
		s.Errorf("it leaves again at %v, the one after it left at %v", again.Stamp, leases[1].Stamp)
	}
	s.settle(leases[1], shaper.Succeed)
	equal(s, "departed", s.tenant(tenant).Departed, 3)
	for range shaper.FreeLeases - 1 {
		s.settle(again, shaper.LeaseExpired)
		again = s.lease(1)[0]
	}
	equal(s, "the attempts after twenty", s.job(again.ID).Attempts, 0)
	for range again.MaxAttempts - 1 {
		equal(s, "the result", s.settle(again, shaper.LeaseExpired), queue.Settled)
		again = s.lease(1)[0]
	}
	for range 2 {
		equal(s, "the result of the last, also when it is sent again", s.settle(again, shaper.LeaseExpired), queue.Died)
	}
}

func releasedNotDeparted(s *suite) {
	s.backlog(2, work())
	leases := s.lease(2)
	s.settle(leases[1], shaper.Release)
	s.settle(leases[0], shaper.Succeed)
	equal(s, "departed", s.tenant(tenant).Departed, 1)
}

func holdsAreFree(s *suite) {
	id := s.admit(work()).ID
	for range shaper.FreeLeases {
		s.settle(s.lease(1)[0], shaper.Hold)
	}
	equal(s, "the attempts after twenty holds", s.job(id).Attempts, 0)
	s.settle(s.lease(1)[0], shaper.Hold)
	equal(s, "the attempts after one more", s.job(id).Attempts, 1)
	equal(s, "the result of the last but one", s.settle(s.lease(1)[0], shaper.Hold), queue.Settled)
	last := s.lease(1)[0]
	for range 2 {
		equal(s, "the result of the last, also when it is sent again", s.settle(last, shaper.Hold), queue.Died)
	}
	equal(s, "the state after three more", s.job(id).State, shaper.Dead)
}

func holdsForTokens(s *suite) {
	id := s.admit(work()).ID
	cause := func(t *queue.Settlement) { t.Cause = queue.HoldCause{By: queue.HeldByAuth} }
	for range 2 * shaper.FreeLeases {
		s.settle(s.lease(1)[0], shaper.Hold, cause)
	}
	equal(s, "the attempts after forty holds", s.job(id).Attempts, 0)
	s.settle(s.lease(1)[0], shaper.Hold, cause, after(time.Minute))
	t := s.tenant(tenant)
	equal(s, "what limits", t.LimitedBy, "auth")
	equal(s, "what holds", t.HeldBy, queue.HoldCause{By: queue.HeldByAuth})
}

func responseKept(s *suite) {
	s.admit(work())
	want := &queue.Response{
		Status: 201, Headers: map[string]string{"content-type": "text/plain"}, Body: []byte("\x00\xffok"),
		Truncated: true,
	}
	s.settle(s.lease(1)[0], shaper.Succeed, func(t *queue.Settlement) { t.Response = want })
	s.admit(keyed())
	l := s.lease(1)[0]
	s.settle(l, shaper.Succeed, func(t *queue.Settlement) { t.Response = want })
	if diff := cmp.Diff(want, s.job(l.ID).Response); diff != "" {
		s.Errorf("the response (-want +got):\n%s", diff)
	}
}

func errorKept(s *suite) {
	id := s.admit(work()).ID
	s.settle(s.lease(1)[0], shaper.Retry, func(t *queue.Settlement) {
		t.Error = &queue.JobError{Message: "a rather long first error"}
	})
	s.settle(s.lease(1)[0], shaper.Release)
	if e := s.job(id).LastError; e == nil || e.Message != "a rather long first error" {
		s.Errorf("after a release the error is %+v", e)
	}
	s.settle(s.lease(1)[0], shaper.Retry, func(t *queue.Settlement) {
		t.Error = &queue.JobError{Message: "second"}
	})
	if e := s.job(id).LastError; e == nil || e.Message != "second" {
		s.Errorf("after a shorter error it is %+v", e)
	}
}

func resultBesidePayload(s *suite) {
	for _, w := range []queue.Submission{sized(20), sized(16_383), sized(16_384), sized(100_000)} {
		w.MaxAttempts = 9
		id := s.admit(w).ID
		for _, message := range []string{"again", "a longer message", "short", ""} {
			l := s.lease(1)[0]
			equal(s, "the payload", string(l.Payload), string(w.Payload))
			s.settle(l, shaper.Retry, func(t *queue.Settlement) { t.Error = &queue.JobError{Message: message} })
			equal(s, "the error", s.job(id).LastError.Message, message)
			s.intact()
		}
		s.settle(s.lease(1)[0], shaper.Die)
		s.intact()
		s.replay(id)
		l := s.lease(1)[0]
		equal(s, "the payload after a replay", string(l.Payload), string(w.Payload))
		s.settle(l, shaper.Succeed)
		s.intact()
	}
}

// intact fails the test if the store is damaged, such as a count that is wrong.
func (s *suite) intact() {
	s.Helper()
	_, err := s.q.Check(s.ctx, false, func(found []queue.Finding) error {
		s.Errorf("found %+v", found)
		return nil
	})
	equal(s, "the error of the check", err, nil)
}

func settleMany(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Capacity = 700 })
	s.backlog(700, work())
	leases := s.lease(700)
	batch := make([]queue.Settlement, len(leases))
	for i, l := range leases {
		batch[i] = queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Event: shaper.Succeed, MaxAttempts: 3}
	}
	batch[600].Epoch++
	results, err := s.q.Broker().Settle(s.ctx, batch)
	if err != nil {
		s.Fatalf("Settle: %v", err)
	}
	for i, r := range results {
		want := queue.Settled
		if i == 600 {
			want = queue.Stale
		}
		if r != want {
			s.Errorf("result %d is %s, want %s", i, r, want)
		}
	}
	equal(s, "succeeded", s.tenant(tenant).Succeeded, 699)
	if results, err := s.q.Broker().Settle(s.ctx, nil); err != nil || len(results) != 0 {
		s.Errorf("settling nothing: %v, %v", results, err)
	}
}

func settleNoEnd(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	for _, event := range []shaper.Event{"", shaper.Due, shaper.Cancel, shaper.Overdue} {
		_, err := s.q.Broker().Settle(s.ctx, []queue.Settlement{{
			LeaseRef: l.LeaseRef, Event: event, MaxAttempts: 3,
		}})
		if err == nil {
			s.Errorf("a lease ended by %q", event)
		}
	}
	equal(s, "the state", s.job(l.ID).State, shaper.Leased)
}

func maximumOfTheDay(s *suite) {
	id := s.admit(work()).ID
	s.settle(s.lease(1)[0], shaper.Retry, func(t *queue.Settlement) { t.MaxAttempts = 1 })
	equal(s, "the state under a lowered maximum", s.job(id).State, shaper.Dead)
}

// attemptsBeyondRecord: the record has two bytes for the maximum. What does not fit must not leave
// half a change (invariant 9): the lease still runs out, and the job is leased again.
func attemptsBeyondRecord(s *suite) {
	for _, maximum := range []int{-1, 1 << 16} {
		id := s.admit(work()).ID
		var leases []queue.Lease
		again := func() bool {
			leases = s.poll("w", short()).Leases
			return len(leases) > 0
		}
		s.await("the job to be leased", again)
		end := queue.Settlement{LeaseRef: leases[0].LeaseRef, Tenant: tenant, Event: shaper.Retry, MaxAttempts: maximum}
		if _, err := s.q.Broker().Settle(s.ctx, []queue.Settlement{end}); err == nil {
			s.Errorf("a maximum of %d attempts was taken", maximum)
			continue
		}
		s.await("the job to be leased again", again)
		equal(s, "the job leased again", leases[0].ID, id)
		s.settle(leases[0], shaper.Succeed)
	}
	equal(s, "running", s.tenant(tenant).Running, 0)
}

func settleRepeated(s *suite) {
	for _, event := range []shaper.Event{
		shaper.Succeed, shaper.Die, shaper.Retry, shaper.Hold, shaper.Release, shaper.LeaseExpired,
	} {
		w := work()
		w.Tenant = string(event)
		s.admit(w)
		l := s.lease(1)[0]
		equal(s, "the result of "+string(event), s.settle(l, event, after(time.Hour)), queue.Settled)
		before := s.tenant(w.Tenant)
		equal(s, "the result of "+string(event)+" again", s.settle(l, event, after(time.Hour)), queue.Repeated)
		diff := cmp.Diff(before, s.tenant(w.Tenant), cmpopts.IgnoreFields(queue.Figures{}, "OldestWait"))
		if diff != "" {
			s.Errorf("%s again changed the tenant:\n%s", event, diff)
		}
	}
}

func otherOutcomeStale(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	s.settle(l, shaper.Succeed)
	for _, event := range []shaper.Event{shaper.Die, shaper.Retry, shaper.Hold, shaper.Release, shaper.LeaseExpired} {
		equal(s, "the result of "+string(event), s.settle(l, event), queue.Stale)
	}
	equal(s, "the state", s.job(l.ID).State, shaper.Succeeded)
}

func wrongEpoch(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	for _, epoch := range []int64{0, 2, 1 << 32, -1} {
		wrong := l
		wrong.Epoch = epoch
		equal(s, "the result", s.settle(wrong, shaper.Succeed), queue.Stale)
	}
	equal(s, "the state", s.job(l.ID).State, shaper.Leased)
	equal(s, "the result of the right epoch", s.settle(l, shaper.Succeed), queue.Settled)
}

func twiceInBatch(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	one := queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Event: shaper.Succeed, MaxAttempts: 3}
	other := one
	other.Event = shaper.Die
	results, err := s.q.Broker().Settle(s.ctx, []queue.Settlement{one, one, other})
	if err != nil || text(results) != "[settled repeated stale]" {
		s.Errorf("Settle: %v, %v", results, err)
	}
	equal(s, "succeeded", s.tenant(tenant).Succeeded, 1)
}

func repeatedWhileLeasedAgain(s *suite) {
	s.admit(work())
	first := s.lease(1)[0]
	s.settle(first, shaper.Retry)
	second := s.lease(1)[0]
	equal(s, "the first settlement again", s.settle(first, shaper.Retry), queue.Repeated)
	equal(s, "another outcome of it", s.settle(first, shaper.Succeed), queue.Stale)
	equal(s, "the second settlement", s.settle(second, shaper.Succeed), queue.Settled)
	equal(s, "the first, now overtaken", s.settle(first, shaper.Retry), queue.Stale)
}

func extendLost(s *suite) {
	s.admit(work())
	l := s.lease(1)[0]
	wrong := queue.LeaseRef{ID: l.ID, Epoch: l.Epoch + 1}
	lost, err := s.q.Broker().Extend(s.ctx, []queue.LeaseRef{wrong, l.LeaseRef}, time.Minute)
	if err != nil {
		s.Errorf("Extend: %v", err)
	}
	Compare(s, "the lost leases", lost, []queue.LeaseRef{wrong})
	s.settle(l, shaper.Succeed)
	lost, err = s.q.Broker().Extend(s.ctx, []queue.LeaseRef{l.LeaseRef}, time.Minute)
	if err != nil || len(lost) != 1 {
		s.Errorf("extending a settled lease: lost %v, %v", lost, err)
	}
}

func settleLog(s *suite) {
	failed := func(l queue.Lease, status int) func(*queue.Settlement) {
		return func(t *queue.Settlement) {
			t.Attempt, t.Log = l.Attempt, l.Log
			t.Error = &queue.JobError{Message: "status " + strings.Repeat("é", 200), Status: status, At: time.Now()}
		}
	}
	w := work()
	w.MaxAttempts = 30
	id := s.admit(w).ID
	for n := range 22 {
		l := s.lease(1)[0]
		equal(s, "the attempts on record", len(l.Log), min(n, 20))
		s.settle(l, shaper.Retry, failed(l, 500+n))
	}
	l := s.lease(1)[0]
	s.settle(l, shaper.Succeed, func(t *queue.Settlement) {
		t.Attempt, t.Log, t.Response = l.Attempt, l.Log, &queue.Response{Status: 201}
	})
	log := s.job(id).Log
	equal(s, "the attempts on record", len(log), 20)
	last, before := log[19], log[18]
	Compare(s, "the last attempt", Only(last, "Event", "Status", "Number", "Message"),
		queue.Attempt{Event: shaper.Succeed, Status: 201, Number: 23})
	Compare(s, "the one before", Only(before, "Event", "Status", "Number"),
		queue.Attempt{Event: shaper.Retry, Status: 521, Number: 22})
	if n := len(before.Message); n > 200 || !utf8.ValidString(before.Message) {
		s.Errorf("its message has %d bytes, want at most 200 of UTF-8: %q", n, before.Message)
	}
	silent := s.admit(work()).ID
	l = s.lease(1)[0]
	s.settle(l, shaper.Retry, failed(l, 502))
	l = s.lease(1)[0]
	s.settle(l, shaper.Release, func(t *queue.Settlement) { t.Attempt, t.Log = l.Attempt, l.Log })
	equal(s, "the attempts on record after a release", len(s.job(silent).Log), 1)
	l = s.lease(1)[0]
	s.settle(l, shaper.Succeed, func(t *queue.Settlement) { t.Attempt, t.Log = l.Attempt, l.Log })
	equal(s, "the attempts on record of one that succeeds without an answer", len(s.job(silent).Log), 2)
	dead := s.admit(work()).ID
	l = s.lease(1)[0]
	s.settle(l, shaper.Retry, failed(l, 502), func(t *queue.Settlement) { t.MaxAttempts = 1 })
	equal(s, "the last attempt", s.job(dead).Log[0].Event, shaper.Die)
	once := s.admit(work()).ID
	s.settle(s.lease(1)[0], shaper.Succeed, func(t *queue.Settlement) {
		t.Response = &queue.Response{Status: 200}
	})
	equal(s, "the attempts on record of a job that succeeded at once", len(s.job(once).Log), 0)
}
