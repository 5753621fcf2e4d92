package queuetest

import (
	"errors"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var idempotencyTests = map[string]func(*suite){
	"a repeated key answers with its job and takes no slot": repeatedKey,
	"concurrent calls with one key make one job":            concurrentKey,
	"a key with another fingerprint is refused":             otherFingerprint,
	"tenants do not share keys":                             keyOfOtherTenant,
	"a key outlives its job's end":                          keyAfterEnd,
	"a key outlives its job's record":                       keyAfterRecord,
	"a key expires":                                         keyForgotten,
	"a refusal is not remembered":                           refusalNotRemembered,
	"a key repeated in one batch makes one job":             keyTwiceInBatch,
}

func keyed() queue.Submission {
	w := work()
	w.IdempotencyKey = "order 17"
	return w
}

func repeatedKey(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 2 })
	s.admit(work())
	job := s.admit(keyed())
	v := s.submit(keyed()) // though the queue is full
	equal(s, "the outcome", v.Outcome, shaper.Replayed)
	equal(s, "the id", v.Job.ID, job.ID)
	equal(s, "the state", v.Job.State, shaper.Queued)
	equal(s, "the position", v.Job.Position, 2)
	equal(s, "the depth", v.Depth, 2)
	equal(s, "the type", v.Job.Type, job.Type)
}

func concurrentKey(s *suite) {
	const callers = 24
	decisions := make([]queue.Decision, callers)
	var all sync.WaitGroup
	for i := range decisions {
		all.Go(func() {
			v, err := s.q.Submit(s.ctx, keyed())
			if err != nil {
				s.Errorf("Submit: %v", err)
			}
			decisions[i] = v
		})
	}
	all.Wait()
	outcomes := map[shaper.Outcome]int{}
	for _, v := range decisions {
		outcomes[v.Outcome]++
		equal(s, "the id", v.Job.ID, decisions[0].Job.ID)
	}
	if outcomes[shaper.Admitted] != 1 || outcomes[shaper.Replayed] != callers-1 {
		s.Errorf("outcomes %v, want one admitted and the others replayed", outcomes)
	}
	s.lease(1)
	s.none()
}

func otherFingerprint(s *suite) {
	job := s.admit(keyed())
	for what, change := range map[string]func(*queue.Submission){
		"payload": func(w *queue.Submission) { w.Payload = []byte(`{"n":2}`) },
		"type":    func(w *queue.Submission) { w.Type = "order.cancel" },
		"route":   func(w *queue.Submission) { w.Route = "reports" },
		"delay":   func(w *queue.Submission) { w.Delay = time.Second },
		"cost":    func(w *queue.Submission) { w.Cost = 2 },
		// The parts must not run into each other.
		"type and payload": func(w *queue.Submission) { w.Type, w.Payload = w.Type+`{`, w.Payload[1:] },
	} {
		w := keyed()
		change(&w)
		v := s.submit(w)
		if v.Outcome != shaper.KeyReused || v.Job.ID != "" {
			s.Errorf("another %s: %s with job %q, want %s with none", what, v.Outcome, v.Job.ID, shaper.KeyReused)
		}
	}
	w := keyed()
	w.MaxAttempts = 9 // the operator's, not the client's
	v := s.submit(w)
	equal(s, "the outcome with other attempts", v.Outcome, shaper.Replayed)
	equal(s, "the id", v.Job.ID, job.ID)
}

func keyOfOtherTenant(s *suite) {
	mine := s.admit(keyed())
	w := keyed()
	w.Tenant = "other"
	v := s.submit(w)
	equal(s, "the outcome", v.Outcome, shaper.Admitted)
	if v.Job.ID == mine.ID {
		s.Error("one key of two tenants made one job")
	}
}

func keyAfterEnd(s *suite) {
	endings := map[shaper.State]func(id string){
		shaper.Succeeded: func(string) { s.settle(s.lease(1)[0], shaper.Succeed) },
		shaper.Dead:      func(string) { s.settle(s.lease(1)[0], shaper.Die) },
		shaper.Cancelled: func(id string) {
			if _, err := s.q.Cancel(s.ctx, tenant, id); err != nil {
				s.Errorf("Cancel: %v", err)
			}
		},
	}
	for state, end := range endings {
		w := keyed()
		w.IdempotencyKey = state.String()
		job := s.admit(w)
		end(job.ID)
		v := s.submit(w)
		equal(s, "the outcome", v.Outcome, shaper.Replayed)
		Compare(s, "the job of the key", Only(v.Job, "ID", "State"), queue.Job{ID: job.ID, State: state})
		equal(s, "whether it has no end", v.Job.Finished.IsZero(), false)
	}
	s.none()
}

func keyAfterRecord(s *suite) {
	s.restart(func(o *queue.Options) {
		o.Retention = queue.Retention{Succeeded: time.Second, Idempotency: time.Hour}
	})
	job := s.admit(keyed())
	s.settle(s.lease(1)[0], shaper.Succeed)
	done := s.job(job.ID)
	s.awaitForgotten(job.ID)
	v := s.submit(keyed())
	equal(s, "the outcome", v.Outcome, shaper.Replayed)
	got := v.Job
	known := func(j queue.Job) queue.Job {
		return Only(j, "ID", "State", "Attempts", "Type", "Tenant", "Created", "Finished")
	}
	Compare(s, "what the key knows of the job", known(got), known(done))
	Compare(s, "the ended job", Only(got, "State", "Attempts"),
		queue.Job{State: shaper.Succeeded, Attempts: 1})
}

func keyForgotten(s *suite) {
	s.restart(func(o *queue.Options) {
		o.Retention = queue.Retention{Succeeded: time.Second, Idempotency: time.Second}
	})
	job := s.admit(keyed())
	s.settle(s.lease(1)[0], shaper.Succeed)
	s.awaitForgotten(job.ID)
	s.await("the key to be forgotten", func() bool { return s.submit(keyed()).Outcome == shaper.Admitted })
}

func (s *suite) awaitForgotten(id string) {
	s.Helper()
	s.await("the record to be past retention", func() bool {
		_, err := s.q.Job(s.ctx, tenant, id)
		return errors.Is(err, queue.ErrNotFound)
	})
}

func refusalNotRemembered(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 1 })
	first := s.admit(work())
	equal(s, "the outcome", s.submit(keyed()).Outcome, shaper.Full)
	if _, err := s.q.Cancel(s.ctx, tenant, first.ID); err != nil {
		s.Fatalf("Cancel: %v", err)
	}
	s.admit(keyed())
}

func keyTwiceInBatch(s *suite) {
	other := keyed()
	other.Payload = []byte(`{"n":2}`)
	decisions, err := s.q.SubmitBatch(s.ctx, []queue.Submission{keyed(), keyed(), other}, false)
	if err != nil {
		s.Fatalf("SubmitBatch: %v", err)
	}
	equal(s, "the first outcome", decisions[0].Outcome, shaper.Admitted)
	equal(s, "the second outcome", decisions[1].Outcome, shaper.Replayed)
	equal(s, "the second id", decisions[1].Job.ID, decisions[0].Job.ID)
	equal(s, "the outcome of another payload", decisions[2].Outcome, shaper.KeyReused)
	equal(s, "the depth", s.tenant(tenant).Depth, 1)
}
