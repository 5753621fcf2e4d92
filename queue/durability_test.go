package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// replicated starts a master with n replicas, each in sync.
func replicated(t *testing.T, n int, args ...string) (master *redistest.Server, replicas []*redistest.Server) {
	t.Helper()
	master, port := redistest.StartTCP(t, args...)
	for range n {
		r, _ := redistest.StartTCP(t, "--replicaof", "127.0.0.1", strconv.Itoa(port))
		replicas = append(replicas, r)
	}
	inSync(t, master, n)
	return master, replicas
}

// inSync waits until n replicas have a write of now. A replica whose link is up, and which the
// master names online, may get nothing for another second.
func inSync(t *testing.T, master *redistest.Server, n int) {
	t.Helper()
	c := client(t, master.URL())
	await(t, "the replicas are in sync", func() bool {
		pipe := c.Pipeline()
		pipe.Publish(t.Context(), "probe", "")
		acknowledged := pipe.Do(t.Context(), "wait", n, 100)
		_, err := pipe.Exec(t.Context())
		have, _ := acknowledged.Int()
		return err == nil && have == n
	})
}

func info(t *testing.T, s *redistest.Server) string {
	t.Helper()
	text, err := client(t, s.URL()).Info(t.Context(), "replication").Result()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

const minReplicas = "--min-replicas-to-write 1 --min-replicas-max-lag 2"

func durable(s *redistest.Server, replicas int) queue.EngineOptions {
	return queue.EngineOptions{
		URL: s.URL(), Logger: slog.New(slog.DiscardHandler),
		Durability: queue.Durability{Replicas: replicas, Timeout: 300 * time.Millisecond},
	}
}

func submission(key string) queue.Submission {
	return queue.Submission{
		Tenant: "acme", Route: "default", Type: "t", Payload: []byte("{}"), MaxAttempts: 1, IdempotencyKey: key,
	}
}

// TestOutcomeUnknown: where a replica does not acknowledge a change, no call says that it is
// stored, neither the first nor one that finds it there. Once the replica has it, the same calls
// succeed.
func TestOutcomeUnknown(t *testing.T) {
	t.Parallel()
	master, replicas := replicated(t, 1, strings.Fields(minReplicas)...)
	open(t, queue.EngineOptions{URL: master.URL(), Logger: slog.New(slog.DiscardHandler)}, defaults) // which writes
	q := open(t, durable(master, 1), defaults)
	ctx := t.Context()
	var first queue.Decision
	await(t, "the replica acknowledges a submission", func() bool { // a busy machine may be too slow at first
		var err error
		first, err = q.Submit(ctx, submission("before"))
		return err == nil
	})
	if err := q.Ping(ctx); err != nil {
		t.Errorf("ping: %v", err)
	}
	calls := map[string]func() error{
		"submit":               func() error { _, err := q.Submit(ctx, submission("during")); return err },
		"submit without a key": func() error { _, err := q.Submit(ctx, submission("")); return err },
		"the same key":         func() error { _, err := q.Submit(ctx, submission("before")); return err },
		"batch": func() error {
			_, err := q.SubmitBatch(ctx, []queue.Submission{submission("a"), submission("b")}, true)
			return err
		},
		"a large payload": func() error {
			s := submission("large")
			s.Payload = make([]byte, 600<<10)
			rand.NewChaCha8([32]byte{}).Read(s.Payload) // what can be compressed is not large
			_, err := q.Submit(ctx, s)
			return err
		},
		"cancel": func() error { _, err := q.Cancel(ctx, "acme", first.Job.ID); return err },
		"purge": func() error {
			_, err := q.Purge(ctx, "acme", queue.Filter{IDs: []string{first.Job.ID}})
			return err
		},
		"tune": func() error {
			_, err := q.Tune(ctx, "acme", queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
				paused := true
				o.Paused = &paused
				return o, nil
			}})
			return err
		},
	}
	for name, call := range calls {
		replicas[0].Freeze() // for one call: in two seconds Redis would refuse writes
		start := time.Now()
		if err := call(); !errors.Is(err, queue.ErrOutcomeUnknown) || !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrOutcomeUnknown", name, err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%s took %v", name, took)
		}
		replicas[0].Thaw()
		await(t, "the replica acknowledges again", func() bool {
			_, err := q.Submit(ctx, submission("between"))
			return err == nil && q.Ping(ctx) == nil
		})
	}
	replicas[0].Freeze()
	await(t, "too few replicas are reported", func() bool { return errors.Is(q.Ping(ctx), queue.ErrReplicas) })
	tries := 0
	await(t, "redis refuses writes", func() bool {
		tries++
		_, err := q.Submit(ctx, submission(fmt.Sprint("refused", tries)))
		return errors.Is(err, queue.ErrRefused)
	})
	if _, err := q.Job(ctx, "acme", first.Job.ID); err != nil {
		t.Errorf("read: %v", err)
	}
	replicas[0].Thaw()
	await(t, "the replica is back", func() bool {
		_, err := q.Submit(ctx, submission("after"))
		return err == nil && q.Ping(ctx) == nil
	})
	for name, call := range calls {
		if err := call(); err != nil {
			t.Errorf("%s, the replica is back: %v", name, err)
		}
	}
	if d, err := q.Submit(ctx, submission("during")); err != nil || d.Outcome != shaper.Replayed {
		t.Errorf("the key of a job with an unknown outcome: %v %v", d.Outcome, err)
	}
	if d, err := q.Submit(ctx, submission(fmt.Sprint("refused", tries))); err != nil || d.Outcome != shaper.Admitted {
		t.Errorf("the key of a refused job: %v %v", d.Outcome, err)
	}
}

// TestDurabilityIsChecked: the start names each setting of Redis that durability needs.
func TestDurabilityIsChecked(t *testing.T) {
	t.Parallel()
	bare, _ := replicated(t, 1)
	set, _ := replicated(t, 1, strings.Fields(minReplicas)...)
	type mistake struct {
		on   *redistest.Server
		edit func(*queue.EngineOptions)
		kind error
		text []string
	}
	mistakes := map[string]mistake{
		"nothing is set": {bare, func(*queue.EngineOptions) {}, queue.ErrUnsafe, []string{
			"set min-replicas-to-write 1 on each server", "set min-replicas-max-lag 2 on each server"}},
		"too few replicas": {set, func(o *queue.EngineOptions) { o.Durability.Replicas = 2 }, queue.ErrUnsafe, []string{
			"set min-replicas-to-write 2"}},
		"no replicas at all": {set, func(o *queue.EngineOptions) { o.URL = "" }, queue.ErrNoEngine, []string{
			"redis.durability.replicas 1 needs a Redis with replicas"}},
		"in memory": {set, func(o *queue.EngineOptions) { o.Embedded = true }, queue.ErrNoEngine, []string{
			"redis.durability.replicas 1 needs a Redis with replicas"}},
	}
	if !haveWAITAOF(t, set) {
		mistakes["an old version"] = mistake{
			set, func(o *queue.EngineOptions) { o.Durability.Fsync = true }, queue.ErrUnsafe, []string{
				"WAITAOF", "set redis.durability.fsync to false"}}
	}
	for name, c := range mistakes {
		t.Run(name, func(t *testing.T) {
			o := durable(c.on, 1)
			c.edit(&o)
			e, err := queue.OpenEngine(t.Context(), o)
			if err == nil {
				_ = e.Close()
			}
			if !errors.Is(err, c.kind) {
				t.Fatalf("%v, want %v", err, c.kind)
			}
			for _, text := range c.text {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%q lacks %q", err, text)
				}
			}
		})
	}
	if err := client(t, set.URL()).ConfigSet(t.Context(), "min-replicas-to-write", "2").Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := queue.OpenEngine(t.Context(), durable(set, 2)); !errors.Is(err, queue.ErrReplicas) ||
		!errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "a master has 1 in sync") {
		t.Errorf("one replica of two: %v", err)
	}
}

func haveWAITAOF(t *testing.T, s *redistest.Server) bool {
	t.Helper()
	err := client(t, s.URL()).Do(context.Background(), "waitaof", 0, 0, 1).Err()
	return err == nil || !strings.Contains(err.Error(), "unknown command")
}

// TestDurabilityWithoutConfig: where Redis denies CONFIG, the start only warns.
func TestDurabilityWithoutConfig(t *testing.T) {
	t.Parallel()
	master, _ := replicated(t, 1, append(strings.Fields(minReplicas), "--rename-command", "CONFIG", "")...)
	var log strings.Builder
	o := durable(master, 1)
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	e, err := queue.OpenEngine(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if !strings.Contains(log.String(), "min-replicas-to-write=1 min-replicas-max-lag=2") {
		t.Errorf("the log does not say what to set: %s", log.String())
	}
}

// TestDurabilityInACluster: the replica of the shard's own master counts.
func TestDurabilityInACluster(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	ctx := t.Context()
	c := redistest.StartCluster(t)
	c.ConfigSet(ctx, "min-replicas-to-write", "1")
	c.ConfigSet(ctx, "min-replicas-max-lag", "2")
	replicas := c.AddReplicas(ctx)
	q := open(t, queue.EngineOptions{
		URL: c.URL(), Logger: slog.New(slog.DiscardHandler),
		Durability: queue.Durability{Replicas: 1, Timeout: 2 * time.Second},
	}, func(o *queue.Options) { o.Shards = 2 })
	submit := func(tenant string) error {
		s := submission("")
		s.Tenant = tenant
		_, err := q.Submit(ctx, s)
		return err
	}
	of := map[int]string{} // a tenant by the index of its shard, which is that of its master
	for i := 0; len(of) < 2; i++ {
		tenant := fmt.Sprint("tenant", i)
		of[store.Of(q).ShardOf(tenant).Index] = tenant
	}
	for _, tenant := range of {
		if err := submit(tenant); err != nil {
			t.Fatal(err)
		}
	}
	replicas[1].Freeze()
	defer replicas[1].Thaw()
	if err := submit(of[0]); err != nil {
		t.Errorf("a tenant of the other master: %v", err)
	}
	if err := submit(of[1]); !errors.Is(err, queue.ErrOutcomeUnknown) {
		t.Errorf("%v, want ErrOutcomeUnknown", err)
	}
	await(t, "too few replicas are reported", func() bool { return errors.Is(q.Ping(ctx), queue.ErrReplicas) })
}
