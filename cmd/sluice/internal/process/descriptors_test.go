package process

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/config"
)

// TestDescriptors: a process whose settings allow more connections than it may have file
// descriptors says so at its start.
func TestDescriptors(t *testing.T) {
	t.Parallel()
	for _, one := range []struct {
		most int64
		want bool
	}{{0, false}, {11_455, true}, {11_456, false}} {
		var log bytes.Buffer
		p := &Process{Roles: Roles{API: true, Worker: true}, Log: slog.New(slog.NewTextHandler(&log, nil))}
		p.Config.API.MaxConnections, p.Config.Admin.MaxConnections = 10_000, 1_000
		p.Config.Worker.Concurrency = 256
		p.Config.Routes = map[string]config.Route{"default": {Connections: 300}}
		if p.checkDescriptors(one.most); strings.Contains(log.String(), "file descriptors") != one.want {
			t.Errorf("with %d: %q", one.most, log.String())
		}
	}
}
