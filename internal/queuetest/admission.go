package queuetest

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var admissionTests = map[string]func(*suite){
	"concurrent submissions fill exactly the capacity":                boundUnderConcurrency,
	"a decision has position, depth and remaining":                    decisionFacts,
	"retry-after ends when capacity frees":                            retryAfterIsWhenASlotFrees,
	"the stamp is the estimated start":                                estimateBecomesStamp,
	"a refusal leaves no trace in the queue":                          refusalLeavesNoTrace,
	"refusals are counted":                                            refusalsCounted,
	"the decision has the stored job":                                 decisionJobIsStored,
	"a paused flow admits but promises no start":                      pausedFlowAdmits,
	"a full paused flow promises no time":                             fullPausedFlow,
	"capacity 0 admits nothing":                                       capacityZero,
	"a deadline that cannot be met is refused":                        deadlineUnreachable,
	"costs that are estimates refuse no job that could leave in time": deadlineByEstimates,
	"a deadline is not checked while paused":                          deadlineWhilePaused,
	"a job that waited too long expires and takes no slot":            overdueExpires,
	"the policy's max wait holds where the job has none":              policyMaxWait,
	"a job of cost 3 takes three intervals":                           costTakesIntervals,
	"the estimate counts the costs of those that leave next":          estimateOfUnequal,
	"burst jobs leave together, then the spacing holds":               burstThenSpacing,
	"an id is not admitted twice":                                     sameIDTwice,
	"the payload comes back byte for byte":                            payloadBytes,
	"values that cannot be stored are refused":                        unstorable,
	"an id of another shard or of none is refused":                    foreignID,
	"each flow of a tenant has its own bound":                         flowsApart,
	"bytes count as they are stored":                                  storedBytesFit,
	"an atomic batch counts a key once":                               batchFitsByKeys,
	"never is the answer where any bound says so":                     neverByAnyBound,
}

func boundUnderConcurrency(s *suite) {
	const capacity, submitters, each = 50, 8, 25
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, capacity })
	decisions := make(chan queue.Decision, submitters*each)
	var all sync.WaitGroup
	for range submitters {
		all.Go(func() {
			for range each {
				v, err := s.q.Submit(s.ctx, work())
				if err != nil {
					s.Errorf("Submit: %v", err)
				}
				decisions <- v
			}
		})
	}
	all.Wait()
	close(decisions)
	admitted := map[int64]bool{}
	for v := range decisions {
		switch v.Outcome {
		case shaper.Admitted:
			admitted[v.Position] = true
		case shaper.Full:
			if v.Depth != capacity || v.Capacity != capacity || v.Remaining != 0 || v.RetryAfter < time.Millisecond {
				s.Errorf("refused with %+v", v.Admission)
			}
		default:
			s.Errorf("outcome %s", v.Outcome)
		}
	}
	equal(s, "the number of different positions", len(admitted), capacity)
	equal(s, "the depth", s.tenant(tenant).Depth, capacity)
	s.lease(capacity)
}

func decisionFacts(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 5 })
	for i := range int64(5) {
		v := s.submit(work())
		equal(s, "the outcome", v.Outcome, shaper.Admitted)
		equal(s, "the position", v.Position, i+1)
		equal(s, "the depth", v.Depth, i+1)
		equal(s, "what remains", v.Remaining, 4-i)
		equal(s, "the rate", v.Rate, slow)
		equal(s, "the estimate from now", v.Start.Sub(v.Now), time.Duration(i)*time.Minute)
		j := v.Job
		Compare(s, "the job", Only(j, "State", "Position", "EstimatedStart"),
			queue.Job{State: shaper.Queued, Position: i + 1, EstimatedStart: v.Start.Time()})
	}
}

func retryAfterIsWhenASlotFrees(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 2 })
	s.backlog(2, work())
	first := s.lease(1)[0]
	s.admit(work())
	v := s.submit(work())
	equal(s, "the outcome", v.Outcome, shaper.Full)
	retry, frees := v.Now.Add(v.RetryAfter), first.Stamp.Add(time.Minute)
	if late := retry.Sub(frees); late < 0 || late >= time.Millisecond {
		s.Errorf("retry-after ends %v after capacity frees, want it rounded up to a millisecond", late)
	}
	if next := v.Now.Add(v.NextSlot); next != frees {
		s.Errorf("the next slot is at %v, want %v", next, frees)
	}
}

func estimateBecomesStamp(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(2, work())
	s.lease(1)
	last := s.admit(work())
	for _, want := range []time.Time{
		s.job(last.ID).EstimatedStart.Add(-time.Minute), s.job(last.ID).EstimatedStart,
	} {
		if l := s.lease(1)[0]; !l.Stamp.Time().Equal(want) {
			s.Errorf("stamped %v, the estimate was %v", l.Stamp.Time(), want)
		}
	}
}

func refusalLeavesNoTrace(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 1 })
	kept := s.admit(work())
	refused := work()
	refused.ID, _ = s.q.NewID(tenant, "default")
	refused.IdempotencyKey = "k"
	equal(s, "the outcome", s.submit(refused).Outcome, shaper.Full)
	if _, err := s.q.Job(s.ctx, tenant, refused.ID); !errors.Is(err, queue.ErrNotFound) {
		s.Errorf("a refused job reads as %v, want ErrNotFound", err)
	}
	t := s.tenant(tenant)
	equal(s, "the depth", t.Depth, 1)
	equal(s, "admitted", t.Admitted, 1)
	s.sameOrder(s.leaseUpTo(2, far), kept.ID)
}

func refusalsCounted(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 0 })
	for n := int64(1); n <= 3; n++ {
		s.submit(work())
		if got := s.tenant(tenant).Rejected; got < n {
			s.Errorf("%d refusals are counted after %d", got, n)
		}
	}
}

func decisionJobIsStored(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	later := work()
	later.Delay = time.Hour
	for _, w := range []queue.Submission{work(), keyed(), keyed(), later} {
		decided := s.submit(w).Job
		kept := s.job(decided.ID)
		decided.EstimatedStart, kept.EstimatedStart = time.Time{}, time.Time{} // as of two instants
		if diff := cmp.Diff(kept, decided); diff != "" {
			s.Errorf("the job of the decision differs from the stored one (-stored +decision):\n%s", diff)
		}
	}
}

func pausedFlowAdmits(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	v := s.submit(work())
	equal(s, "the outcome", v.Outcome, shaper.Admitted)
	equal(s, "the position", v.Position, 1)
	equal(s, "the start", v.Start, 0)
	if j := s.job(v.Job.ID); !j.EstimatedStart.IsZero() || !v.Job.EstimatedStart.IsZero() || j.Position != 1 {
		s.Errorf("a job of a paused flow is %+v", j)
	}
	s.none()
	s.tune(func(o *shaper.Overrides) { o.Paused = nil })
	s.sameOrder(s.lease(1), v.Job.ID)
}

func fullPausedFlow(s *suite) {
	s.tune(func(o *shaper.Overrides) { o.Paused, o.Capacity = pointer(true), pointer(int64(1)) })
	s.admit(work())
	v := s.submit(work())
	equal(s, "the outcome", v.Outcome, shaper.Full)
	equal(s, "retry after", v.RetryAfter, 0)
}

func capacityZero(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Capacity = 0 })
	v := s.submit(work())
	equal(s, "the outcome", v.Outcome, shaper.Full)
	equal(s, "retry after", v.RetryAfter, 0)
}

func deadlineUnreachable(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	w := work()
	w.MaxWait = time.Second
	first, second := s.submit(w), s.submit(w)
	equal(s, "the first outcome", first.Outcome, shaper.Admitted)
	equal(s, "the second outcome", second.Outcome, shaper.DeadlineUnreachable)
	equal(s, "the estimated wait", second.Start.Sub(second.Now), time.Minute)
	w.MaxWait = time.Minute + time.Second
	s.admit(w)
	w.Delay, w.MaxWait = time.Hour, time.Minute
	equal(s, "the outcome of a delay beyond the wait", s.submit(w).Outcome, shaper.DeadlineUnreachable)
	equal(s, "the depth", s.tenant(tenant).Depth, 2)
}

func deadlineByEstimates(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	w := work()
	w.Estimated, w.Cost, w.MaxWait = true, 16, time.Minute
	s.admit(w)
	s.lease(1)
	s.admit(w) // at a sixteenth of its cost the first makes it wait for a minute
	v := s.submit(w)
	equal(s, "the outcome behind two", v.Outcome, shaper.DeadlineUnreachable)
	equal(s, "the estimated wait", v.Start.Sub(v.Now).Round(time.Second), 32*time.Minute)
	w.Delay = time.Minute + time.Millisecond
	equal(s, "the outcome of a delay beyond the wait", s.submit(w).Outcome, shaper.DeadlineUnreachable)
}

func deadlineWhilePaused(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Paused = slow, true })
	w := work()
	w.MaxWait = 20 * time.Millisecond
	jobs := s.backlog(2, w)
	s.await("the jobs to expire", func() bool {
		s.poll("w", pollOptions(1, near))
		return s.job(jobs[0].ID).State == shaper.Expired && s.job(jobs[1].ID).State == shaper.Expired
	})
	equal(s, "the depth", s.tenant(tenant).Depth, 0)
}

func overdueExpires(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	w := work()
	first := s.admit(w)
	w.MaxWait = 2*time.Minute + 20*time.Millisecond
	overdue := s.backlog(2, w)
	last := s.admit(work())
	s.sameOrder(s.lease(1), first.ID)
	s.tune(func(o *shaper.Overrides) { o.Rate = &shaper.Rate{Limit: 1, Period: time.Hour} })
	// At one an hour the next stamp is past their deadlines: a poll that comes to them ends them.
	leases := s.leaseUpTo(1, 2*far)
	s.sameOrder(leases, last.ID)
	for _, j := range overdue {
		got := s.job(j.ID)
		if got.State != shaper.Expired || got.Finished.IsZero() {
			s.Errorf("an overdue job is %+v", got)
		}
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 0)
}

func policyMaxWait(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.MaxWait = slow, time.Second })
	s.admit(work())
	equal(s, "the outcome", s.submit(work()).Outcome, shaper.DeadlineUnreachable)
	w := work()
	w.MaxWait = time.Hour
	s.admit(w)
}

func costTakesIntervals(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	w := work()
	w.Cost = 3
	s.backlog(3, w)
	v := s.submit(w)
	equal(s, "the estimate behind cost 9", v.Start.Sub(v.Now), 9*time.Minute)
	s.spaced(s.lease(4), 3*time.Minute)
}

// estimateOfUnequal: a mean of the waiting costs would give each the same distance.
func estimateOfUnequal(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	var jobs []string
	for _, cost := range []int64{1, 20, 1, 7, 2, 1} {
		w := work()
		w.Cost = cost
		jobs = append(jobs, s.admit(w).ID)
	}
	var starts []time.Time
	for _, id := range jobs {
		starts = append(starts, s.job(id).EstimatedStart)
	}
	for i, l := range s.lease(6) {
		if i > 0 {
			within(s, "the estimate", l.Stamp.Time().Sub(starts[i]), 0, limit)
		}
	}
}

func burstThenSpacing(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Burst = slow, 3 })
	s.backlog(6, work())
	leases := s.lease(6)
	s.spaced(leases[:3], 0)
	s.spaced(leases[2:], time.Minute)
}

func sameIDTwice(s *suite) {
	w := work()
	w.ID, _ = s.q.NewID(tenant, "default")
	first, again := s.submit(w), s.submit(w)
	equal(s, "the outcome", again.Outcome, shaper.Admitted)
	equal(s, "the id", again.Job.ID, first.Job.ID)
	equal(s, "the position", again.Position, first.Position)
	equal(s, "the depth", s.tenant(tenant).Depth, 1)
	s.lease(1)
	equal(s, "the outcome once leased", s.submit(w).Outcome, shaper.Admitted)
	s.none()
}

func payloadBytes(s *suite) {
	payloads := [][]byte{nil, []byte("\x00\xff\r\n{}"), bytes.Repeat([]byte{0xfe}, 300_000)}
	for _, p := range payloads {
		w := work()
		w.Payload = p
		s.admit(w)
	}
	for i, l := range s.lease(len(payloads)) {
		if !bytes.Equal(l.Payload, payloads[i]) {
			s.Errorf("payload %d came back as %d bytes %.20q", i, len(l.Payload), l.Payload)
		}
	}
}

func unstorable(s *suite) {
	for what, change := range map[string]func(*queue.Submission){
		"a type of 256 bytes": func(w *queue.Submission) { w.Type = strings.Repeat("t", 256) },
		"cost 1000001":        func(w *queue.Submission) { w.Cost = shaper.MaxCost + 1 },
		"cost 4294967297":     func(w *queue.Submission) { w.Cost = 1<<32 + 1 },
		"65,536 attempts":     func(w *queue.Submission) { w.MaxAttempts = 1 << 16 },
		"-1 attempts":         func(w *queue.Submission) { w.MaxAttempts = -1 },
	} {
		w := work()
		change(&w)
		if v, err := s.q.Submit(s.ctx, w); err == nil || errors.Is(err, queue.ErrUnavailable) {
			s.Errorf("%s: %s, %v, want an error of the caller", what, v.Outcome, err)
		}
	}
	equal(s, "the position of a job that can be stored", s.admit(work()).Position, 1)
}

// foreignID: a job under such an id could be leased, but neither read nor settled.
func foreignID(s *suite) {
	id, _ := s.q.NewID(tenant, "default")
	for _, id := range []string{"x", id + "x", id[:27] + "1"} {
		w := work()
		w.ID = id
		if v, err := s.q.Submit(s.ctx, w); err == nil {
			s.Errorf("id %q: %s, want an error", id, v.Outcome)
		}
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 0)
}

func flowsApart(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 1 })
	other := work()
	other.Route = "reports"
	s.admit(work())
	equal(s, "the outcome", s.submit(work()).Outcome, shaper.Full)
	s.admit(other)
	equal(s, "the tenant's depth", s.tenant(tenant).Depth, 2)
	s.lease(2)
}

func storedBytesFit(s *suite) {
	s.restart(func(o *queue.Options) { o.CompressOver, o.Defaults.CapacityBytes, o.Defaults.Rate = 1000, 1000, slow })
	s.admit(sized(999))
	thin := s.submit(sized(100_000)) // shrinks to less than a hundredth
	equal(s, "the outcome", thin.Outcome, shaper.FullOfBytes)
	equal(s, "whether it never fits", thin.Never, false)
	if thin.AskedBytes > 1000 || thin.RetryAfter <= 0 {
		s.Errorf("it needs %d bytes, retry after %v; want its stored bytes and a time", thin.AskedBytes, thin.RetryAfter)
	}
	equal(s, "whether the time is an estimate", thin.Estimated, true)
	s.restart(func(o *queue.Options) { o.Defaults.CapacityBytes, o.Defaults.Rate = 1000, slow })
	equal(s, "whether it fits without compression", s.submit(sized(100_000)).Never, true)
}

func batchFitsByKeys(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity = slow, 2 })
	keyed := func(keys ...string) (batch []queue.Submission) {
		for _, key := range keys {
			w := work()
			w.IdempotencyKey = key
			batch = append(batch, w)
		}
		return batch
	}
	v := s.batch(true, keyed("a", "b", "c")...)[0]
	equal(s, "the outcome of three", v.Outcome, shaper.Full)
	equal(s, "that it never fits", v.Never, true)
	for i, d := range s.batch(true, keyed("a", "a", "b")...) {
		equal(s, "the outcome with a key twice", d.Outcome,
			[]shaper.Outcome{shaper.Admitted, shaper.Replayed, shaper.Admitted}[i])
	}
	equal(s, "the depth", s.tenant(tenant).Depth, 2)
	v = s.batch(true, keyed("a", "c", "d")...)[0]
	equal(s, "the outcome of a known key and two more", v.Outcome, shaper.Full)
	equal(s, "the jobs that need a place", v.Asked, 2)
	equal(s, "whether they never fit", v.Never, false)
	if v.RetryAfter <= 0 {
		s.Error("no time to come again, want when both have left")
	}
}

func neverByAnyBound(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Capacity, p.CapacityBytes = slow, 2, 100 })
	s.backlog(2, sized(10))
	v := s.submit(sized(101)) // there is no place either, but one comes
	equal(s, "the outcome", v.Outcome, shaper.FullOfBytes)
	equal(s, "that it never fits", v.Never, true)
	equal(s, "retry after", v.RetryAfter, 0)
	s.pool(func(o *shaper.Overrides) { o.Capacity = pointer(int64(4)) }, nil)
	s.tune(func(o *shaper.Overrides) { o.Capacity = pointer(int64(4)) })
	s.backlog(2, pooledWork(tenant))
	whole := s.batch(true, slices.Repeat([]queue.Submission{pooledWork(tenant)}, 4)...)[0]
	equal(s, "the outcome for a batch as large as the pool", whole.Outcome, shaper.Full)
	equal(s, "that it is the pool", whole.OfPool, true)
	equal(s, "that it never fits", whole.Never, true)
}
