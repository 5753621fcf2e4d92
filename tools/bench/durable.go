package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// durableRun holds two intakes at a Redis with one replica, in turns: one answers at once, the
// other when the replica has the jobs.
type durableRun struct {
	Plain   intakeSide `json:"without"`
	Durable intakeSide `json:"with_replica"`
}

// measureDurable loads an intake with redis.durability and one without it, each by the same client.
func measureDurable(ctx context.Context, b *bench) ([]float64, error) {
	plain, err := startIntake(ctx, replicated, "")
	if err != nil {
		return nil, err
	}
	defer plain.close()
	durable, err := startIntake(ctx, replicated, ", durability: { replicas: 1 }")
	if err != nil {
		return nil, err
	}
	defer durable.close()
	var runs []durableRun
	var ratios []float64
	lines := []string{fmt.Sprintf("%-8s %-25s %-25s %8s   %d connections; processor time a request in server + "+
		"Redis + client", "intake", "without", "replicas: 1", "ratio", intakeConnections)}
	for n := range b.runs {
		var r durableRun
		for _, side := range []struct {
			of     *intake
			result *intakeSide
		}{{plain, &r.Plain}, {durable, &r.Durable}} {
			l := load{addr: side.of.addr, path: "/v1/jobs", body: intakeBody, connections: intakeConnections, want: "202"}
			if err := side.result.measure(ctx, l, side.of.pid(), side.of.store); err != nil {
				return nil, err
			}
		}
		ratio := r.Durable.PerSecond / r.Plain.PerSecond
		b.progress("P14: run %d of %d: %.2f", n+1, b.runs, ratio)
		runs, ratios = append(runs, r), append(ratios, ratio)
		lines = append(lines, fmt.Sprintf("run %-4d %-25v %-25v %8.2f", n+1, r.Plain, r.Durable, ratio))
	}
	b.detail("P14", lines, runs)
	return ratios, nil
}

// replicated is a redis-server with a replica, which ends with it. A master without the replica
// refuses writes.
func replicated(ctx context.Context) (*redisServer, error) {
	s, err := newRedis(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.replicate(ctx); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *redisServer) replicate(ctx context.Context) error {
	var err error
	if s.replica, err = newRedis(ctx); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := l.Addr().(*net.TCPAddr).Port
	_ = l.Close() // it was only to find a port
	err = errors.Join(
		s.client.ConfigSet(ctx, "port", strconv.Itoa(port)).Err(), // Redis 7
		s.client.ConfigSet(ctx, "repl-diskless-sync-delay", "0").Err(),
		s.replica.client.Do(ctx, "replicaof", "127.0.0.1", port).Err(),
	)
	if err != nil {
		return fmt.Errorf("make a replica: %w", err)
	}
	for range 500 {
		info, err := s.replica.client.Info(ctx, "replication").Result()
		if err == nil && strings.Contains(info, "master_link_status:up") {
			return errors.Join(s.client.ConfigSet(ctx, "min-replicas-max-lag", "2").Err(),
				s.client.ConfigSet(ctx, "min-replicas-to-write", "1").Err())
		}
		if err := pass(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the replica is not in sync")
}
