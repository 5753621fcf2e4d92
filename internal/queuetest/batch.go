package queuetest

import (
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var batchTests = map[string]func(*suite){
	"a batch is decided in order":                   batchInOrder,
	"an atomic batch is all or none":                atomicBatch,
	"an atomic batch over two flows is all or none": atomicBatchOverFlows,
	"an id repeated in one batch is refused":        batchSameID,
	"a reused key refuses an atomic batch":          atomicKeyReused,
	"a refused atomic batch is counted":             atomicRefusalCounted,
	"a refused atomic batch reports the depth":      atomicRefusalTells,
	"a batch has 1 to 1000 jobs of one tenant":      batchBounds,
}

var delayTests = map[string]func(*suite){
	"a delayed job is scheduled and counts in the depth": scheduled,
	"a delayed job leaves at its time, not before":       scheduledLeaves,
	"a delay that has just passed is none":               scheduledBefore,
	"a delayed job does not block the ones behind it":    scheduledBlocksNobody,
	"a promoted job is queued last":                      promotedGoesBehind,
	"a retrying job keeps its sequence":                  retryingKeepsSequence,
}

func (s *suite) batch(atomic bool, batch ...queue.Submission) []queue.Decision {
	s.Helper()
	decisions, err := s.q.SubmitBatch(s.ctx, batch, atomic)
	if err != nil || len(decisions) != len(batch) {
		s.Fatalf("SubmitBatch: %d decisions, %v", len(decisions), err)
	}
	return decisions
}

func batchInOrder(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 3 })
	var admitted []string
	for i, v := range s.batch(false, slices.Repeat([]queue.Submission{work()}, 5)...) {
		if i < 3 {
			equal(s, "the outcome", v.Outcome, shaper.Admitted)
			equal(s, "the position", v.Position, int64(i+1))
			admitted = append(admitted, v.Job.ID)
		} else {
			equal(s, "the outcome", v.Outcome, shaper.Full)
			equal(s, "the depth", v.Depth, 3)
		}
	}
	s.sameOrder(s.leaseUpTo(5, far), admitted...)
}

func atomicBatch(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 4 })
	s.admit(work())
	for _, v := range s.batch(true, slices.Repeat([]queue.Submission{work()}, 4)...) {
		equal(s, "the outcome", v.Outcome, shaper.Full)
		equal(s, "the depth in the decision", v.Depth, 1)
		if v.RetryAfter < time.Millisecond {
			s.Errorf("retry after is %v, though one departure makes room", v.RetryAfter)
		}
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 1)
	for _, v := range s.batch(true, slices.Repeat([]queue.Submission{work()}, 5)...) {
		equal(s, "the outcome of a batch beyond capacity", v.Outcome, shaper.Full)
		equal(s, "its retry after", v.RetryAfter, 0)
	}
	for i, v := range s.batch(true, slices.Repeat([]queue.Submission{work()}, 3)...) {
		equal(s, "the outcome", v.Outcome, shaper.Admitted)
		equal(s, "the position", v.Position, int64(i+2))
	}
}

// atomicRefusalTells: what was counted in before the refusal is not there.
func atomicRefusalTells(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	hasty := work()
	hasty.MaxWait = 90 * time.Second
	v := s.batch(true, hasty, hasty, hasty)[0]
	equal(s, "the outcome", v.Outcome, shaper.DeadlineUnreachable)
	equal(s, "the depth", v.Depth, 0)
	equal(s, "the bytes", v.Bytes, 0)
	equal(s, "the next slot", v.NextSlot, 0)
	keyed := work()
	keyed.IdempotencyKey = "k"
	s.admit(keyed)
	keyed.Payload = []byte(`{"n":2}`)
	v = s.batch(true, work(), work(), keyed)[0]
	equal(s, "the outcome", v.Outcome, shaper.KeyReused)
	equal(s, "the depth", v.Depth, 1)
}

func atomicBatchOverFlows(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 2 })
	other := work()
	other.Route = "reports"
	s.backlog(2, other)
	for _, v := range s.batch(true, work(), other) {
		equal(s, "the outcome", v.Outcome, shaper.Full)
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 2)
	s.lease(2)
	s.none()
}

func atomicKeyReused(s *suite) {
	s.admit(keyed())
	other := keyed()
	other.Payload = []byte(`{"n":2}`)
	for _, v := range s.batch(true, work(), other) {
		equal(s, "the outcome", v.Outcome, shaper.KeyReused)
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 1)
	again := s.batch(true, work(), keyed())
	equal(s, "the outcome of a new job", again[0].Outcome, shaper.Admitted)
	equal(s, "the outcome of the repeated key", again[1].Outcome, shaper.Replayed)
}

func atomicRefusalCounted(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 1 })
	s.admit(work())
	s.batch(true, work(), work())
	if n := s.tenant(tenant).Rejected; n < 1 {
		s.Errorf("%d refusals are counted after an atomic batch was refused", n)
	}
}

func batchSameID(s *suite) {
	w := work()
	w.ID, _ = s.q.NewID(tenant, "default")
	if _, err := s.q.SubmitBatch(s.ctx, []queue.Submission{w, work(), w}, false); err == nil {
		s.Error("a batch with one id twice was taken")
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 0)
}

func batchBounds(s *suite) {
	other := work()
	other.Tenant = "other"
	for what, batch := range map[string][]queue.Submission{
		"no job": {}, "1001 jobs": slices.Repeat([]queue.Submission{work()}, 1001), "two tenants": {work(), other},
	} {
		if _, err := s.q.SubmitBatch(s.ctx, batch, false); err == nil {
			s.Errorf("a batch of %s is taken", what)
		}
	}
	s.batch(true, slices.Repeat([]queue.Submission{work()}, 1000)...)
	equal(s, "the depth", s.tenant(tenant).Depth, 1000)
}

func scheduled(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Capacity = 1 })
	w := work()
	w.Delay = time.Hour
	v := s.submit(w)
	j := s.job(v.Job.ID)
	Compare(s, "a delayed job", Only(j, "State", "Position", "Scheduled"),
		queue.Job{State: shaper.Scheduled, Scheduled: j.Created.Add(time.Hour)})
	equal(s, "whether it starts before it is due", j.EstimatedStart.Before(j.Scheduled), false)
	full := s.submit(work())
	equal(s, "the outcome behind it", full.Outcome, shaper.Full)
	gap := full.Now.Add(full.RetryAfter).Sub(shaper.InstantOf(j.Scheduled))
	if gap < 0 || gap >= time.Millisecond {
		s.Errorf("retry after ends %v after the delay, want it to be then", gap)
	}
}

func scheduledBefore(s *suite) {
	before := work()
	before.Delay = -time.Millisecond / 2
	for _, v := range s.batch(false, before, work(), before) {
		equal(s, "the outcome", v.Outcome, shaper.Admitted)
		equal(s, "the state", v.Job.State, shaper.Queued)
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 3)
}

func scheduledLeaves(s *suite) {
	w := work()
	w.Delay = time.Minute
	eligible := shaper.InstantOf(s.job(s.admit(w).ID).Scheduled)
	s.leaseUpTo(1, near)
	tick := s.poll("w", pollOptions(1, near))
	if len(tick.Leases) > 0 || tick.Next != eligible {
		s.Errorf("a poll before its time brings %+v, want the next at %d", tick, eligible)
	}
	l := s.lease(1)[0]
	equal(s, "the stamp", l.Stamp, eligible)
	equal(s, "eligible", l.Eligible, eligible)
}

func scheduledBlocksNobody(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	w := work()
	w.Delay = 10 * time.Minute
	late, now := s.admit(w), s.backlog(2, work())
	scheduled := s.job(late.ID).Scheduled
	first, rest := s.lease(2), s.lease(1)
	s.sameOrder(slices.Concat(first, rest), now[0].ID, now[1].ID, late.ID)
	s.spaced(first, time.Minute)
	equal(s, "the stamp of the delayed job", rest[0].Stamp.Time(), scheduled)
}

func promotedGoesBehind(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	w := work()
	w.Delay = time.Second
	late, now := s.admit(w), s.backlog(3, work())
	s.sameOrder(s.lease(4), now[0].ID, now[1].ID, now[2].ID, late.ID)
}

func retryingKeepsSequence(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	jobs := s.backlog(3, work())
	s.settle(s.lease(1)[0], shaper.Retry, after(time.Second))
	s.sameOrder(s.lease(3), jobs[0].ID, jobs[1].ID, jobs[2].ID)
}
