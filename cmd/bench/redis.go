package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisServer is a redis-server of its own on a unix socket, for Sluice and its peers alike: append-only file, fsync every second.
type redisServer struct {
	dir    string
	cmd    *exec.Cmd
	client *redis.Client
	ended  chan error
}

func startRedis(ctx context.Context) (*redisServer, error) {
	dir, err := os.MkdirTemp("", "sluice-bench-")
	if err != nil {
		return nil, err
	}
	s := &redisServer{dir: dir, ended: make(chan error, 1)}
	s.cmd = exec.Command("redis-server", "--port", "0", "--unixsocket", s.socket(), "--dir", dir, "--save", "", "--appendonly", "yes",
		"--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0", "--logfile", "redis.log")
	s.cmd.SysProcAttr = childAttributes()
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w (make redis installs it)", err)
	}
	go func() { s.ended <- s.cmd.Wait() }()
	s.client = redis.NewClient(&redis.Options{Network: "unix", Addr: s.socket(), MaxRetries: 0})
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for s.client.Ping(ctx).Err() != nil {
		if err := pass(ctx, 10*time.Millisecond); err != nil {
			s.close()
			return nil, fmt.Errorf("redis-server does not answer: %w", err)
		}
	}
	return s, nil
}

func (s *redisServer) socket() string { return filepath.Join(s.dir, "s") }

func (s *redisServer) url() string { return "unix://" + s.socket() }

func (s *redisServer) close() {
	if s.client != nil {
		_ = s.client.Close()
	}
	_ = s.cmd.Process.Signal(syscall.SIGKILL) // nothing of it is kept
	<-s.ended
	if err := os.RemoveAll(s.dir); err != nil {
		slog.Warn("clean up", "error", err)
	}
}

// cpu is how much processor time the server has used; 0 if that is not known.
func (s *redisServer) cpu() time.Duration {
	d, _ := cpuOf(s.cmd.Process.Pid)
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
