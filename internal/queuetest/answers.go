package queuetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var answerTests = map[string]func(*suite){
	"an answer is read as it was stored":          answerStored,
	"a final failure is no dead letter":           failedForGood,
	"a key may compare other bytes than payloads": sameBytes,
	"answers leave when newer ones need space":    answersBounded,
	"answers never refuse requests":               answersRefuseNothing,
	"jobs of others delete no answers":            answersStay,
	"answers of a class stay within its part":     answersOfClass,
	"an answer too large for its flow passes":     answerPasses,
	"a small answer comes with its end":           answerWithEnd,
}

// answered returns the settlement of a forwarded request.
func answered(answer string) func(*queue.Settlement) {
	return func(t *queue.Settlement) {
		t.Answer, t.Response, t.Retention = []byte(answer), &queue.Response{Status: 418}, 2*time.Second
	}
}

// lasting is answered for an hour.
func lasting(answer string) func(*queue.Settlement) {
	return func(t *queue.Settlement) { answered(answer)(t); t.Retention = time.Hour }
}

// lasts reports whether the answer of a job is kept. One that is dropped lingers for seconds.
func (s *suite) lasts(of, id string) bool {
	s.Helper()
	shard, _ := store.Of(s.q).ShardOfID(id)
	kept := store.Of(s.q).Fast.ZRange(s.ctx, shard.Kept(store.EncodeName(of)+"/"+work().Route), 0, -1).Val()
	return slices.ContainsFunc(kept, func(entry string) bool { return strings.HasPrefix(entry, id+" ") })
}

// answersStay: one flow fills its share of the store with jobs. Answers of another that were stored
// before stay, and so do its next ones.
func answersStay(s *suite) {
	bounded := func(o *queue.Options) {
		o.Store = queue.StoreBounds{Bytes: 100_000, FlowShare: 50}
		o.Defaults.Rate, o.Defaults.Capacity = quick, 1000
	}
	s.restart(bounded)
	answer := func() string {
		id := s.admit(work()).ID
		equal(s, "the result", s.settle(s.lease(1)[0], shaper.Succeed, lasting(strings.Repeat("a", 2000))), queue.Settled)
		return id
	}
	before := answer()
	s.restart(bounded) // another process, which reads the sums
	other := work()
	other.Tenant, other.Delay, other.Payload = "other", time.Hour, []byte(`"`+strings.Repeat("x", 5000)+`"`)
	for s.submit(other).Outcome == shaper.Admitted {
	}
	after := answer()
	s.restart(bounded)
	last := answer()
	for _, id := range []string{before, after, last} {
		if !s.lasts(tenant, id) {
			s.Errorf("an answer is gone: %s of %v", id, []string{before, after, last})
		}
	}
}

// answersOfClass: answers to guests take no more than the part of the guests, and those of a tenant
// with settings find the rest.
func answersOfClass(s *suite) {
	bounded := func(o *queue.Options) {
		o.Store = queue.StoreBounds{Bytes: 400_000, FlowShare: 50, Classes: map[string]queue.ClassBound{queue.ClassOfTier("trial"): {Bytes: 10}}}
		o.Defaults.Rate, o.Defaults.Capacity = quick, 1000
	}
	lasting := lasting(strings.Repeat("a", 30_000))
	answer := func(tenant, tier string) string {
		s.restart(bounded) // another process, which reads the sums
		w := work()
		w.Tenant, w.Tier = tenant, tier
		id := s.admit(w).ID
		equal(s, "the result", s.settle(s.lease(1)[0], shaper.Succeed, lasting), queue.Settled)
		return id
	}
	first, second, other := answer("a", "trial"), answer("b", "trial"), answer("c", "")
	stay := []bool{s.lasts("a", first), s.lasts("b", second), s.lasts("c", other)}
	if !slices.Equal(stay, []bool{true, false, true}) {
		s.Errorf("the answers stay: %v, the last of a tenant of no class", stay)
	}
}

// answer reads the answer of a job.
func (s *suite) answer(of, id string) (queue.Job, []byte, error) {
	s.Helper()
	j, a, err := s.q.Answer(s.ctx, of, id, queue.End{})
	if err != nil || a == nil {
		return j, nil, err
	}
	whole, err := Whole(s.ctx, a)
	return j, whole, err
}

// Whole reads all pieces of an answer, which overlap its start.
func Whole(ctx context.Context, a *queue.Answer) (whole []byte, err error) {
	const piece = 64 << 10
	for len(whole) < a.Size {
		some, err := a.Read(ctx, len(whole), piece)
		if err != nil {
			return nil, err
		}
		whole = append(whole, some...)
	}
	return whole, nil
}

func answerStored(s *suite) {
	id := s.admit(work()).ID
	j, raw, err := s.answer(tenant, id)
	if err != nil || raw != nil || j.State != shaper.Queued {
		s.Fatalf("before the delivery: %v %q %v", j.State, raw, err)
	}
	long := string(bytes.Repeat([]byte("\x00{}\r\n"), 100_000)) // longer than what a plain read takes
	equal(s, "the result", s.settle(s.lease(1)[0], shaper.Succeed, answered(long)), queue.Settled)
	j, raw, err = s.answer(tenant, id)
	if err != nil || string(raw) != long || j.State != shaper.Succeeded {
		s.Fatalf("after it: %v, %d bytes, %v", j.State, len(raw), err)
	}
	equal(s, "the status that a plain read has", s.job(id).Response.Status, 418)
	if _, _, err := s.answer("other", id); !errors.Is(err, queue.ErrNotFound) {
		s.Errorf("of another tenant: %v", err)
	}
	s.await("the answer to be past its retention", func() bool {
		_, _, err := s.answer(tenant, id)
		return errors.Is(err, queue.ErrGone)
	})
}

func answerWithEnd(s *suite) {
	for _, size := range []int{10, 3000, 5000} {
		id, want := s.admit(work()).ID, strings.Repeat("x", size)
		ended, _ := s.watch(id)
		s.settle(s.lease(1)[0], shaper.Succeed, answered(want))
		end := receive(s, "the end", ended)
		j, a, err := s.q.Answer(s.ctx, tenant, id, end)
		if err != nil || j.State != shaper.Succeeded || j.Response.Status != 418 || a == nil {
			s.Fatalf("of %d bytes: %v %+v %v", size, j.State, a, err)
		}
		if got, err := Whole(s.ctx, a); err != nil || string(got) != want {
			s.Errorf("of %d bytes: %d, %v", size, len(got), err)
		}
		if _, _, err := s.q.Answer(s.ctx, "other", id, end); !errors.Is(err, queue.ErrNotFound) {
			s.Errorf("of another tenant: %v", err)
		}
		s.await("the answer to be past its retention", func() bool {
			_, _, err := s.answer(tenant, id)
			return errors.Is(err, queue.ErrGone)
		})
		if _, a, err := s.q.Answer(s.ctx, tenant, id, end); (err == nil && a != nil) != (size < 4000) {
			s.Errorf("of %d bytes, once it is gone: %v", size, err)
		}
	}
}

func failedForGood(s *suite) {
	w := work()
	w.IdempotencyKey = "k"
	id := s.admit(w).ID
	late := &queue.JobError{Message: "no answer within 1s", Timeout: true}
	equal(s, "the result", s.settle(s.lease(1)[0], shaper.Die, func(t *queue.Settlement) {
		t.Final, t.Error = true, late
	}), queue.Settled)
	j, raw, err := s.answer(tenant, id)
	if err != nil || raw != nil || j.State != shaper.Dead || j.LastError == nil || !j.LastError.Timeout {
		s.Fatalf("%+v %q %v", j, raw, err)
	}
	equal(s, "dead letters of the tenant", s.tenant(tenant).Dead, 0)
	if _, err := s.q.Replay(s.ctx, tenant, id, queue.Replaying{MaxAttempts: 3}); !errors.Is(err, queue.ErrConflict) {
		s.Errorf("replayed: %v", err)
	}
	swept, err := s.q.Purge(s.ctx, tenant, queue.Filter{State: queue.ListDead})
	if err != nil || swept.Count != 0 {
		s.Errorf("a purge of dead letters took %+v, %v", swept, err)
	}
	again := s.submit(w)
	equal(s, "the outcome for its key", again.Outcome, shaper.Replayed)
	equal(s, "the state that the key has", again.Job.State, shaper.Dead)
}

func sameBytes(s *suite) {
	w := work()
	w.IdempotencyKey, w.Same = "k", []byte("GET /a")
	id := s.admit(w).ID
	w.Payload = []byte(`{"n":2}`)
	again := s.submit(w)
	equal(s, "the outcome with another payload", again.Outcome, shaper.Replayed)
	equal(s, "the job", again.Job.ID, id)
	w.Same = []byte("GET /b")
	equal(s, "the outcome with other bytes", s.submit(w).Outcome, shaper.KeyReused)
}

// forward submits a request and stores its answer, which has the given size. It returns the job's
// id.
func (s *suite) forward(bytes int) string {
	s.Helper()
	id := s.admit(work()).ID
	equal(s, "the result", s.settle(s.lease(1)[0], shaper.Succeed, answered(strings.Repeat("x", bytes)),
		func(t *queue.Settlement) { t.Retention = time.Minute }), queue.Settled)
	return id
}

// has reports whether the answer of a job is stored.
func (s *suite) has(id string) bool {
	s.Helper()
	_, raw, err := s.answer(tenant, id)
	if err != nil && !errors.Is(err, queue.ErrGone) {
		s.Fatal(err)
	}
	return len(raw) > 0
}

func answersBounded(s *suite) {
	s.restart(func(o *queue.Options) { o.Defaults.CapacityBytes = 30_000 })
	var ids []string
	for range 5 {
		ids = append(ids, s.forward(9_000))
	}
	equal(s, "the newest, at once", s.has(ids[4]), true)
	s.await("the oldest to be gone", func() bool { return !s.has(ids[0]) && !s.has(ids[1]) })
	if _, err := s.q.Job(s.ctx, tenant, ids[0]); !errors.Is(err, queue.ErrNotFound) {
		s.Errorf("the job of an answer that was dropped: %v", err)
	}
	for _, id := range ids[2:] {
		equal(s, "a newer one", s.has(id), true)
	}
	t := s.tenant(tenant)
	within(s, "the bytes stored", t.Stored, 27_000, 30_000)
	totals, err := s.q.Totals(s.ctx)
	if err != nil {
		s.Fatal(err)
	}
	equal(s, "those of all tenants", totals.Stored, t.Stored)
}

func answersRefuseNothing(s *suite) {
	s.restart(func(o *queue.Options) { o.Store = queue.StoreBounds{Bytes: 100_000, FlowShare: 50} })
	for range 12 {
		s.forward(10_000)
		s.restart(func(o *queue.Options) { o.Store = queue.StoreBounds{Bytes: 100_000, FlowShare: 50} })
	}
	within(s, "the bytes stored", s.tenant(tenant).Stored, 10_000, 40_000)
	s.admit(sized(30_000))
}

func answerPasses(s *suite) {
	s.restart(func(o *queue.Options) { o.Defaults.CapacityBytes = 5_000 })
	small, large := s.forward(1_000), s.forward(20_000)
	equal(s, "the answer, at once", s.has(large), true)
	equal(s, "the bytes stored", s.tenant(tenant).Stored, 0)
	s.await("both to be gone", func() bool { return !s.has(small) && !s.has(large) })
	kept := s.forward(1_000)
	within(s, "the bytes stored", s.tenant(tenant).Stored, 1_000, 2_000)
	equal(s, "a small answer after it", s.has(kept), true)
}
