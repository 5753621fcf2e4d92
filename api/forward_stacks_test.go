//go:build !race

package api_test

import (
	"io"
	"net"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker"
)

// TestForwardWaitsOnSmallStacks: a client that waits takes two stacks of the server, of at most 8
// KiB each. 5,000 of them must fit into 200 MB. With the race detector, stacks are larger.
func TestForwardWaitsOnSmallStacks(t *testing.T) {
	const n, most = 1000, 14 << 10
	p := proxy(t, echo, func(cfg *api.Config, _ *worker.Route, _ *queue.Queue) {
		cfg.TenantShare, cfg.AddressShare = 100, 100
	}, func(ports *api.Ports) { // frames of the test would count
		*ports.Admitter() = (*ports.Admitter()).(stirring).Admitter
	})
	stacks := func() uint64 {
		sample := []metrics.Sample{{Name: "/memory/classes/heap/stacks:bytes"}}
		metrics.Read(sample)
		return sample[0].Value.Uint64()
	}
	before := stacks()
	for range n {
		conn, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_, _ = io.WriteString(conn, "GET /v1/forward/partner/x HTTP/1.1\r\nHost: localhost\r\nSluice-Tenant: paused\r\n\r\n")
	}
	queuetest.Await(t, "all to wait", func() bool {
		tenant, err := p.q.Tenant(t.Context(), "paused")
		return err == nil && tenant.Depth == n
	})
	if each := (stacks() - before) / n; each > most {
		t.Errorf("a client that waits takes stacks of %d bytes, want at most %d", each, most)
	}
}
