package queuetest

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var jobTests = map[string]func(*suite){
	"a job reads as it was submitted":                  jobReads,
	"an unknown id is not found":                       unknownIDs,
	"another tenant's job is not found":                foreignJob,
	"a cancelled job frees capacity at once":           cancelFreesCapacity,
	"a cancelled job spends no slot":                   cancelSpendsNoSlot,
	"every waiting state can be cancelled":             cancelWaiting,
	"cancelling a leased or ended job is a conflict":   cancelConflict,
	"positions move up as jobs ahead leave":            positionsMoveUp,
	"a cancelled job sends no wake-up and stays ended": cancelStays,
	"a replay answers with the job as it reads then":   replayAnswers,
}

var nameTests = map[string]func(*suite){
	"odd tenants are kept apart":               oddTenants,
	"odd routes are kept apart":                oddRoutes,
	"a slash belongs to one name or the other": slashes,
}

func jobReads(s *suite) {
	w := queue.Submission{
		Tenant: "büro 7", Route: "weekly reports", Type: "é/x", Payload: []byte("[]"), MaxAttempts: 7,
	}
	v := s.submit(w)
	j, err := s.q.Job(s.ctx, w.Tenant, v.Job.ID)
	if err != nil {
		s.Fatalf("Job: %v", err)
	}
	want := queue.Job{
		ID: v.Job.ID, Tenant: w.Tenant, Route: w.Route, Type: w.Type, Cost: 1, State: shaper.Queued, Position: 1,
		MaxAttempts: 7, Created: v.Job.Created, EstimatedStart: j.EstimatedStart,
	}
	Compare(s, "the job", j, want)
	l := s.lease(1)[0]
	Compare(s, "the lease", l, queue.Lease{
		LeaseRef: queue.LeaseRef{ID: want.ID, Epoch: 1}, Tenant: w.Tenant, Route: w.Route, Type: w.Type,
		Payload: w.Payload, PayloadAt: l.PayloadAt, Cost: 1, Attempt: 1, MaxAttempts: 7, Created: shaper.InstantOf(j.Created),
		Eligible: l.Eligible, Stamp: l.Stamp, Deadline: l.Deadline,
	})
	if j, err = s.q.Job(s.ctx, w.Tenant, v.Job.ID); err != nil {
		s.Fatalf("Job: %v", err)
	}
	want.State, want.Position, want.EstimatedStart, want.Started = shaper.Leased, 0, time.Time{}, l.Stamp.Time()
	Compare(s, "the leased job", j, want)
}

func replayAnswers(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	dead := s.admit(work())
	s.settle(s.lease(1)[0], shaper.Die, func(p *queue.Settlement) {
		p.Response = &queue.Response{Status: 503, Body: []byte("no")}
	})
	s.backlog(2, work())
	v, err := s.q.Replay(s.ctx, tenant, dead.ID, queue.Replaying{MaxAttempts: 3})
	if err != nil {
		s.Fatalf("Replay: %v", err)
	}
	equal(s, "the position", v.Job.Position, 3)
	Compare(s, "the job of the answer", v.Job, s.job(dead.ID))
}

// strangers are ids that no call may find.
func (s *suite) strangers(id string) []string {
	s.Helper()
	never, err := s.q.NewID(tenant, "default")
	if err != nil {
		s.Fatalf("NewID: %v", err)
	}
	return []string{
		"", "x", never, id + "x", id[:27], strings.ToUpper(id), id[:26] + "0v", "../" + id, id + "\x00",
		strings.Repeat("v", 28), "{0}:" + id[4:],
		id[:27] + "é", strings.Repeat("0", 1<<16),
	}
}

func unknownIDs(s *suite) {
	id := s.admit(work()).ID
	for _, id := range s.strangers(id) {
		s.notFound(tenant, id)
		r := s.settle(queue.Lease{LeaseRef: queue.LeaseRef{ID: id, Epoch: 1}, MaxAttempts: 3}, shaper.Succeed)
		if r != queue.Stale {
			s.Errorf("settling %.40q is %s, want %s", id, r, queue.Stale)
		}
		ref := queue.LeaseRef{ID: id, Epoch: 1}
		lost, err := s.q.Broker().Extend(s.ctx, []queue.LeaseRef{ref}, time.Minute)
		if err != nil || !slices.Contains(lost, ref) {
			s.Errorf("extending %.40q: lost %v, %v, want it lost", id, lost, err)
		}
	}
	equal(s, "the state", s.job(id).State, shaper.Queued)
}

// notFound insists that no call of a client finds the job.
func (s *suite) notFound(tenant, id string) {
	s.Helper()
	_, read := s.q.Job(s.ctx, tenant, id)
	_, cancel := s.q.Cancel(s.ctx, tenant, id)
	_, replay := s.q.Replay(s.ctx, tenant, id, queue.Replaying{MaxAttempts: 1})
	for what, err := range map[string]error{"Job": read, "Cancel": cancel, "Replay": replay} {
		if !errors.Is(err, queue.ErrNotFound) {
			s.Errorf("%s of %.40q by %.40q: %v, want ErrNotFound", what, id, tenant, err)
		}
	}
}

func foreignJob(s *suite) {
	id := s.admit(work()).ID
	dead := s.admit(work()).ID
	for _, l := range s.lease(2) {
		if l.ID == dead {
			s.settle(l, shaper.Die)
		} else {
			s.settle(l, shaper.Release)
		}
	}
	for _, other := range []string{
		"other", "", "ACME", "acme ", "acme/default", "*", store.EncodeName("acme "),
	} {
		s.notFound(other, id)
		s.notFound(other, dead)
	}
	equal(s, "the state", s.job(id).State, shaper.Queued)
	equal(s, "the dead one's state", s.job(dead).State, shaper.Dead)
}

func (s *suite) cancel(id string) queue.Job {
	s.Helper()
	j, err := s.q.Cancel(s.ctx, tenant, id)
	if err != nil {
		s.Fatalf("Cancel: %v", err)
	}
	equal(s, "the cancelled job", j.ID, id)
	equal(s, "its state", j.State, shaper.Cancelled)
	equal(s, "whether it has no end", j.Finished.IsZero(), false)
	return j
}

func cancelFreesCapacity(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 3 })
	jobs := s.backlog(3, work())
	s.cancel(jobs[1].ID)
	equal(s, "the position of the job behind", s.job(jobs[2].ID).Position, 2)
	last := s.admit(work())
	equal(s, "the position of a new job", last.Position, 3)
	s.sameOrder(s.lease(3), jobs[0].ID, jobs[2].ID, last.ID)
}

func cancelSpendsNoSlot(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	jobs := s.backlog(4, work())
	s.lease(1)
	s.cancel(jobs[1].ID)
	s.cancel(jobs[2].ID)
	before := s.job(jobs[0].ID).Started
	equal(s, "the stamp after two cancelled jobs", s.lease(1)[0].Stamp.Time(), before.Add(time.Minute))
}

func cancelWaiting(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	retrying := s.admit(work())
	s.settle(s.lease(1)[0], shaper.Retry, after(time.Hour))
	equal(s, "the state", s.job(retrying.ID).State, shaper.Retrying)
	later := work()
	later.Delay = time.Hour
	for _, id := range []string{retrying.ID, s.admit(later).ID, s.admit(work()).ID} {
		first := s.cancel(id)
		if again := s.cancel(id); !again.Finished.Equal(first.Finished) {
			s.Errorf("cancelled again, the job ended at %v instead of %v", again.Finished, first.Finished)
		}
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 0)
	s.none()
}

func cancelConflict(s *suite) {
	endings := map[shaper.State]shaper.Event{
		shaper.Leased: "", shaper.Succeeded: shaper.Succeed, shaper.Dead: shaper.Die,
	}
	for state, event := range endings {
		s.admit(work())
		l := s.lease(1)[0]
		if event != "" {
			s.settle(l, event)
		}
		j, err := s.q.Cancel(s.ctx, tenant, l.ID)
		if !errors.Is(err, queue.ErrConflict) {
			s.Errorf("cancelling a %s job: %v, want ErrConflict", state, err)
		}
		Compare(s, "the job of the conflict", Only(j, "ID", "State"), queue.Job{ID: l.ID, State: state})
	}
}

func positionsMoveUp(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	jobs := s.backlog(5, work())
	s.lease(2)
	for i, want := range []int64{0, 0, 1, 2, 3} {
		equal(s, "the position", s.job(jobs[i].ID).Position, want)
	}
}

func cancelStays(s *suite) {
	w := work()
	w.Payload = bytes.Repeat([]byte("x"), 1000)
	id := s.admit(w).ID
	s.cancel(id)
	s.none()
	if _, err := s.q.Replay(s.ctx, tenant, id, queue.Replaying{MaxAttempts: 3}); !errors.Is(err, queue.ErrConflict) {
		s.Errorf("replaying a cancelled job: %v, want ErrConflict", err)
	}
}

func oddNames() []string {
	return []string{
		"a b", "é", "}x", "{x}", "x", "a:b", "a/b", "a", "A", "a.b", "*", "~", "%", "..", "\"", "'", "\\",
		" ", "~" + strings.Repeat("0", 64),
		store.EncodeName("a b"), store.EncodeName(store.EncodeName("a b")), store.EncodeName("é") + " é",
		store.EncodeName("a b") + " a b",
		strings.Repeat("x", 64), strings.Repeat("x", 65), strings.Repeat("x", 255), strings.Repeat("é", 127),
		"e\u0301", "\xff\xfe", "10.0.0.1",
		"2001:db8::1", "default", "live", "clock",
	}
}

func oddTenants(s *suite) {
	s.restart(func(o *queue.Options) { o.Shards, o.Defaults.Rate, o.Defaults.Capacity = 1, slow, 1 })
	names := oddNames()
	first := map[string]string{}
	for _, name := range names {
		w := keyed()
		w.Tenant = name
		j := s.admit(w)
		equal(s, "the position", j.Position, 1)
		first[j.ID] = name
		t := s.tenant(name)
		equal(s, "the name", t.Name, name)
		Compare(s, "the figures of "+name, Only(t.Figures, "Depth", "Admitted"),
			queue.Figures{Depth: 1, Admitted: 1})
	}
	listed, next, err := s.q.Tenants(s.ctx, "", 1000)
	if err != nil || next != "" {
		s.Errorf("Tenants: %q, %v", next, err)
	}
	slices.Sort(listed)
	if want := slices.Sorted(slices.Values(names)); !slices.Equal(listed, want) {
		s.Errorf("listed %q, want %q", listed, want)
	}
	for id, name := range first {
		for _, other := range names {
			if _, err := s.q.Job(s.ctx, other, id); errors.Is(err, queue.ErrNotFound) != (other != name) {
				s.Errorf("the job of %q, read by %q: %v", name, other, err)
			}
		}
	}
	for _, l := range s.lease(len(names)) {
		equal(s, "the tenant of the lease", l.Tenant, first[l.ID])
	}
}

func oddRoutes(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 1 })
	routes := oddNames()
	for _, route := range routes {
		w := work()
		w.Route = route
		s.admit(w)
	}
	equal(s, "the depth", s.tenant(tenant).Depth, int64(len(routes)))
	seen := map[string]bool{}
	for _, l := range s.lease(len(routes)) {
		seen[l.Route] = true
	}
	equal(s, "the number of routes that left", len(seen), len(routes))
}

func slashes(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 1 })
	for _, parts := range [][2]string{{"a/b", "c"}, {"a", "b/c"}, {"a", "b"}, {"a/", "b"}, {"a", "/b"}} {
		w := work()
		w.Tenant, w.Route = parts[0], parts[1]
		s.admit(w)
	}
	equal(s, "the depth of a", s.tenant("a").Depth, 3)
	equal(s, "the depth of a/b", s.tenant("a/b").Depth, 1)
}
