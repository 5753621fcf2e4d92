package worker

import (
	"sync"
	"sync/atomic"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// job is a lease in this worker, from the poll that brought it until it is settled.
type job struct {
	lease    queue.Lease
	shard    int
	at       moment       // when it is to leave: its stamp by this process's clock
	deadline atomic.Int64 // the moment at which its lease ends unless it is extended
	ended    atomic.Bool  // only to be settled: its lease is no longer extended
	lost     atomic.Bool  // its lease is no longer the current one
}

func newJob(l queue.Lease, at, deadline moment) *job {
	j := &job{lease: l, at: at}
	j.deadline.Store(int64(deadline))
	return j
}

// instant is what the shard's clock says at m, counted from the stamp.
func (j *job) instant(m moment) shaper.Instant { return j.lease.Stamp.Add(m.since(j.at)) }

// ledger is the set of all jobs in this worker, for the heartbeat and for the stop.
type ledger struct {
	mu   sync.Mutex
	jobs map[*job]struct{}
	none chan struct{} // closed when the set is empty; nil without a call of empty
}

func newLedger() *ledger { return &ledger{jobs: make(map[*job]struct{})} }

func (l *ledger) add(jobs []*job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, j := range jobs {
		l.jobs[j] = struct{}{}
	}
}

func (l *ledger) remove(j *job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.jobs, j)
	if len(l.jobs) == 0 && l.none != nil {
		close(l.none)
		l.none = nil
	}
}

func (l *ledger) len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.jobs)
}

// empty returns a channel that is closed once no job is left. It is called once, when no more jobs
// come in.
func (l *ledger) empty() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	none := make(chan struct{})
	if len(l.jobs) == 0 {
		close(none)
	} else {
		l.none = none
	}
	return none
}

// endingBefore lists the jobs in the pacer or running whose lease ends before m.
func (l *ledger) endingBefore(m moment) []*job {
	l.mu.Lock()
	defer l.mu.Unlock()
	var jobs []*job
	for j := range l.jobs {
		if !j.ended.Load() && !j.lost.Load() && moment(j.deadline.Load()) < m {
			jobs = append(jobs, j)
		}
	}
	return jobs
}
