package main

import (
	"context"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisServer is a redis-server of its own on a unix socket, for Sluice and its peers alike.
type redisServer struct {
	*child
	dir, socket string
	client      *redis.Client
	replica     *redisServer // nil without one
}

func newRedis(ctx context.Context, args ...string) (*redisServer, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	s := &redisServer{dir: dir}
	if s.child, s.socket, err = startRedis(ctx, dir, args...); err != nil {
		s.close()
		return nil, err
	}
	s.client = redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket})
	return s, nil
}

func plainRedis(ctx context.Context) (*redisServer, error) { return newRedis(ctx) }

func (s *redisServer) url() string { return "unix://" + s.socket }

func (s *redisServer) close() {
	if s.replica != nil {
		s.replica.close()
	}
	if s.client != nil {
		_ = s.client.Close()
	}
	s.end()
	if err := os.RemoveAll(s.dir); err != nil {
		slog.Warn("clean up", "error", err)
	}
}

// cpu is how much processor time the server has used; 0 if that is not known.
func (s *redisServer) cpu() time.Duration {
	d, _ := cpuOf(s.pid())
	return d
}

// scripts is how many script calls the server has run.
func (s *redisServer) scripts(ctx context.Context) float64 {
	text, err := s.client.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0
	}
	calls, _, _ := strings.Cut(strings.TrimPrefix(infoFields(text)["cmdstat_evalsha"], "calls="), ",")
	n, _ := strconv.ParseFloat(calls, 64) // no such command yet: none
	return n
}
