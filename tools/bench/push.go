package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/worker"
)

const (
	pushJobs        = 60_000
	pushConnections = 64
)

// pushSide is the result of one side: posts a second, and the processor time of each in this
// process, in the upstream and in Redis.
type pushSide struct {
	PerSecond float64 `json:"per_second"`
	Here      float64 `json:"here_us"`
	Upstream  float64 `json:"upstream_us"`
	Redis     float64 `json:"redis_us"`
}

func (s pushSide) String() string {
	return fmt.Sprintf("%7.0f/s %3.0f+%.0f+%.0f µs", s.PerSecond, s.Here, s.Upstream, s.Redis)
}

// pushRun holds the results of both sides, one after the other.
type pushRun struct {
	Sluice pushSide `json:"sluice"`
	Bare   pushSide `json:"bare_client"`
}

// measured runs the posts of one side; store is nil where there is none.
func (s *pushSide) measured(
	upstream *server, store *redisServer, posts func() (perSecond float64, err error),
) (err error) {
	times := func() (here, there, redis time.Duration) {
		there, _ = cpuOf(upstream.pid()) // unknown is 0
		if store != nil {
			redis = store.cpu()
		}
		return spentHere(), there, redis
	}
	here, there, redis := times()
	if s.PerSecond, err = posts(); err != nil {
		return err
	}
	nowHere, nowThere, nowRedis := times()
	s.Here, s.Upstream, s.Redis = micros(nowHere-here)/pushJobs, micros(nowThere-there)/pushJobs,
		micros(nowRedis-redis)/pushJobs
	return nil
}

// measurePush compares jobs pushed to an upstream, from the queue to the end of their settling,
// with a bare client that posts to the same one over as many connections.
func measurePush(ctx context.Context, b *bench) ([]float64, error) {
	sink, err := startPeer(ctx, "sink", "")
	if err != nil {
		return nil, err
	}
	defer sink.close()
	url := "http://" + sink.addr + "/"
	var samples []float64
	var runs []pushRun
	lines := []string{fmt.Sprintf("%-8s %-26s %-26s   %d connections; processor time a post in this "+
		"process + upstream + Redis", "push", "sluice", "bare client", pushConnections)}
	for n := range b.runs {
		var r pushRun
		if err := r.Bare.measured(sink, nil, func() (float64, error) { return postAll(ctx, url) }); err != nil {
			return nil, err
		}
		if err := pushSluice(ctx, b, sink, &r.Sluice); err != nil {
			return nil, err
		}
		b.progress("P12: run %d of %d: sluice %v, bare client %v", n+1, b.runs, r.Sluice, r.Bare)
		lines = append(lines, fmt.Sprintf("run %-4d %-26v %-26v", n+1, r.Sluice, r.Bare))
		samples, runs = append(samples, r.Sluice.PerSecond/r.Bare.PerSecond), append(runs, r)
	}
	b.detail("P12", lines, runs)
	return samples, nil
}

// postAll posts with net/http's client, as fast as it can.
func postAll(ctx context.Context, url string) (perSecond float64, err error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxConnsPerHost, transport.MaxIdleConnsPerHost = pushConnections, pushConnections
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var next atomic.Int64
	var posters sync.WaitGroup
	failed := make(chan error, pushConnections)
	start := time.Now()
	for range pushConnections {
		posters.Go(func() {
			for next.Add(1) <= pushJobs {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(payload))
				if err == nil {
					req.Header.Set("Content-Type", "application/json")
					err = postTo(client, req)
				}
				if err != nil {
					failed <- err
					return
				}
			}
		})
	}
	posters.Wait()
	select {
	case err := <-failed:
		return 0, err
	default:
		return pushJobs / time.Since(start).Seconds(), nil
	}
}

func postTo(client *http.Client, req *http.Request) error {
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

func pushSluice(ctx context.Context, b *bench, upstream *server, side *pushSide) error {
	s, err := open(ctx)
	if err != nil {
		return err
	}
	defer s.close()
	if err := s.fill(ctx, b, "push", "", pushJobs); err != nil {
		return err
	}
	cfg := worker.Config{
		Routes: map[string]worker.Route{route: {
			URL: "http://" + upstream.addr + "/", Connections: pushConnections,
			Headers: map[string]string{"Authorization": "Bearer 0123456789abcdef", "X-Api-Key": "key", "X-Api-Version": "2026-01"},
		}},
		Concurrency: drainConcurrency, Logger: slog.New(slog.DiscardHandler),
	}
	return side.measured(upstream, s.server, func() (float64, error) {
		return s.whileWorking(ctx, cfg, func() (float64, error) { return s.emptied(ctx, "push", pushJobs) })
	})
}

// emptied waits until the tenant's n jobs have ended, and returns their rate per second.
func (s *store) emptied(ctx context.Context, tenant string, n int) (perSecond float64, err error) {
	start := time.Now()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		t, err := s.Tenant(ctx, tenant)
		if err != nil {
			return 0, err
		}
		if t.Depth+t.Running == 0 {
			return float64(n) / time.Since(start).Seconds(), nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// startDelays are how long it takes from a submission to an idle flow until its handler starts.
type startDelays struct{ sluice, asynq []float64 } // ms

const (
	startsSluice = 200 // in each run
	startsAsynq  = 8
)

func measureStarts(ctx context.Context, b *bench) (startDelays, error) {
	s, err := open(ctx)
	if err != nil {
		return startDelays{}, err
	}
	defer s.close()
	started := make(chan time.Time, 1)
	handler := asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		started <- time.Now()
		return nil
	})
	var out startDelays
	// sample submits repeatedly, with a pause after each submission.
	sample := func(n int, into *[]float64, submit func(i int) error) error {
		for i := range n {
			if err := pass(ctx, time.Duration(5+i%11)*time.Millisecond); err != nil {
				return err
			}
			sent := time.Now()
			if err := submit(i); err != nil {
				return err
			}
			select {
			case at := <-started:
				*into = append(*into, millis(at.Sub(sent)))
			case <-time.After(10 * time.Second):
				return fmt.Errorf("a job on an idle flow did not start in ten seconds")
			}
		}
		return nil
	}
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: s.server.socket})
	defer rdb.Close()
	client := asynq.NewClientFromRedisClient(rdb)
	peer := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Concurrency: 10, LogLevel: asynq.FatalLevel, Logger: silence{},
	})
	if err := peer.Start(handler); err != nil {
		return out, err
	}
	defer peer.Shutdown()
	cfg := worker.Config{
		Routes: map[string]worker.Route{route: {Handler: true}}, Handler: handler,
		Logger: slog.New(slog.DiscardHandler),
	}
	_, err = s.whileWorking(ctx, cfg, func() (float64, error) {
		for n := range b.runs {
			b.progress("P9: run %d of %d", n+1, b.runs)
			if err := sample(startsSluice, &out.sluice, func(i int) error {
				_, err := s.Submit(ctx, submission(fmt.Sprintf("start-%d", i%50), ""))
				return err
			}); err != nil {
				return 0, err
			}
			if err := sample(startsAsynq, &out.asynq, func(int) error {
				_, err := client.EnqueueContext(ctx, asynq.NewTask("order.create", payload))
				return err
			}); err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
	if err != nil {
		return out, err
	}
	b.detail("P9", []string{
		fmt.Sprintf("%-8s %10s %10s %10s   ms from submit to handler start on an idle flow", "start", "p50",
			"p99", "max"),
		fmt.Sprintf("%-8s %10.2f %10.2f %10.2f", "sluice", quantile(slices.Sorted(slices.Values(out.sluice)),
			0.5), quantile(slices.Sorted(slices.Values(out.sluice)), 0.99),
			quantile(slices.Sorted(slices.Values(out.sluice)), 1)),
		fmt.Sprintf("%-8s %10.2f %10.2f %10.2f", "asynq", quantile(slices.Sorted(slices.Values(out.asynq)),
			0.5), quantile(slices.Sorted(slices.Values(out.asynq)), 0.99),
			quantile(slices.Sorted(slices.Values(out.asynq)), 1)),
	}, map[string][]float64{"sluice_ms": out.sluice, "asynq_ms": out.asynq})
	return out, nil
}

// startQuantile is the quantile of each run.
func startQuantile(q float64) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		delays, err := once(b, "starts", func() (startDelays, error) { return measureStarts(ctx, b) })
		var samples []float64
		for i := 0; i+startsSluice <= len(delays.sluice); i += startsSluice {
			samples = append(samples, quantile(slices.Sorted(slices.Values(delays.sluice[i:i+startsSluice])), q))
		}
		return samples, err
	}
}
