package queuetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

var workerTests = map[string]func(*suite){
	"a worker with heartbeats is live, in sorted order": beat,
	"a worker that leaves is gone at once":              leave,
	"a worker without heartbeats is gone":               beatTTL,
	"the first wake is for all shards":                  wakeFirst,
	"a submission wakes its shard":                      wakeSubmit,
	"a submission behind a backlog sends no wake-up":    wakeNobody,
	"a resumed, retuned or settled flow wakes":          wakeTune,
	"a worker that leaves wakes all shards":             wakeLeave,
	"a call for help names its shard":                   wakeHelp,
	"wake-ups end with their context":                   wakesEnd,
}

var watchTests = map[string]func(*suite){
	"the end is signalled":                     watchEnd,
	"every kind of end is signalled":           watchEveryEnd,
	"all watchers of a job are signalled":      watchSeveral,
	"an end after the watch began is not lost": watchNoLostEnd,
	"a stopped watch gets no signal":           watchStop,
	"a watch begun again works":                watchAgain,
	"a watch of an ended job signals at once":  watchDone,
	"a cancelled watch leaves others alone":    watchCancelled,
	"watches of many jobs end side by side":    watchMany,
}

func (s *suite) beat(worker string, ttl time.Duration) []string {
	s.Helper()
	b, err := s.q.Broker().Heartbeat(s.ctx, worker, ttl)
	if err != nil {
		s.Fatalf("Heartbeat: %v", err)
	}
	return b.Live
}

func beat(s *suite) {
	s.beat("c", time.Hour)
	s.beat("a b", time.Hour)
	s.beat("c", time.Hour)
	if live := s.beat("b", time.Hour); !slices.Equal(live, []string{"a b", "b", "c"}) {
		s.Errorf("live are %q", live)
	}
}

func leave(s *suite) {
	s.beat("a", time.Hour)
	s.beat("b", time.Hour)
	for range 2 {
		if err := s.q.Broker().Leave(s.ctx, "a"); err != nil {
			s.Fatalf("Leave: %v", err)
		}
	}
	if live := s.beat("b", time.Hour); !slices.Equal(live, []string{"b"}) {
		s.Errorf("live are %q", live)
	}
}

func beatTTL(s *suite) {
	s.beat("silent", time.Hour)
	s.await("the silent worker to be gone", func() bool {
		return slices.Equal(s.beat("b", 50*time.Millisecond), []string{"b"})
	})
}

// wakes listens and waits for the first wake. On a cluster, the node of the shard, which is not
// that of the workers, has one of its own.
func (s *suite) wakes() <-chan queue.Wake {
	s.Helper()
	c := s.q.Broker().Wakes(s.ctx)
	first := receive(s, "the first wake", c)
	if _, cluster := s.engine.Client().(*redis.ClusterClient); cluster {
		if second := receive(s, "the second wake", c); first.Shard == 0 {
			first = second
		}
	}
	equal(s, "the first wake", first, queue.Wake{Shard: queue.AllShards})
	return c
}

func wakeFirst(s *suite) { s.wakes() }

func wakeSubmit(s *suite) {
	s.warm()
	c := s.wakes()
	s.admit(work())
	equal(s, "the wake", receive(s, "a wake", c), queue.Wake{Shard: 0})
}

func wakeNobody(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate = slow })
	s.backlog(2, work())
	equal(s, "the number of leases", len(s.leaseUpTo(2, near)), 1)
	s.poll("w", pollOptions(1, near)) // plans the next poll
	c := s.wakes()
	s.backlog(5, work())
	if err := s.q.Broker().Leave(s.ctx, "x"); err != nil {
		s.Fatalf("Leave: %v", err)
	}
	equal(s, "the only wake", receive(s, "a wake", c), queue.Wake{Shard: queue.AllShards})
}

func wakeTune(s *suite) {
	s.policy(func(p *shaper.Policy) { p.Rate, p.Concurrency = slow, 1 })
	c := s.wakes()
	s.backlog(3, work())
	receive(s, "a wake by the submission", c)
	l := s.lease(1)[0]
	s.none() // nothing is planned at the cap, but for the sweep
	s.tune(func(o *shaper.Overrides) { o.Rate, o.Concurrency = &quick, pointer(int64(0)) })
	equal(s, "the wake by a retune", receive(s, "a wake by a retune", c), queue.Wake{Shard: 0})
	s.lease(2)
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	s.admit(work())
	s.none()
	s.tune(func(o *shaper.Overrides) { o.Paused = nil })
	equal(s, "the wake by a resume", receive(s, "a wake by a resume", c), queue.Wake{Shard: 0})
	s.lease(1)
	s.settle(l, shaper.Retry)
	equal(s, "the wake by a settlement", receive(s, "a wake by a settlement", c), queue.Wake{Shard: 0})
}

func wakeLeave(s *suite) {
	c := s.wakes()
	if err := s.q.Broker().Leave(s.ctx, "w"); err != nil {
		s.Fatalf("Leave: %v", err)
	}
	equal(s, "the wake", receive(s, "a wake", c), queue.Wake{Shard: queue.AllShards})
}

func wakeHelp(s *suite) {
	s.warm()
	c := s.wakes()
	o := pollOptions(0, near)
	for _, step := range []struct {
		signal queue.HelpSignal
		want   bool
	}{
		{queue.HelpKeep, false}, {queue.HelpRaise, true}, {queue.HelpKeep, true}, {queue.HelpClear, false},
		{queue.HelpKeep, false},
	} {
		o.Help = step.signal
		equal(s, "help", s.poll("w", o).Help, step.want)
		if step.signal == queue.HelpRaise {
			equal(s, "the wake", receive(s, "a wake", c), queue.Wake{Shard: 0, Help: true})
		}
	}
}

func wakesEnd(s *suite) {
	ctx, cancel := context.WithCancel(s.ctx)
	c := s.q.Broker().Wakes(ctx)
	receive(s, "the first wake", c)
	cancel()
	s.await("the channel to be closed", func() bool {
		select {
		case _, open := <-c:
			return !open
		default:
			return false
		}
	})
}

func (s *suite) watch(id string) (<-chan queue.End, func()) {
	s.Helper()
	ended, stop, err := s.q.Watch(s.ctx, id)
	if err != nil {
		s.Fatalf("Watch: %v", err)
	}
	s.Cleanup(stop) // once more, where the test has called it: that must do no harm
	return ended, stop
}

// awaitEnd follows signals, which may be spurious, until the job has ended.
func (s *suite) awaitEnd(id string, ended <-chan queue.End) {
	s.Helper()
	for !s.job(id).State.Done() {
		receive(s, "the end of the job", ended)
	}
}

func watchEnd(s *suite) {
	id := s.admit(work()).ID
	ended, _ := s.watch(id)
	s.settle(s.lease(1)[0], shaper.Succeed)
	receive(s, "the end", ended)
	equal(s, "the state", s.job(id).State, shaper.Succeeded)
}

func watchEveryEnd(s *suite) {
	w := work()
	w.MaxWait = 50 * time.Millisecond
	s.tune(func(o *shaper.Overrides) { o.Paused = pointer(true) })
	overdue := s.admit(w).ID
	ended, _ := s.watch(overdue)
	s.await("the job to expire", func() bool {
		s.poll("w", pollOptions(1, near))
		return s.job(overdue).State.Done()
	})
	receive(s, "the expiry", ended)
	s.tune(func(o *shaper.Overrides) { o.Paused = nil })
	cancelled := s.admit(work()).ID
	ended, _ = s.watch(cancelled)
	s.cancel(cancelled)
	receive(s, "the cancellation", ended)
	dead := s.admit(work()).ID
	ended, _ = s.watch(dead)
	s.settle(s.lease(1)[0], shaper.Die)
	receive(s, "the death", ended)
	equal(s, "the state", s.job(dead).State, shaper.Dead)
}

func watchSeveral(s *suite) {
	id := s.admit(work()).ID
	var all []<-chan queue.End
	for range 5 {
		ended, _ := s.watch(id)
		all = append(all, ended)
	}
	s.settle(s.lease(1)[0], shaper.Succeed)
	for _, ended := range all {
		receive(s, "the end", ended)
	}
}

// watchNoLostEnd: the job ends at any instant around the watch and the read after it. A watch whose
// read found it unfinished is signalled.
func watchNoLostEnd(s *suite) {
	jobs := s.backlog(100, work())
	leases := s.lease(100)
	var all sync.WaitGroup
	for i, j := range jobs {
		all.Go(func() { s.settle(leases[i], shaper.Succeed) })
		ended, stop := s.watch(j.ID)
		s.awaitEnd(j.ID, ended)
		stop()
	}
	all.Wait()
}

func watchStop(s *suite) {
	jobs := s.backlog(2, work())
	ended, stop := s.watch(jobs[0].ID)
	other, _ := s.watch(jobs[1].ID)
	stop()
	stop()
	for _, l := range s.lease(2) {
		s.settle(l, shaper.Succeed)
	}
	receive(s, "the end of the other job", other) // it was signalled after the first
	select {
	case <-ended:
		s.Error("a stopped watch was signalled")
	default:
	}
}

func watchAgain(s *suite) {
	id := s.admit(work()).ID
	for range 20 {
		_, stop := s.watch(id)
		stop()
	}
	ended, _ := s.watch(id)
	s.settle(s.lease(1)[0], shaper.Succeed)
	s.awaitEnd(id, ended)
}

func watchDone(s *suite) {
	id := s.admit(work()).ID
	s.cancel(id)
	ended, _ := s.watch(id)
	s.awaitEnd(id, ended)
}

func watchCancelled(s *suite) {
	jobs := s.backlog(2, work())
	ended, _ := s.watch(jobs[0].ID)
	gone, cancel := context.WithCancel(s.ctx)
	cancel()
	if _, _, err := s.q.Watch(gone, jobs[1].ID); err == nil {
		s.Error("a watch under an ended context began")
	}
	for _, l := range s.lease(2) {
		s.settle(l, shaper.Succeed)
	}
	s.awaitEnd(jobs[0].ID, ended)
}

// watchMany: while many watches begin, the jobs of many others end at one blow, so that their
// signals pile up behind the subscriptions.
func watchMany(s *suite) {
	const n = 250
	s.policy(func(p *shaper.Policy) { p.Capacity = 2 * n })
	jobs := s.backlog(2*n, work())
	var ends []queue.Settlement
	for _, l := range s.lease(2 * n) {
		ends = append(ends, queue.Settlement{LeaseRef: l.LeaseRef, Tenant: l.Tenant, Event: shaper.Succeed, MaxAttempts: 3})
	}
	seen := make(chan error, 2*n)
	reads := make(chan struct{}, 8) // tokens; fewer than the connections, so that no read waits for one
	begin := func(jobs []queue.Job) (begun *sync.WaitGroup) {
		begun = &sync.WaitGroup{}
		begun.Add(len(jobs))
		for _, j := range jobs {
			go func() { seen <- s.untilEnd(j.ID, begun.Done, reads) }()
		}
		return begun
	}
	begin(jobs[:n]).Wait()
	second := begin(jobs[n:])
	if _, err := s.q.Broker().Settle(s.ctx, ends[:n]); err != nil {
		s.Errorf("Settle: %v", err)
	}
	second.Wait()
	if _, err := s.q.Broker().Settle(s.ctx, ends[n:]); err != nil {
		s.Errorf("Settle: %v", err)
	}
	for i := range 2 * n {
		if err := receive(s, fmt.Sprintf("the end of %d jobs, seen by %d", 2*n, i), seen); err != nil {
			s.Fatalf("a watcher: %v", err)
		}
	}
}

// untilEnd watches a job until it reads as done. Each read holds a token.
func (s *suite) untilEnd(id string, begun func(), reads chan struct{}) error {
	ctx, cancel := context.WithTimeout(s.ctx, limit)
	defer cancel()
	ended, stop, err := s.q.Watch(ctx, id)
	begun()
	if err != nil {
		return err
	}
	defer stop()
	for {
		reads <- struct{}{}
		j, err := s.q.Job(ctx, tenant, id)
		<-reads
		if err != nil || j.State.Done() {
			return err
		}
		select {
		case <-ended:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
