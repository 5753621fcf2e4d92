package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
)

// sentinelled starts a master with two replicas and a sentinel that knows them.
func sentinelled(t *testing.T) (url string, servers []*redistest.Server) {
	t.Helper()
	master, port := redistest.StartTCP(t)
	servers = append(servers, master)
	for range 2 {
		r, _ := redistest.StartTCP(t, "--replicaof", "127.0.0.1", fmt.Sprint(port))
		servers = append(servers, r)
	}
	at := redistest.StartSentinel(t, "main", port)
	s := redis.NewSentinelClient(&redis.Options{Addr: at, DisableIdentity: true})
	t.Cleanup(func() { _ = s.Close() })
	await(t, "the sentinel knows the replicas", func() bool {
		list, err := s.Replicas(t.Context(), "main").Result()
		good := 0
		for _, r := range list {
			if r["flags"] == "slave" && r["master-link-status"] == "ok" {
				good++
			}
		}
		return err == nil && good == 2 && strings.Count(info(t, master), "state=online") == 2
	})
	return "redis+sentinel://" + at + "?master_name=main", servers
}

// TestFailOver: a planned failover under load loses no job that was acknowledged, without
// durability.
func TestFailOver(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	url, servers := sentinelled(t)
	q := open(t, queue.EngineOptions{URL: url, Logger: slog.New(slog.DiscardHandler)}, defaults)
	loading, stop := context.WithCancel(ctx)
	var acknowledged []string
	var mu sync.Mutex
	var load sync.WaitGroup
	for range 8 {
		load.Go(func() {
			for loading.Err() == nil {
				if d, err := q.Submit(loading, work()); err == nil {
					mu.Lock()
					acknowledged = append(acknowledged, d.Job.ID)
					mu.Unlock()
				} else {
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	taken := func() int { mu.Lock(); defer mu.Unlock(); return len(acknowledged) }
	await(t, "jobs are taken in", func() bool { return taken() > 100 })
	var steps []string
	out, err := queue.FailOver(ctx, queue.FailoverOptions{URL: url, Step: func(text string) { steps = append(steps, text) }})
	if err != nil {
		t.Fatal(err)
	}
	if out.From == out.To || out.Paused <= 0 || len(steps) != 5 {
		t.Errorf("%+v after the steps %q", out, steps)
	}
	before := taken()
	await(t, "jobs are taken in again", func() bool { return taken() > before+100 })
	stop()
	load.Wait()
	if strings.Contains(info(t, servers[0]), "role:master") {
		t.Error("the former master is no replica")
	}
	lost := 0
	for _, id := range acknowledged {
		if _, err := q.Job(ctx, "acme", id); err != nil {
			lost++
		}
	}
	if lost > 0 {
		t.Errorf("%d of %d acknowledged jobs are lost", lost, len(acknowledged))
	}
}

// TestFailOverIsRefused: where a failover could lose writes, or finds nobody, nothing is changed
// and the error says what to do.
func TestFailOverIsRefused(t *testing.T) {
	t.Parallel()
	url, servers := sentinelled(t)
	refused := func(o queue.FailoverOptions, kind error, text string) {
		t.Helper()
		o.Step = func(string) {}
		if _, err := queue.FailOver(t.Context(), o); !errors.Is(err, kind) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	refused(queue.FailoverOptions{URL: servers[0].URL()}, queue.ErrNoEngine, "must name Sentinel")
	refused(queue.FailoverOptions{URL: url + "x"}, queue.ErrFailover, `it knows no master "mainx"`)
	refused(queue.FailoverOptions{URL: url, Master: "127.0.0.1:1"}, queue.ErrFailover, "not 127.0.0.1:1; nothing was changed")
	servers[2].Freeze() // its connections stay open, and it falls behind
	refused(queue.FailoverOptions{URL: url}, queue.ErrFailover, "1 of 2 replicas have all writes after 4s: they are too slow, or gone; writes go on at")
	c := client(t, servers[0].URL())
	if err := c.Set(t.Context(), "x", 1, 0).Err(); err != nil {
		t.Errorf("writes do not go on: %v", err)
	}
	if !strings.Contains(info(t, servers[0]), "role:master") {
		t.Error("another server is the master")
	}
}

// TestFailOverInACluster: the replica of the named master takes over.
func TestFailOverInACluster(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	ctx := t.Context()
	c := redistest.StartCluster(t)
	replicas := c.AddReplicas(ctx)
	out, err := queue.FailOver(ctx, queue.FailoverOptions{URL: c.URL(), Master: c.Address(0), Step: func(string) {}})
	if err != nil {
		t.Fatal(err)
	}
	if out.From != c.Address(0) || !strings.Contains(info(t, replicas[0]), "role:master") {
		t.Errorf("%+v", out)
	}
	if _, err := queue.FailOver(ctx, queue.FailoverOptions{URL: c.URL(), Master: c.Address(0), Step: func(string) {}}); !errors.Is(err, queue.ErrFailover) ||
		!strings.Contains(err.Error(), "it is a replica") {
		t.Errorf("of a replica: %v", err)
	}
	if _, err := queue.FailOver(ctx, queue.FailoverOptions{URL: c.URL(), Step: func(string) {}}); !errors.Is(err, queue.ErrNoEngine) {
		t.Errorf("of no master: %v", err)
	}
}
