package queuetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var purgeTests = map[string]func(*suite){
	"a purge cancels waiting and deletes dead jobs":         purgeAll,
	"a purge obeys its filter":                              purgeFilter,
	"a purge by ids is limited to its tenant":               purgeIDs,
	"jobs that come later are not purged":                   purgeBefore,
	"a dead job with a pending callback is kept":            purgeCallback,
	"a replay of all stops at the first refusal":            replayAllStops,
	"a draining tenant refuses new jobs and sends the rest": drain,
	"a denied tenant refuses new jobs and sends the rest":   deny,
	"a tenant gets jobs of the types that it may use":       types,
	"a flow with too many dead letters stops":               deadCapacity,
	"a flow with too many bytes of dead letters stops":      deadBytes,
	"the history lists actors and changes":                  history,
	"the history lists purges and replays":                  historyOfSweeps,
}

func (s *suite) purge(f queue.Filter) queue.Swept {
	s.Helper()
	swept, err := s.q.Purge(s.ctx, tenant, f)
	if err != nil {
		s.Fatalf("Purge: %v", err)
	}
	return swept
}

func purgeAll(s *suite) {
	dead := s.dead(work())
	leased := s.admit(work())
	s.lease(1)
	queued := s.backlog(3, work())
	later := work()
	later.Delay = time.Hour
	scheduled := s.admit(later)
	swept := s.purge(queue.Filter{})
	equal(s, "the count", swept.Count, 5)
	equal(s, "more", swept.More, false)
	for _, j := range append(queued, scheduled) {
		equal(s, "a job that waited", s.job(j.ID).State, shaper.Cancelled)
	}
	equal(s, "a leased job", s.job(leased.ID).State, shaper.Leased)
	if _, err := s.q.Job(s.ctx, tenant, dead.ID); !errors.Is(err, queue.ErrNotFound) {
		s.Errorf("the dead job: %v", err)
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 0)
	equal(s, "the count of another purge", s.purge(queue.Filter{}).Count, 0)
}

func purgeFilter(s *suite) {
	failed := func(message string) func(*queue.Settlement) {
		return func(t *queue.Settlement) { t.Error = &queue.JobError{Message: message, At: time.Now()} }
	}
	s.admit(work())
	s.settle(s.lease(1)[0], shaper.Die, failed("status 400"))
	s.admit(work())
	s.settle(s.lease(1)[0], shaper.Die, failed("connection refused"))
	s.admit(work())
	s.settle(s.lease(1)[0], shaper.Die, failed("status 422"), func(t *queue.Settlement) {
		t.Response = &queue.Response{Status: 422, Body: []byte(`{"error":"SKU is unknown"}`)}
	})
	mail := work()
	mail.Route = "mail"
	s.admit(mail)
	s.admit(work())
	for _, tt := range []struct {
		f    queue.Filter
		want int64
	}{
		{queue.Filter{Error: "no such error"}, 0},
		{queue.Filter{State: queue.ListRetrying}, 0},
		{queue.Filter{CreatedBefore: time.Now().Add(-time.Hour)}, 0},
		{queue.Filter{State: queue.ListDead, Error: "REFUSED"}, 1},
		{queue.Filter{Error: "sku is UNKNOWN"}, 1}, // the upstream's words
		{queue.Filter{Route: "mail"}, 1},
		{queue.Filter{State: queue.ListQueued}, 1},
		{queue.Filter{}, 1},
	} {
		equal(s, "the count of "+text(tt.f), s.purge(tt.f).Count, tt.want)
	}
}

func purgeIDs(s *suite) {
	jobs := s.backlog(3, work())
	w := work()
	w.Tenant = "other"
	v := s.submit(w)
	equal(s, "the count", s.purge(queue.Filter{IDs: []string{jobs[1].ID, v.Job.ID, "nonsense"}}).Count, 1)
	equal(s, "the one", s.job(jobs[1].ID).State, shaper.Cancelled)
	equal(s, "the neighbour", s.job(jobs[0].ID).State, shaper.Queued)
	if j, err := s.q.Job(s.ctx, "other", v.Job.ID); err != nil || j.State != shaper.Queued {
		s.Errorf("another tenant's job: %+v, %v", j, err)
	}
}

func purgeBefore(s *suite) {
	s.admit(work())
	first := s.purge(queue.Filter{})
	equal(s, "the count", first.Count, 1)
	later := s.admit(work())
	equal(s, "the count with the bound of then",
		s.purge(queue.Filter{CreatedBefore: first.CreatedBefore}).Count, 0)
	equal(s, "the later job", s.job(later.ID).State, shaper.Queued)
}

func purgeCallback(s *suite) {
	l := s.dead(called())
	equal(s, "the count", s.purge(queue.Filter{}).Count, 0)
	s.handedOver(s.claim("first", time.Minute))
	equal(s, "the count after the hand-over", s.purge(queue.Filter{}).Count, 1)
	if _, err := s.q.Job(s.ctx, tenant, l.ID); !errors.Is(err, queue.ErrNotFound) {
		s.Errorf("the dead job: %v", err)
	}
}

func replayAllStops(s *suite) {
	for range 3 {
		s.dead(work())
	}
	s.tune(func(o *shaper.Overrides) { o.Capacity = pointer(int64(2)) })
	all := func() queue.Swept {
		swept, err := s.q.ReplayAll(s.ctx, tenant, queue.Filter{}, func(queue.Job) int { return 3 })
		if err != nil {
			s.Fatalf("ReplayAll: %v", err)
		}
		return swept
	}
	swept := all()
	equal(s, "the count", swept.Count, 2)
	if swept.Refusal == nil || swept.Refusal.Outcome != shaper.Full {
		s.Fatalf("the refusal is %+v", swept.Refusal)
	}
	equal(s, "the route of the refused job", swept.RefusedRoute, "default")
	for _, l := range s.lease(2) {
		s.settle(l, shaper.Succeed)
	}
	swept = all()
	equal(s, "the count of another", swept.Count, 1)
	if swept.Refusal != nil || swept.RefusedRoute != "" {
		s.Errorf("the refusal is %+v", swept)
	}
}

func drain(s *suite) {
	admitsNone(s, shaper.Draining, func(o *shaper.Overrides, on *bool) { o.Draining = on })
}

func deny(s *suite) {
	admitsNone(s, shaper.Denied, func(o *shaper.Overrides, on *bool) { o.Denied = on })
	// A stranger that is denied takes no place in the store.
	s.tune(func(o *shaper.Overrides) { o.Denied = pointer(true) })
	job := work()
	job.Route = "another"
	equal(s, "the outcome", s.submit(job).Outcome, shaper.Denied)
	if f, known := s.tenant(tenant).Routes["another"]; known {
		s.Errorf("the flow of a denied route: %+v", f)
	}
}

func types(s *suite) {
	pay, plain := work(), work()
	pay.Type, plain.Type = "pay", ""
	l := s.dead(pay)
	s.tune(func(o *shaper.Overrides) {
		o.Types = &[]string{"order.create", "order.cancel"}
		o.Routes = map[string]shaper.Overrides{"free": {Types: &[]string{}}, "paid": {Types: &[]string{"pay"}}}
	})
	batch := []queue.Submission{work(), pay, plain}
	for i, want := range []shaper.Outcome{shaper.Admitted, shaper.TypeDenied, shaper.TypeDenied} {
		equal(s, "the outcome in a batch", s.batch(false, batch...)[i].Outcome, want)
		equal(s, "the outcome", s.submit(batch[i]).Outcome, want)
	}
	for _, v := range s.batch(true, work(), work(), pay) {
		equal(s, "the outcome in an atomic batch", v.Outcome, shaper.TypeDenied)
		equal(s, "the job that is refused", v.Refused, 2)
	}
	for _, route := range []string{"free", "paid"} {
		pay.Route, plain.Route = route, route
		equal(s, "the outcome on the route "+route, s.submit(pay).Outcome, shaper.Admitted)
	}
	equal(s, "the outcome without a type", s.submit(plain).Outcome, shaper.TypeDenied)
	v, err := s.q.Replay(s.ctx, tenant, l.ID, queue.Replaying{MaxAttempts: 3})
	if err != nil || v.Outcome != shaper.TypeDenied {
		s.Errorf("a replay: %+v, %v", v, err)
	}
	// A replay of all passes over those that the tenant may not have.
	s.tune(func(o *shaper.Overrides) { o.Routes, o.Types = nil, nil })
	other := s.dead(work())
	s.tune(func(o *shaper.Overrides) { o.Types = &[]string{"order.create"} })
	swept, err := s.q.ReplayAll(s.ctx, tenant, queue.Filter{}, func(queue.Job) int { return 3 })
	if err != nil {
		s.Fatalf("ReplayAll: %v", err)
	}
	equal(s, "the jobs that were replayed", swept.Count, 1)
	if swept.Refusal == nil || swept.Refusal.Outcome != shaper.TypeDenied || swept.RefusedRoute != l.Route {
		s.Errorf("the replay of all: %+v", swept)
	}
	equal(s, "the state of the job that it may have", s.job(other.ID).State, shaper.Queued)
	equal(s, "the state of the other", s.job(l.ID).State, shaper.Dead)
	// A stranger that is refused takes no place in the store.
	plain.Route = "another"
	equal(s, "the outcome on another route", s.submit(plain).Outcome, shaper.TypeDenied)
	if f, known := s.tenant(tenant).Routes["another"]; known && f.Rejected > 0 {
		s.Errorf("the flow of a refused type: %+v", f)
	}
	s.tune(func(o *shaper.Overrides) { o.Types = nil })
	equal(s, "the outcome of a replay", s.replay(l.ID).Outcome, shaper.Admitted)
}

// admitsNone insists that a tenant admits nothing while a setting is on, and that its jobs leave.
func admitsNone(s *suite, outcome shaper.Outcome, set func(o *shaper.Overrides, on *bool)) {
	s.backlog(2, work())
	l := s.dead(called())
	s.tune(func(o *shaper.Overrides) { set(o, pointer(true)) })
	equal(s, "the outcome", s.submit(work()).Outcome, outcome)
	v, err := s.q.Replay(s.ctx, tenant, l.ID, queue.Replaying{MaxAttempts: 3})
	if err != nil || v.Outcome != outcome || v.Job.State != shaper.Dead {
		s.Errorf("a replay: %+v, %v", v, err)
	}
	s.lease(1)
	if s.tenant(tenant).Rejected == 0 {
		s.Error("no refusal was counted")
	}
	s.tune(func(o *shaper.Overrides) { set(o, nil) })
	equal(s, "the outcome", s.submit(work()).Outcome, shaper.Admitted)
}

func deadCapacity(s *suite) {
	s.restart(func(o *queue.Options) { o.Retention.DeadCapacity = 2 })
	first := s.dead(work())
	s.dead(work())
	waiting := s.admit(work())
	s.none()
	t := s.tenant(tenant)
	equal(s, "what limits it", t.LimitedBy, "paused")
	if t.Reason == "" || t.EffectiveRate != 0 {
		s.Errorf("the reason is %q at %v/s", t.Reason, t.EffectiveRate)
	}
	if j := s.job(waiting.ID); !j.EstimatedStart.IsZero() {
		s.Errorf("the estimate is %v", j.EstimatedStart)
	}
	equal(s, "the count", s.purge(queue.Filter{IDs: []string{first.ID}}).Count, 1)
	s.sameOrder(s.lease(1), waiting.ID)
	if reason := s.tenant(tenant).Reason; reason != "" {
		s.Errorf("the reason is still %q", reason)
	}
}

func deadBytes(s *suite) {
	s.restart(func(o *queue.Options) { o.Retention.DeadBytes = 10_000 })
	first := s.dead(sized(6000))
	kept := s.tenant(tenant)
	if kept.DeadBytes < 6000 || kept.DeadBytes > 7000 || kept.Stored != kept.DeadBytes {
		s.Errorf("%d bytes are stored, %d of them of a dead letter with a payload of 6000", kept.Stored,
			kept.DeadBytes)
	}
	equal(s, "what limits it below the bound", kept.LimitedBy, "idle")
	s.dead(sized(6000))
	waiting := s.admit(work())
	s.none()
	stopped := s.tenant(tenant)
	equal(s, "what limits it", stopped.LimitedBy, "paused")
	equal(s, "the reason", stopped.Reason,
		"its dead letters had as many bytes as are kept (now 10000): replay or purge some")
	others := work()
	others.Tenant = "another"
	free := s.admit(others)
	s.sameOrder(s.lease(1), free.ID)
	equal(s, "the count", s.purge(queue.Filter{IDs: []string{first.ID}}).Count, 1)
	s.sameOrder(s.lease(1), waiting.ID)
	equal(s, "the bytes of one dead letter", s.tenant(tenant).DeadBytes, kept.DeadBytes)
}

func history(s *suite) {
	change := func(capacity int64, reason string) {
		if _, err := s.q.Tune(s.ctx, tenant, queue.Change{Actor: "ops", Reason: reason,
			Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
				o.Capacity = &capacity
				return o, nil
			}}); err != nil {
			s.Fatal(err)
		}
	}
	change(5, "first")
	change(7, "second")
	entries, err := s.q.History(s.ctx, tenant)
	if err != nil || len(entries) != 2 {
		s.Fatalf("History: %+v, %v", entries, err)
	}
	last := entries[0]
	equal(s, "the reason", last.Reason, "second")
	equal(s, "the actor", last.Actor, "ops")
	equal(s, "the revision", last.Revision, 2)
	equal(s, "before", *last.Before.Capacity, 5)
	equal(s, "after", *last.After.Capacity, 7)
	if entries, err := s.q.History(s.ctx, "nobody"); err != nil || len(entries) != 0 {
		s.Errorf("of a tenant never seen: %+v, %v", entries, err)
	}
}

// historyOfSweeps: steps of one purge are one entry, also where the list of ids is long; what came
// between begins another one. An entry changes no setting.
func historyOfSweeps(s *suite) {
	before := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ids := slices.Repeat([]string{"a"}, queue.NotedIDs+1)
	purge := queue.HistoryEntry{Action: queue.ActionPurge, Actor: "ops",
		Filter: &queue.Filter{State: queue.ListDead, Error: "502", CreatedBefore: before, IDs: ids}}
	note := func(entry queue.HistoryEntry, count int64) {
		s.Helper()
		entry.Count = count
		if err := s.q.Note(s.ctx, tenant, entry); err != nil {
			s.Fatalf("Note: %v", err)
		}
	}
	list := func() []queue.HistoryEntry {
		s.Helper()
		entries, err := s.q.History(s.ctx, tenant)
		if err != nil {
			s.Fatalf("History: %v", err)
		}
		return entries
	}
	note(purge, 10_000)
	note(purge, 7)
	if got := list(); len(got) != 1 || got[0].Count != 10_007 || len(got[0].Filter.IDs) != queue.NotedIDs ||
		got[0].Filter.Error != "502" || !got[0].Filter.CreatedBefore.Equal(before) || got[0].Revision != 0 {
		s.Fatalf("two steps: %+v", got)
	}
	equal(s, "whether the entry makes the tenant known", s.tenant(tenant).Known, false)
	replay := purge
	replay.Action, replay.Filter = queue.ActionReplay, &queue.Filter{CreatedBefore: before}
	note(replay, 3)
	change := queue.Change{Edit: ofCapacity(7), Reason: "between"}
	if _, err := s.q.Tune(s.ctx, tenant, change); err != nil {
		s.Fatal(err)
	}
	note(replay, 4)
	note(purge, 1)
	var got []string
	for _, e := range list() {
		got = append(got, fmt.Sprintf("%s%s %d", e.Action, e.Reason, e.Count))
	}
	equal(s, "the history", strings.Join(got, ", "), "purge 1, replay 4, between 0, replay 3, purge 10007")
	equal(s, "the revision", s.tenant(tenant).Revision, 1)
	for n := range int64(150) {
		replay.Actor = fmt.Sprint(n)
		note(replay, 1)
	}
	equal(s, "the entries kept", len(list()), 100)
}
