package callback

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// fleet is a cluster of two nodes and a receiver.
type fleet struct {
	*testing.T
	*redistest.Cluster
	redis    redis.UniversalClient
	receiver *httptest.Server

	mu  sync.Mutex
	got map[string]int // requests by job
}

func startFleet(t *testing.T) *fleet {
	f := &fleet{T: t, Cluster: redistest.StartCluster(t), got: map[string]int{}}
	engine, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
		URL: f.URL(), Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	f.redis = engine.Client()
	f.receiver = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.got[r.URL.Path[1:]]++
	}))
	t.Cleanup(func() {
		f.receiver.Close()
		if err := engine.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fleet) service(registry prometheus.Registerer) *Service {
	return newService(f.T, Config{Redis: f.redis, Receivers: receivers(f, f.receiver.URL), Registerer: registry})
}

// run starts the service. It is stopped by stop, at the latest at the end of the test.
func (f *fleet) run(s *Service) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Error(err)
		}
	})
	f.Cleanup(stop)
	return stop
}

// usual is the queue of a completion whose receiver keeps up.
func usual(s *Service, c queue.Completion) *asynqQueue {
	q, _ := s.ofShard(c)
	return q
}

// completion is the end of a job of a shard.
func (f *fleet) completion(job string, shard int) queue.Completion {
	c := completion(shaper.Succeeded, 1)
	c.Job.ID, c.CallbackURL, c.Shard, c.Shards = job, f.receiver.URL+"/"+job, shard, len(clusterQueues)
	return c
}

// handOver hands over a completion of each of the shards, and returns their jobs.
func (f *fleet) handOver(s *Service, name string, shards ...int) (jobs []string) {
	f.Helper()
	for _, shard := range shards {
		job := fmt.Sprintf("%s-%d", name, shard)
		if err := s.HandOver(f.Context(), f.completion(job, shard)); err != nil {
			f.Fatal(err)
		}
		jobs = append(jobs, job)
	}
	return jobs
}

// await waits until all jobs are delivered.
func (f *fleet) await(within time.Duration, jobs ...string) {
	f.Helper()
	done := func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return !slices.ContainsFunc(jobs, func(job string) bool { return f.got[job] == 0 })
	}
	for began := time.Now(); !done(); <-time.After(10 * time.Millisecond) {
		if time.Since(began) > within {
			f.Fatalf("waited %v in vain for the callbacks of %v", within, jobs)
		}
	}
}

var eight = []int{0, 1, 2, 3, 4, 5, 6, 7}

// TestHungNodeDelaysItsOwnCallbacks: one of two nodes hangs, which also has the keys of asynq that
// all queues share. Callbacks in the queues of the other node go on. Those of the first are
// delivered once it goes on.
func TestHungNodeDelaysItsOwnCallbacks(t *testing.T) {
	t.Parallel()
	const hang, most = 13 * time.Second, 10 * time.Second
	f := startFleet(t)
	s := f.service(nil)
	f.run(s)
	all := f.handOver(s, "before", eight...)
	f.await(time.Minute, all...)

	thaw := f.Hang(t.Context(), 0)
	hung, others := eight[:4], eight[4:]
	var refused []queue.Completion
	var handing sync.WaitGroup
	for _, shard := range hung {
		c := f.completion(fmt.Sprint("hung-", shard), shard)
		refused = append(refused, c)
		handing.Go(func() {
			limited, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			if err := s.HandOver(limited, c); err == nil {
				t.Errorf("a node that hangs took the callback of shard %d", c.Shard)
			}
		})
	}
	var longest time.Duration
	for begun, n := time.Now(), 0; time.Since(begun) < hang; n++ {
		start := time.Now()
		jobs := f.handOver(s, fmt.Sprint("during-", n), others...)
		f.await(most, jobs...)
		longest = max(longest, time.Since(start))
		all = append(all, jobs...)
	}
	handing.Wait()
	t.Logf("%d callbacks while the node hung, within %v", len(all)-len(eight), longest)
	thaw()
	f.await(time.Minute, f.handOver(s, "after", eight...)...)
	// The node may have run what it was sent, without a receiver of the answer. Then asynq repeats
	// the task after up to two minutes.
	inspector := asynq.NewInspectorFromRedisClient(f.redis)
	for _, c := range refused {
		if err := s.HandOver(t.Context(), c); err != nil {
			t.Error(err)
		}
		if _, err := inspector.GetTaskInfo(usual(s, c).name, c.Job.ID+":1:succeeded"); err != nil {
			t.Errorf("the callback of %s is lost: %v", c.Job.ID, err)
		}
	}
	for _, job := range all {
		if n := f.got[job]; n != 1 {
			t.Errorf("the callback of %s was delivered %d times", job, n)
		}
	}
}

// TestStartWhileANodeHangs: a process that starts while the node of asynq's set of queues hangs
// delivers the callbacks of the other node, and it stops. The set gets its queues later.
func TestStartWhileANodeHangs(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	thaw := f.Hang(t.Context(), 0)
	s := f.service(nil)
	stop := f.run(s)
	f.await(20*time.Second, f.handOver(s, "during", eight[4:]...)...)
	start := time.Now()
	stop()
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("the stop took %v", took)
	}
	thaw()
	f.handOver(s, "after", eight[4:]...)
	queues, err := asynq.NewInspectorFromRedisClient(f.redis).Queues()
	for _, name := range clusterQueues[4:] {
		if !slices.Contains(queues, name) {
			t.Errorf("asynq lists %v without %s, %v", queues, name, err)
		}
	}
}

// TestClusterDrainsTheOneQueue: tasks in the one queue of earlier versions are delivered in a
// cluster, also where asynq's set of queues has lost it. No other queue gets a server for it. The
// metrics sum all queues.
func TestClusterDrainsTheOneQueue(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	registry := prometheus.NewRegistry()
	other := f.service(registry)
	old := asynq.NewTaskWithHeaders(taskType, []byte(`{}`), map[string]string{urlHeader: f.receiver.URL + "/old"})
	if _, err := asynq.NewClientFromRedisClient(f.redis).Enqueue(old, asynq.Queue(Queue)); err != nil {
		t.Fatal(err)
	}
	if err := f.redis.SRem(t.Context(), "asynq:queues", Queue).Err(); err != nil {
		t.Fatal(err)
	}
	f.run(f.service(nil))
	f.await(time.Minute, "old")
	inspector := asynq.NewInspectorFromRedisClient(f.redis)
	servers, err := inspector.Servers()
	if err != nil || len(servers) != 1 || servers[0].Queues[Queue] == 0 {
		t.Errorf("servers %+v, %v", servers, err)
	}
	f.handOver(other, "job", 0, 1, 2, 3, 5, 6, 7) // those without a server
	queuetest.Compare(t, "the callbacks that wait", gauges(t, registry)["pending"], 7)
}

// A cluster that never had a callback gets no server.
func TestClusterWithoutCallbacks(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	ctx, cancel := context.WithCancel(t.Context())
	f.redis.AddHook(looked(cancel))
	servers, err := f.service(nil).serve(ctx)
	if err != nil || len(servers) != 0 {
		t.Errorf("%d servers, %v", len(servers), err)
	}
}

// looked is called once the queues were looked at.
type looked func()

func (looked) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (looked) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (l looked) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if cmds[0].Name() == "exists" {
			l()
		}
		return err
	}
}

// TestLanes: the queues spread over the slots like the shards, and each shard has one of them.
func TestLanes(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	s := f.service(nil)
	for i, name := range Queues(f.redis) {
		slot, err := f.redis.ClusterKeySlot(t.Context(), "asynq:{"+name+"}:pending").Result()
		if err != nil || int(slot)*len(clusterQueues)/16384 != i%len(clusterQueues) {
			t.Errorf("the slot of %s is %d, %v", name, slot, err)
		}
	}
	for _, shards := range []int{0, 1, 8, 64, 100, 1024} {
		for shard := range max(shards, 1) {
			c := queue.Completion{Shard: shard, Shards: shards}
			want := 0
			if shards > 0 {
				want = shard * 8 / shards
			}
			if got, slow := s.ofShard(c); got != s.queues[want] || slow != s.queues[8+want] {
				t.Errorf("shard %d of %d has %s and %s", shard, shards, got.name, slow.name)
			}
		}
	}
}
