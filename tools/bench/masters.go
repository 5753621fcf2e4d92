package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker"
)

// mastersFigures measure by how much a cluster carries more than one Redis. What a master carries
// is limited by its processor, so they compare processor time, which other work on this machine
// hardly changes.
func mastersFigures() []figure {
	const more = " masters carry ÷ one master, by the processor time of a job on the busiest"
	return []figure{
		{id: "P16-3", what: "three" + more, unit: "ratio", target: 2.7,
			measure: mastersRatio(func(c []mastersRun) float64 { return c[0].Busiest / c[1].Busiest })},
		{id: "P16-6", what: "six" + more, unit: "ratio", target: 5,
			measure: mastersRatio(func(c []mastersRun) float64 { return c[0].Busiest / c[2].Busiest })},
		{id: "P16-balance", what: "processor time of the busiest of three masters ÷ their mean", unit: "ratio",
			target: 1.15, atMost: true,
			measure: mastersRatio(func(c []mastersRun) float64 { return c[1].Busiest * 3 / c[1].All })},
	}
}

// mastersRun is the processor time in ms per 1,000 jobs at a number of masters.
type mastersRun struct {
	Masters int     `json:"masters"`
	All     float64 `json:"all_ms"`
	Busiest float64 `json:"busiest_ms"`
	// Commands of a job on all masters, those inside scripts too, without those at rest.
	Commands float64 `json:"commands"`
}

func mastersRatio(ratio func([]mastersRun) float64) func(context.Context, *bench) ([]float64, error) {
	return func(ctx context.Context, b *bench) ([]float64, error) {
		runs, err := once(b, "P16", func() ([][]mastersRun, error) { return measureMasters(ctx, b) })
		if err != nil {
			return nil, err
		}
		var samples []float64
		for _, r := range runs {
			samples = append(samples, ratio(r))
		}
		return samples, nil
	}
}

// measureMasters measures all numbers of masters, in turns.
func measureMasters(ctx context.Context, b *bench) (runs [][]mastersRun, err error) {
	lines := []string{fmt.Sprintf("%-8s %12s %12s %15s   processor time of Redis per 1,000 jobs", "masters", "in all", "busiest",
		"commands a job")}
	for n := range b.runs {
		var cells []mastersRun
		for _, masters := range []int{1, 3, 6} {
			b.progress("P16: run %d of %d: %d masters", n+1, b.runs, masters)
			cell, err := mastersOf(ctx, masters)
			if err != nil {
				return nil, fmt.Errorf("%d masters: %w", masters, err)
			}
			cells = append(cells, cell)
			lines = append(lines, fmt.Sprintf("%-8d %9.0f ms %9.0f ms %15.1f", masters, cell.All, cell.Busiest, cell.Commands))
		}
		runs = append(runs, cells)
	}
	b.detail("P16-3", lines, runs)
	return runs, nil
}

// mastersOf sends jobs of many tenants through a cluster, as many a second for each master, and
// measures what it takes beyond that at rest.
func mastersOf(ctx context.Context, masters int) (cell mastersRun, err error) {
	jobs, tenants, gap := 2400*masters, 200*masters, time.Second/time.Duration(150*masters)
	servers, url, err := startMasters(ctx, masters)
	defer func() {
		for _, s := range servers {
			s.close()
		}
	}()
	if err != nil {
		return cell, err
	}
	policy := shaper.DefaultPolicy()
	policy.Rate = shaper.Rate{Limit: 100, Period: time.Second}
	quiet := slog.New(slog.DiscardHandler)
	q, err := queue.Connect(ctx, queue.EngineOptions{URL: url, Logger: quiet}, queue.Options{Defaults: policy, Logger: quiet})
	if err != nil {
		return cell, err
	}
	defer func() { err = errors.Join(err, q.Close()) }()
	var left atomic.Int64
	w, err := worker.New(q, worker.Config{
		Routes: map[string]worker.Route{route: {Handler: true}}, Logger: quiet,
		Handler: asynq.HandlerFunc(func(context.Context, *asynq.Task) error { left.Add(1); return nil }),
	})
	if err != nil {
		return cell, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(running) }()
	defer func() { stop(); err = errors.Join(err, <-ended) }()
	if err := pass(ctx, 3*time.Second); err != nil {
		return cell, err
	}
	const rest = 5 * time.Second
	begun, at, commands := cpusOf(servers), time.Now(), commandsOf(ctx, servers)
	if err := pass(ctx, rest); err != nil {
		return cell, err
	}
	idle, resting, idled := cpusOf(servers), time.Since(at), commandsOf(ctx, servers)
	at = time.Now()
	ticker := time.NewTicker(gap)
	defer ticker.Stop()
	failed := make(chan error, jobs)
	for i := range jobs {
		<-ticker.C
		go func() {
			d, err := q.Submit(ctx, submission(fmt.Sprint("tenant", i%tenants), ""))
			if err == nil && d.Outcome != shaper.Admitted {
				err = fmt.Errorf("a job was not admitted: %s", d.Outcome)
			}
			failed <- err
		}()
	}
	for range jobs {
		if err := <-failed; err != nil {
			return cell, err
		}
	}
	for left.Load() < int64(jobs) {
		if err := pass(ctx, 50*time.Millisecond); err != nil {
			return cell, err
		}
	}
	if err := pass(ctx, time.Second); err != nil { // the last ends are settled
		return cell, err
	}
	took := time.Since(at)
	cell.Masters = masters
	cell.Commands = (commandsOf(ctx, servers) - idled - (idled-commands)*took.Seconds()/resting.Seconds()) / float64(jobs)
	for i, now := range cpusOf(servers) {
		atRest := time.Duration(float64(idle[i]-begun[i]) * took.Seconds() / resting.Seconds())
		used := (now - idle[i] - atRest).Seconds() * 1000 * 1000 / float64(jobs)
		cell.All += used
		cell.Busiest = max(cell.Busiest, used)
	}
	return cell, nil
}

// commandsOf is how many commands the servers have run.
func commandsOf(ctx context.Context, servers []*redisServer) (sum float64) {
	for _, s := range servers {
		text, _ := s.client.Info(ctx, "stats").Result() // without an answer: none
		n, _ := strconv.ParseFloat(infoFields(text)["total_commands_processed"], 64)
		sum += n
	}
	return sum
}

func cpusOf(servers []*redisServer) (used []time.Duration) {
	for _, s := range servers {
		used = append(used, s.cpu())
	}
	return used
}

// startMasters starts a cluster whose masters share the slots evenly. The servers that were started
// are returned with an error, too.
func startMasters(ctx context.Context, masters int) (servers []*redisServer, url string, err error) {
	const slots = 16384
	var addresses, others []string
	for i := range masters {
		var ports [2]string
		for k := range ports {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				return servers, "", err
			}
			defer l.Close() // when all ports are chosen; Redis shares none
			ports[k] = strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
			_ = l.Close()
		}
		s, err := newRedis(ctx, "--port", ports[0], "--cluster-enabled", "yes", "--cluster-port", ports[1])
		if err != nil {
			return servers, "", err
		}
		servers, addresses = append(servers, s), append(addresses, "127.0.0.1:"+ports[0])
		if i > 0 {
			others = append(others, "addr="+addresses[i])
		}
		if err := errors.Join(
			s.client.ClusterAddSlotsRange(ctx, i*slots/masters, (i+1)*slots/masters-1).Err(),
			s.client.Do(ctx, "cluster", "set-config-epoch", i+1).Err(), // while it knows no other
			servers[0].client.Do(ctx, "cluster", "meet", "127.0.0.1", ports[0], ports[1]).Err(),
		); err != nil {
			return servers, "", fmt.Errorf("make the cluster: %w", err)
		}
	}
	whole := func(s *redisServer) bool {
		info, err := s.client.ClusterInfo(ctx).Result()
		return err == nil && strings.Contains(info, "cluster_state:ok") &&
			strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r", masters))
	}
	for slices.ContainsFunc(servers, func(s *redisServer) bool { return !whole(s) }) {
		if err := pass(ctx, 50*time.Millisecond); err != nil {
			return servers, "", fmt.Errorf("make the cluster: %w", err)
		}
	}
	return servers, "redis+cluster://" + addresses[0] + "?" + strings.Join(others, "&"), nil
}
