package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// largest notes the bytes of the largest exchange.
type largest struct {
	redis.Hook
	bytes atomic.Int64
}

func (l *largest) DialHook(next redis.DialHook) redis.DialHook { return next }

func (l *largest) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		l.note(cmd)
		return next(ctx, cmd)
	}
}

func (l *largest) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		l.note(cmds...)
		return next(ctx, cmds)
	}
}

func (l *largest) note(cmds ...redis.Cmder) {
	sum := 0
	for _, cmd := range cmds {
		for _, arg := range cmd.Args() {
			if b, is := arg.([]byte); is {
				sum += len(b)
			}
		}
	}
	l.bytes.Store(max(l.bytes.Load(), int64(sum)))
}

// TestLargeAnswersInOneBatch: many large answers that are settled at once go to Redis in several
// exchanges, so that none holds it for long.
func TestLargeAnswersInOneBatch(t *testing.T) {
	t.Parallel()
	const jobs, size = 20, 1 << 20
	calls := new(largest)
	e := openEngine(t, lent(t), calls)
	policy := shaper.DefaultPolicy()
	policy.Rate, policy.Burst, policy.Concurrency = shaper.Rate{Limit: 1000, Period: time.Second}, jobs, 0
	q, err := queue.Open(t.Context(), e, queue.Options{Defaults: policy, Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close() })
	for range jobs {
		sub := queue.Submission{Tenant: "acme", Route: "default", Type: "GET /", MaxAttempts: 1}
		if _, err := q.Submit(t.Context(), sub); err != nil {
			t.Fatal(err)
		}
	}
	consumer := q.Broker().Consumer("w", 0)
	var batch []queue.Settlement
	queuetest.Await(t, "all to be leased", func() bool {
		tick, err := consumer.Tick(t.Context(), queue.TickOptions{
			Max: jobs, Lease: time.Minute, Horizon: time.Second, Sweep: time.Second,
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range tick.Leases {
			batch = append(batch, queue.Settlement{
				LeaseRef: l.LeaseRef, Event: shaper.Succeed, Retention: time.Minute,
				Answer: bytes.Repeat([]byte{byte(len(batch)) + 1}, size),
			})
		}
		return len(batch) == jobs
	})
	results, err := q.Broker().Settle(t.Context(), batch)
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range batch {
		_, answer, err := q.Answer(t.Context(), "acme", b.ID, queue.End{})
		if err != nil {
			t.Fatal(err)
		}
		settled := results[i] == queue.Settled || results[i] == queue.Repeated // a busy machine may answer too late
		if whole, err := queuetest.Whole(t.Context(), answer); !settled || !bytes.Equal(whole, b.Answer) {
			t.Fatalf("%d: %s, %d bytes, %v", i, results[i], len(whole), err)
		}
	}
	if got := calls.bytes.Load(); got < size || got > 3*size {
		t.Errorf("the largest exchange has %d bytes", got)
	}
}

// forgetful drops the next results that are put aside for a script, as many as loses says: a
// failover may lose them.
type forgetful struct {
	redis.Hook
	loses, asides atomic.Int64
}

func (f *forgetful) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (f *forgetful) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (f *forgetful) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		var sent []redis.Cmder
		for _, cmd := range cmds {
			if cmd.Name() == "set" && strings.Contains(cmd.Args()[1].(string), ":aside:") {
				if f.asides.Add(1); f.loses.Add(-1) >= 0 {
					continue
				}
			}
			sent = append(sent, cmd)
		}
		return next(ctx, sent)
	}
}

// TestLargeAnswersAside: a large answer goes past the script that settles its job. Whether Redis
// still has it there, the job is settled already, or the lease is another's: the job has its answer
// or is untouched, and nothing stays aside.
func TestLargeAnswersAside(t *testing.T) {
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := new(forgetful)
			e := openEngine(t, options(t), f)
			policy := shaper.DefaultPolicy()
			policy.Rate.Limit, policy.Burst, policy.Concurrency = 1000, 10, 0
			q, err := queue.Open(t.Context(), e, queue.Options{Defaults: policy, Shards: 1})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = q.Close() })
			for range 6 {
				if _, err := q.Submit(t.Context(), queue.Submission{
					Tenant: "acme", Route: "default", Type: "t", MaxAttempts: 1, Payload: []byte(`{"a":1}`),
				}); err != nil {
					t.Fatal(err)
				}
			}
			leases := leaseAll(t, q.Broker().Consumer("w", 0))
			if len(leases) != 6 {
				t.Fatalf("%d leases", len(leases))
			}
			var batch []queue.Settlement
			for i, l := range leases {
				batch = append(batch, queue.Settlement{
					LeaseRef: l.LeaseRef, Tenant: "acme", Event: shaper.Succeed, PayloadAt: l.PayloadAt,
					Answer: bytes.Repeat([]byte{byte(i) + 1}, 100_000+i),
				})
				if i%2 == 0 {
					batch[i].Retention = time.Minute
				}
			}
			batch[5].Epoch++
			f.loses.Store(2)
			for _, want := range []queue.SettleResult{queue.Settled, queue.Repeated} {
				results, err := q.Broker().Settle(t.Context(), batch)
				if err != nil {
					t.Fatal(err)
				}
				for i, got := range results {
					if i == 5 && got != queue.Stale || i < 5 && got != want && got != queue.Repeated {
						t.Errorf("%d: %s, want %s", i, got, want)
					}
				}
			}
			if n := f.asides.Load(); n < 12 {
				t.Errorf("%d answers were put aside", n)
			}
			for i, b := range batch {
				_, answer, err := q.Answer(t.Context(), "acme", b.ID, queue.End{})
				if err != nil {
					t.Fatal(err)
				}
				if i == 5 {
					if answer != nil {
						t.Error("the lease of another has an answer")
					}
					continue
				}
				if whole, err := queuetest.Whole(t.Context(), answer); err != nil || !bytes.Equal(whole, b.Answer) {
					t.Errorf("%d: %d bytes, %v", i, len(whole), err)
				}
			}
			keys, err := e.Client().Keys(t.Context(), "*:aside:*").Result()
			if err != nil || len(keys) > 0 {
				t.Errorf("left over: %q, %v", keys, err)
			}
		})
	}
}

// TestLargePayloadsThatFail: a job that failed is not written again with its payload.
func TestLargePayloadsThatFail(t *testing.T) {
	t.Parallel()
	const size = 200_000
	redis := lent(t)
	c := client(t, redis.URL)
	q := open(t, redis, func(o *queue.Options) { o.Shards = 1 })
	if _, err := q.Submit(t.Context(), queue.Submission{
		Tenant: "acme", Route: "default", Type: "t", MaxAttempts: 2, Payload: bytes.Repeat([]byte("1"), size),
	}); err != nil {
		t.Fatal(err)
	}
	consumer := q.Broker().Consumer("w", 0)
	for _, event := range []shaper.Event{shaper.Retry, shaper.Die} {
		leases := leaseAll(t, consumer)
		if len(leases) != 1 || len(leases[0].Payload) != size {
			t.Fatalf("%s: %d leases", event, len(leases))
		}
		before := written(t, c)
		settled, err := q.Broker().Settle(t.Context(), []queue.Settlement{{
			LeaseRef: leases[0].LeaseRef, Tenant: "acme", Event: event, Error: &queue.JobError{Message: "503"},
		}})
		if err != nil || settled[0] != queue.Settled {
			t.Fatalf("%s: %v, %v", event, settled, err)
		}
		if bytes := written(t, c) - before; bytes > size/10 {
			t.Errorf("%s: the append-only file grew by %d bytes", event, bytes)
		}
	}
}

// written is the size of the append-only file.
func written(t *testing.T, c *redis.Client) (bytes int) {
	t.Helper()
	_, after, _ := strings.Cut(c.Info(t.Context(), "persistence").Val(), "aof_current_size:")
	if _, err := fmt.Sscan(after, &bytes); err != nil {
		t.Fatal(err)
	}
	return bytes
}
