package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/worker"
)

// Concurrency of the workers: the most that each makes use of.
const (
	drainConcurrency = 4000
	asynqConcurrency = 500
)

// counter counts the handled jobs and reports when the last one was.
type counter struct {
	left atomic.Int64
	all  chan time.Time
}

func newCounter(n int) *counter {
	c := &counter{all: make(chan time.Time, 1)}
	c.left.Store(int64(n))
	return c
}

func (c *counter) ProcessTask(context.Context, *asynq.Task) error {
	if c.left.Add(-1) == 0 {
		c.all <- time.Now()
	}
	return nil
}

// perSecond waits for the last job of n.
func (c *counter) perSecond(ctx context.Context, start time.Time, n int) (float64, error) {
	select {
	case end := <-c.all:
		return float64(n) / end.Sub(start).Seconds(), nil
	case <-time.After(2 * time.Minute):
		return 0, fmt.Errorf("%d of %d jobs were not handled in two minutes", c.left.Load(), n)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// measured is perSecond, and reports the cost of the jobs.
func (c *counter) measured(
	ctx context.Context, b *bench, name string, server *redisServer, n int,
) (float64, error) {
	scripts, spent, used, start := server.scripts(ctx), server.cpu(), spentHere(), time.Now()
	figure, err := c.perSecond(ctx, start, n)
	took, jobs := time.Since(start), float64(n)
	spent, used = server.cpu()-spent, spentHere()-used
	b.progress("%s: %.0f jobs/s, %.1f jobs a script call, processor time a job %.1f µs in Redis and %.1f "+
		"µs here, Redis busy %.0f %% of the time",
		name, figure, jobs/(server.scripts(ctx)-scripts), micros(spent)/jobs, micros(used)/jobs,
		100*spent.Seconds()/took.Seconds())
	return figure, err
}

// drainSluice fills the queues of the tenants with n jobs in all and measures how fast a worker
// with no-op handlers empties them.
func drainSluice(ctx context.Context, b *bench, tenants, n int) (float64, error) {
	s, err := open(ctx)
	if err != nil {
		return 0, err
	}
	defer s.close()
	for i := range tenants {
		if err := s.fill(ctx, b, "drain-"+strconv.Itoa(i), "", n/tenants); err != nil {
			return 0, err
		}
	}
	handled := newCounter(n)
	cfg := worker.Config{
		Routes: map[string]worker.Route{route: {Handler: true}}, Handler: handled,
		Concurrency: drainConcurrency, Logger: slog.New(slog.DiscardHandler),
	}
	return s.whileWorking(ctx, cfg, func() (float64, error) {
		stop, err := b.profile(fmt.Sprintf("drain-%d-tenants", tenants))
		if err != nil {
			return 0, err
		}
		figure, err := handled.measured(ctx, b, fmt.Sprintf("sluice, %d tenants", tenants), s.server, n)
		return figure, errors.Join(err, stop())
	})
}

// spentHere is the processor time of this process.
func spentHere() time.Duration {
	d, _ := cpuOf(os.Getpid()) // unknown is 0
	return d
}

// whileWorking runs a worker during the measurement.
func (s *store) whileWorking(
	ctx context.Context, cfg worker.Config, measure func() (float64, error),
) (float64, error) {
	w, err := worker.New(s.Queue, cfg)
	if err != nil {
		return 0, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	figure, err := measure()
	stop()
	if failed := <-ended; err == nil {
		err = failed
	}
	return figure, err
}

// drainAsynq is the same with an asynq server and n tasks in several queues.
func drainAsynq(ctx context.Context, b *bench, queues, n int) (float64, error) {
	server, err := newRedis(ctx)
	if err != nil {
		return 0, err
	}
	defer server.close()
	rdb := redis.NewClient(&redis.Options{Network: "unix", Addr: server.socket, PoolSize: 64})
	defer rdb.Close()
	client := asynq.NewClientFromRedisClient(rdb)
	weights := map[string]int{}
	var fillers atomic.Int64
	filled := make(chan error, 32)
	for range cap(filled) {
		go func() {
			for {
				i := fillers.Add(1) - 1
				if i >= int64(n) {
					filled <- nil
					return
				}
				_, err := client.EnqueueContext(ctx, asynq.NewTask("order.create", payload),
					asynq.Queue("q"+strconv.FormatInt(i%int64(queues), 10)), asynq.MaxRetry(4))
				if err != nil {
					filled <- err
					return
				}
			}
		}()
	}
	for range cap(filled) {
		if failed := <-filled; failed != nil {
			err = failed
		}
	}
	if err != nil {
		return 0, err
	}
	for i := range queues {
		weights["q"+strconv.Itoa(i)] = 1
	}
	handled := newCounter(n)
	worker := asynq.NewServerFromRedisClient(rdb, asynq.Config{
		Concurrency: asynqConcurrency, Queues: weights, LogLevel: asynq.FatalLevel, Logger: silence{},
	})
	if err := worker.Start(handled); err != nil {
		return 0, err
	}
	defer worker.Shutdown()
	return handled.measured(ctx, b, fmt.Sprintf("asynq, %d queues", queues), server, n)
}

// silence is an asynq logger without output.
type silence struct{}

func (silence) Debug(...any) {}
func (silence) Info(...any)  {}
func (silence) Warn(...any)  {}
func (silence) Error(...any) {}
func (silence) Fatal(...any) {}

// drainRun is the rate of no-op jobs of each side, per second.
type drainRun struct {
	One   float64 `json:"sluice"`               // one tenant
	Many  float64 `json:"sluice_10000"`         // 10,000 of them
	Asynq float64 `json:"asynq"`                // one queue
	Ten   float64 `json:"asynq_10,omitempty"`   // queues; in the first run only
	Cent  float64 `json:"asynq_100,omitempty"`  //
	Kilo  float64 `json:"asynq_1000,omitempty"` //
}

const (
	drainJobs   = 200_000
	manyTenants = 10_000
)

func measureDrain(ctx context.Context, b *bench) ([]drainRun, error) {
	var runs []drainRun
	for n := range b.runs {
		var r drainRun
		for _, side := range []struct {
			name    string
			figure  *float64
			measure func() (float64, error)
			first   bool // only in the first run
		}{
			{"sluice, 1 tenant", &r.One, func() (float64, error) { return drainSluice(ctx, b, 1, drainJobs) }, false},
			{"asynq, 1 queue", &r.Asynq, func() (float64, error) { return drainAsynq(ctx, b, 1, 40_000) }, false},
			{"sluice, 10,000 tenants", &r.Many, func() (float64, error) {
				return drainSluice(ctx, b, manyTenants, drainJobs/2)
			}, false},
			{"asynq, 10 queues", &r.Ten, func() (float64, error) { return drainAsynq(ctx, b, 10, 40_000) }, true},
			{"asynq, 100 queues", &r.Cent, func() (float64, error) { return drainAsynq(ctx, b, 100, 10_000) }, true},
			{"asynq, 1,000 queues", &r.Kilo, func() (float64, error) { return drainAsynq(ctx, b, 1000, 2_000) }, true},
		} {
			if side.first && n > 0 {
				continue
			}
			var err error
			if *side.figure, err = side.measure(); err != nil {
				return nil, fmt.Errorf("%s: %w", side.name, err)
			}
			b.progress("drain, run %d of %d: %s: %.0f jobs/s", n+1, b.runs, side.name, *side.figure)
		}
		runs = append(runs, r)
	}
	lines := []string{fmt.Sprintf("%-8s %12s %14s %12s   no-op jobs/s", "drain", "sluice", "10,000 tenants",
		"asynq")}
	for i, r := range runs {
		lines = append(lines, fmt.Sprintf("run %-4d %12.0f %14.0f %12.0f", i+1, r.One, r.Many, r.Asynq))
	}
	lines = append(lines, fmt.Sprintf("asynq with 10, 100, 1,000 queues: %.0f, %.0f, %.0f", runs[0].Ten,
		runs[0].Cent, runs[0].Kilo))
	b.detail("P3", lines, runs)
	return runs, nil
}

func drainRatio(ratio func(drainRun) float64) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		runs, err := once(b, "drain", func() ([]drainRun, error) { return measureDrain(ctx, b) })
		samples := make([]float64, len(runs))
		for i, r := range runs {
			samples[i] = ratio(r)
		}
		return samples, err
	}
}
