// Package processtest runs a process in tests.
package processtest

import (
	"context"
	"log/slog"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/internal/config"
)

// Start runs everything in this process until the test ends, with jobs in memory unless the
// preset names a Redis.
func Start(t *testing.T, preset map[string]any) process.Running {
	t.Helper()
	cfg, err := config.Load(config.Sources{Preset: preset,
		Flags: map[string]string{"api.listen": "127.0.0.1:0", "admin.listen": "127.0.0.1:0"}})
	if err != nil {
		t.Fatal(err)
	}
	return Launch(t, &process.Process{Config: cfg, Roles: process.Roles{API: true, Worker: true},
		Embedded: cfg.Redis.URL == "", Log: slog.New(slog.DiscardHandler),
		Version: api.VersionInfo{Version: "(devel)", Commit: "unknown"}})
}

// Launch runs the process in this one until the test ends.
func Launch(t *testing.T, p *process.Process) process.Running {
	t.Helper()
	ready := make(chan process.Running, 1)
	p.Ready = func(r process.Running) { ready <- r }
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case r := <-ready:
		return r
	case err := <-ended:
		ended <- nil
		t.Fatal(err)
	}
	return process.Running{}
}
