package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// peers are the same work done by others.
func peers() []check {
	return []check{{
		id: "R1/R2-asynq", what: "asynq alone: worker kill -9 under load, another started",
		target: "for comparison", peer: true, fullOnly: true,
		full: scale{jobs: 2000, kills: 4, window: 6 * time.Second, limit: 6 * time.Minute},
		run:  asynqKilled,
	}}
}

// childVariable makes the battery's own program an asynq worker; see asynqWorker.
const childVariable = "SLUICE_BATTERY_CHILD"

// asynqJob is the battery's job as an asynq task.
type asynqJob struct {
	URL, ID, Tenant, Body string
}

// asynqWorker is the child mode of the battery: an asynq server whose handler delivers as a sluice
// worker does. Its arguments are the socket of Redis and the name it delivers under.
func asynqWorker(socket, name string) error {
	server := asynq.NewServerFromRedisClient(asynqRedis(socket), asynq.Config{
		Concurrency:    16, // makes a backlog: without one it sleeps a second between two polls
		LogLevel:       asynq.WarnLevel,
		RetryDelayFunc: func(int, error, *asynq.Task) time.Duration { return 200 * time.Millisecond },
	})
	return server.Run(asynq.HandlerFunc(func(ctx context.Context, t *asynq.Task) error {
		var j asynqJob
		if err := json.Unmarshal(t.Payload(), &j); err != nil {
			return err
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, j.URL+"/"+name+"/default",
			strings.NewReader(j.Body))
		if err != nil {
			return err
		}
		req.Header.Set("webhook-id", j.ID)
		req.Header.Set("Sluice-Tenant", j.Tenant)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		if resp.StatusCode >= 300 {
			return fmt.Errorf("status %d", resp.StatusCode)
		}
		return nil
	}))
}

func asynqRedis(socket string) *redis.Client {
	return redis.NewClient(&redis.Options{
		Network: "unix", Addr: socket, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
}

// startAsynq starts an asynq worker as a process of its own.
func (w *world) startAsynq() (*process, error) {
	w.started["asynq"]++
	name := fmt.Sprintf("asynq-%d", w.started["asynq"])
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return w.nursery.start(w.dir, name, nil, "/usr/bin/env", childVariable+"=asynq", program, w.socket(), name)
}

// asynqKilled enqueues more than is handled in the window, kills a worker now and then and starts
// another, and waits until every task was handled.
func asynqKilled(ctx context.Context, w *world, f *findings) error {
	if err := w.open(ctx, settings{}); err != nil {
		return err
	}
	w.sink.set(slowly(20*time.Millisecond, 300*time.Millisecond))
	workers := make([]*process, 3)
	for i := range workers {
		var err error
		if workers[i], err = w.startAsynq(); err != nil {
			return err
		}
	}
	store := asynqRedis(w.socket())
	defer func() { _ = store.Close() }()
	client, inspector := asynq.NewClientFromRedisClient(store), asynq.NewInspectorFromRedisClient(store)
	enqueued := make(chan error, 1)
	go func() { enqueued <- w.enqueue(ctx, client) }()
	type kill struct {
		at     instant
		leased map[string]bool
	}
	var kills []kill
	var killed []crash
	for i := range w.scale.kills {
		if err := pause(ctx, w.scale.window/time.Duration(w.scale.kills+1)); err != nil {
			return err
		}
		n := w.rng.IntN(len(workers))
		p := workers[n]
		p.stop()
		if err := pause(ctx, 30*time.Millisecond); err != nil {
			return err
		}
		active, err := inspector.ListActiveTasks("default", asynq.PageSize(2000))
		if err != nil {
			return err
		}
		leased := map[string]bool{}
		for _, t := range active {
			leased[t.ID] = true
		}
		p.kill()
		killed = append(killed, crash{process: p.name, leased: leased})
		kills = append(kills, kill{at: w.ledger.now(), leased: leased})
		w.say("kill %d of %d: %s", i+1, w.scale.kills, p.name)
		if workers[n], err = w.startAsynq(); err != nil {
			return err
		}
	}
	if err := <-enqueued; err != nil {
		return err
	}
	err := until(ctx, "asynq's queue is empty", time.Second, func() (bool, error) {
		info, err := inspector.GetQueueInfo("default")
		if err != nil {
			return false, err
		}
		w.say("asynq: %d tasks to do", info.Size-info.Archived)
		return info.Pending+info.Active+info.Scheduled+info.Retry == 0, nil
	})
	if err != nil {
		return err
	}
	requests, deliveries := w.ledger.entries()
	b := reckon(requests, deliveries)
	var worst time.Duration
	for i, c := range killed {
		for _, d := range b.Duplicates {
			if d.before.Process == c.process && kills[i].leased[d.again.Job] {
				worst = max(worst, d.again.At.since(kills[i].at))
			}
		}
	}
	f.info("jobs", float64(b.Keys), "")
	f.info("lost", float64(len(b.Lost)), "")
	f.info("unexpected", float64(len(b.Unexpected)), "")
	f.info("in flight at the kills", float64(inFlight(killed, deliveries)), "")
	f.info("duplicates", float64(len(b.Duplicates)), "")
	f.info("kill → redelivery, worst", worst.Seconds(), "s")
	return nil
}

func (w *world) enqueue(ctx context.Context, client *asynq.Client) error {
	for i := range w.scale.jobs {
		if err := pause(ctx, w.scale.window/3/time.Duration(w.scale.jobs)); err != nil {
			return err
		}
		key := fmt.Sprintf("asynq-%d", i)
		j := asynqJob{URL: w.sink.url, ID: key, Tenant: "asynq", Body: payload(key, 0)}
		raw, err := json.Marshal(j)
		if err != nil {
			return err
		}
		r := request{
			Key: key, Tenant: j.Tenant, Body: j.Body, Job: key, Outcome: acknowledged,
			Status: http.StatusAccepted, Sent: w.ledger.now(),
		}
		if _, err := client.EnqueueContext(ctx, asynq.NewTask("battery", raw), asynq.TaskID(key),
			asynq.MaxRetry(20)); err != nil {
			return err
		}
		r.Answered = w.ledger.now()
		w.ledger.request(r)
	}
	return nil
}
