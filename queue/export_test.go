package queue

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/engine"
)

// HousekeepingEvery and HousekeepingBurst are the pace of housekeeping.
const (
	HousekeepingEvery = housekeepingEvery
	HousekeepingBurst = housekeepingBurst
)

// HasteRestarts shortens the pauses before the private redis-server is started again, until the end
// of the test.
func HasteRestarts(t *testing.T) {
	before := engine.RestartPause
	engine.RestartPause = time.Millisecond
	t.Cleanup(func() { engine.RestartPause = before })
}

// AddHook puts a hook round everything that the engine's clients send.
func (e *Engine) AddHook(h redis.Hook) {
	e.conn.Fast.AddHook(h)
	e.conn.Reads.AddHook(h)
	e.conn.Patient.AddHook(h)
}

// Waiting is the number of submissions that no exchange has taken yet.
func (q *Queue) Waiting() (n int) {
	q.flushers.mu.RLock()
	defer q.flushers.mu.RUnlock()
	for _, f := range q.flushers.by {
		n += f.lines.len()
	}
	return n
}

// AfterScript calls f after each script of the given name. Nothing may use the queue meanwhile.
func (q *Queue) AfterScript(name string, f func()) {
	before := q.store.Observe
	q.store.Observe = func(script string, took time.Duration, err error) {
		if before != nil {
			before(script, took, err)
		}
		if script == name {
			f()
		}
	}
}

// StopKeeping ends what the queue compares by itself now and then.
func (q *Queue) StopKeeping() { q.policies.Close() }

// AddWriteHook puts a hook round what the clients of the intake and of workers send, but not those
// that read.
func (e *Engine) AddWriteHook(h redis.Hook) {
	e.conn.Fast.AddHook(h)
	e.conn.Patient.AddHook(h)
}

// RefreshKeys reads the keys again, as a process does every five seconds.
func (q *Queue) RefreshKeys(ctx context.Context) error { return q.box.Refresh(ctx) }

// RegularsOf returns the names of the regulars after polls that brought these jobs.
func RegularsOf(polls ...[]Lease) []string {
	var r regulars
	for i, leases := range polls {
		r.note(time.Unix(int64(3*i), 0), leases)
	}
	return r.names(nil)
}

// StoreEach sets how often parts are stored while only this process reads the answer.
func (r *Relay) StoreEach(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seldom = d
}

// HeldParts is how many bytes count as parts of answers that this process passes on.
func (q *Queue) HeldParts() int64 { return q.broker.parts.sum() }
