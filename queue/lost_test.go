package queue_test

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// twice sends every script that is answered a second time, as go-redis does when the answer is
// lost, and hands over the second answer. Only a settlement says something else the second time,
// that it is repeated; there the first answer is handed over.
type twice struct{}

func (twice) DialHook(next redis.DialHook) redis.DialHook { return next }

func (twice) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		switch second, settles := resend(ctx, cmd); {
		case second == nil:
			return err
		case settles:
			return next(ctx, second)
		}
		return next(ctx, cmd)
	}
}

func (twice) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if second, settles := resend(ctx, cmd); second == nil || settles {
				return err
			}
		}
		return next(ctx, cmds)
	}
}

// resend is the same command once more, nil for one that is no script or failed.
func resend(ctx context.Context, cmd redis.Cmder) (second redis.Cmder, settles bool) {
	if cmd.Name() != "evalsha" || cmd.Err() != nil {
		return nil, false
	}
	settle := scripts.Commands.Settle
	return redis.NewCmd(ctx, cmd.Args()...), cmd.Args()[1] == settle.SHA() || cmd.Args()[1] == settle.Pools.SHA()
}

// lossy lets a script run and drops its answer, as often as it is armed to.
type lossy struct {
	sha  string
	lose atomic.Int64
}

func (l *lossy) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *lossy) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if err != nil || cmd.Name() != "evalsha" || cmd.Args()[1] != l.sha || l.lose.Add(-1) < 0 {
			return err
		}
		cmd.SetErr(io.ErrUnexpectedEOF)
		return io.ErrUnexpectedEOF
	}
}

func (l *lossy) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// TestConformanceSentTwice runs the suite where every script is sent twice (invariant 7).
func TestConformanceSentTwice(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: make test-long runs it")
	}
	t.Parallel()
	queuetest.Run(t, func(t *testing.T) *queue.Engine { return openEngine(t, lent(t), twice{}) })
}

var engines = map[string]func(t *testing.T) queue.EngineOptions{
	"redis":    lent,
	"embedded": func(*testing.T) queue.EngineOptions { return queue.EngineOptions{Embedded: true} },
}

// onEngines runs a test with a queue of one shard on each engine, whose answers to the script can
// be lost.
func onEngines(
	t *testing.T, script *scripts.Script, rate shaper.Rate, test func(t *testing.T, q *queue.Queue, l *lossy),
) {
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &lossy{sha: script.SHA()}
			test(t, open(t, options(t), func(o *queue.Options) { o.Shards, o.Defaults.Rate = 1, rate }, l), l)
		})
	}
}

var slow = shaper.Rate{Limit: 1, Period: time.Minute}

// TestLostTickAnswer: the worker calls again and gets the same jobs under the same epochs, however
// often the answer is lost; the call after that brings the next ones.
func TestLostTickAnswer(t *testing.T) {
	onEngines(t, scripts.Commands.Tick, slow, func(t *testing.T, q *queue.Queue, l *lossy) {
		var ids []string
		for range 5 {
			ids = append(ids, admit(t, q))
		}
		c := q.Broker().Consumer("w", 0)
		o := looking
		o.Max = 0
		for range 3 {
			if _, err := c.Tick(t.Context(), o); err != nil { // judges the default policy
				t.Fatalf("Tick: %v", err)
			}
		}
		o.Max = 2
		var all []queue.Lease
		for _, lost := range []int{1, 3, 0} {
			l.lose.Store(int64(lost))
			for range lost {
				if tick, err := c.Tick(t.Context(), o); !errors.Is(err, queue.ErrUnavailable) || len(tick.Leases) > 0 {
					t.Fatalf("Tick with a lost answer: %+v, %v", tick, err)
				}
			}
			l.lose.Store(0)
			for want := min(2, 5-len(all)); want > 0; {
				tick, err := c.Tick(t.Context(), o)
				if err != nil {
					t.Fatalf("Tick: %v", err)
				}
				want -= len(tick.Leases)
				all = append(all, tick.Leases...)
			}
		}
		if len(all) != 5 {
			t.Fatalf("leased %d jobs, want 5", len(all))
		}
		for i, lease := range all {
			if lease.ID != ids[i] || lease.Epoch != 1 {
				t.Errorf("lease %d is %+v, want job %s with epoch 1", i, lease, ids[i])
			}
			if i > 0 && lease.Stamp.Sub(all[i-1].Stamp) < time.Minute {
				t.Errorf("stamps %d and %d are %v apart", i-1, i, lease.Stamp.Sub(all[i-1].Stamp))
			}
			r, err := q.Broker().Settle(t.Context(), []queue.Settlement{{
				LeaseRef: lease.LeaseRef, Event: shaper.Succeed, MaxAttempts: 3,
			}})
			if err != nil || r[0] != queue.Settled {
				t.Errorf("Settle: %v, %v", r, err)
			}
		}
		tenant, err := q.Tenant(t.Context(), "acme")
		if err != nil {
			t.Errorf("Tenant: %v", err)
		}
		queuetest.Compare(t, "the figures at the end",
			queuetest.Only(tenant.Figures, "Running", "Depth", "Departed", "Succeeded"),
			queue.Figures{Departed: 5, Succeeded: 5})
	})
}

// TestLostTickAnswerOvertaken: another worker has leased meanwhile, and the lost stamps are long
// past: the jobs go back to the queue, in their order, and the rate holds.
func TestLostTickAnswerOvertaken(t *testing.T) {
	const interval = 50 * time.Millisecond
	rate := shaper.Rate{Limit: 20, Period: time.Second}
	onEngines(t, scripts.Commands.Tick, rate, func(t *testing.T, q *queue.Queue, l *lossy) {
		c := q.Broker().Consumer("w", 0)
		leaseAll(t, c) // the shard is new to Redis
		ids := []string{admit(t, q), admit(t, q), admit(t, q)}
		o := looking
		o.Max, o.Horizon = 1, time.Millisecond
		l.lose.Store(1 << 30)
		queuetest.Await(t, "a job to be leased unseen", func() bool {
			_, err := c.Tick(t.Context(), o)
			j, read := q.Job(t.Context(), "acme", ids[0])
			return err != nil && read == nil && j.State == shaper.Leased
		})
		l.lose.Store(0)
		other := q.Broker().Consumer("x", 0)
		var got []queue.Lease
		queuetest.Await(t, "another worker to lease the next", func() bool {
			tick, err := other.Tick(t.Context(), o)
			got = append(got, tick.Leases...)
			return err == nil && len(got) == 1
		})
		queuetest.Await(t, "the lost job and the last", func() bool {
			tick, err := c.Tick(t.Context(), o)
			got = append(got, tick.Leases...)
			return err == nil && len(got) == 3
		})
		for i, want := range []string{ids[1], ids[0], ids[2]} {
			if got[i].ID != want {
				t.Errorf("job %d to leave is %s, want %s", i, got[i].ID, want)
			}
			if i > 0 && got[i].Stamp.Sub(got[i-1].Stamp) < interval {
				t.Errorf("stamps %d and %d are %v apart, want at least %v", i-1, i,
					got[i].Stamp.Sub(got[i-1].Stamp), interval)
			}
		}
	})
}

// TestLostSettleAnswer: the same settlement again says that it came before, and nothing is counted
// twice.
func TestLostSettleAnswer(t *testing.T) {
	onEngines(t, scripts.Commands.Settle, slow, func(t *testing.T, q *queue.Queue, l *lossy) {
		admit(t, q)
		lease := leaseAll(t, q.Broker().Consumer("w", 0))[0]
		batch := []queue.Settlement{{LeaseRef: lease.LeaseRef, Event: shaper.Succeed, MaxAttempts: 3}}
		l.lose.Store(1)
		if r, err := q.Broker().Settle(t.Context(), batch); !errors.Is(err, queue.ErrUnavailable) {
			t.Fatalf("Settle with a lost answer: %v, %v", r, err)
		}
		if r, err := q.Broker().Settle(t.Context(), batch); err != nil || r[0] != queue.Repeated {
			t.Errorf("Settle again: %v, %v", r, err)
		}
		tenant, err := q.Tenant(t.Context(), "acme")
		if err != nil {
			t.Errorf("Tenant: %v", err)
		}
		queuetest.Compare(t, "the figures at the end",
			queuetest.Only(tenant.Figures, "Succeeded", "Running"), queue.Figures{Succeeded: 1})
	})
}

// TestLostAdmitAnswer: a client that keeps its id and submits again has one job.
func TestLostAdmitAnswer(t *testing.T) {
	onEngines(t, scripts.Commands.Admit, slow, func(t *testing.T, q *queue.Queue, l *lossy) {
		w := work()
		var err error
		if w.ID, err = q.NewID(w.Tenant, w.Route); err != nil {
			t.Fatal(err)
		}
		l.lose.Store(1)
		if v, err := q.Submit(t.Context(), w); !errors.Is(err, queue.ErrUnavailable) {
			t.Fatalf("Submit with a lost answer: %+v, %v", v, err)
		}
		v, err := q.Submit(t.Context(), w)
		if err != nil {
			t.Errorf("Submit again: %v", err)
		}
		queuetest.Compare(t, "the job", v.Job.ID, w.ID)
		queuetest.Compare(t, "the admission", queuetest.Only(v.Admission, "Outcome", "Position", "Depth"),
			shaper.Admission{Outcome: shaper.Admitted, Position: 1, Depth: 1})
	})
}

// TestLostTuneAnswer: a change whose answer was lost on the way is made once.
func TestLostTuneAnswer(t *testing.T) {
	onEngines(t, scripts.Commands.Tune, slow, func(t *testing.T, q *queue.Queue, l *lossy) {
		l.lose.Store(1)
		change := queue.Change{
			IfRevision: new(int64),
			Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
				o.Capacity = new(int64(7))
				return o, nil
			},
		}
		if _, err := q.Tune(t.Context(), "acme", change); !errors.Is(err, queue.ErrUnavailable) {
			t.Fatalf("Tune with a lost answer: %v", err)
		}
		if _, err := q.Tune(t.Context(), "acme", change); !errors.Is(err, queue.ErrRevision) {
			t.Errorf("Tune again against the revision of before: %v, want ErrRevision", err)
		}
	})
}
