package api_test

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
)

// TestRunWithoutItsPort: a port that is taken is the only thing that the end says.
func TestRunWithoutItsPort(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var log queuetest.Log
	server, q := served(t, log.Logger(slog.LevelWarn))
	err = server.Run(t.Context(), api.Addresses{Admin: taken.Addr().String()})
	_ = q.Close()
	if err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v", err)
	}
	if text := log.String(); text != "" {
		t.Errorf("the log says\n%s", text)
	}
}

// TestRunEndsTheAudit: what an operator has done just before the end is recorded.
func TestRunEndsTheAudit(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := free.Addr().String()
	_ = free.Close()
	var log queuetest.Log
	server, q := served(t, log.Logger(slog.LevelWarn))
	defer q.Close()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- server.Run(ctx, api.Addresses{Admin: at}) }()
	queuetest.Await(t, "it listens", func() bool {
		resp, err := http.Post("http://"+at+"/v1/tenants/acme/pause", "application/json", nil)
		if err != nil {
			return false
		}
		_ = resp.Body.Close()
		return true
	})
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	asked, answer := httptest.NewRequest(http.MethodGet, "http://"+at+"/v1/audit", nil), httptest.NewRecorder()
	asked.RemoteAddr = "127.0.0.1:1"
	server.Admin().ServeHTTP(answer, asked)
	if !strings.Contains(answer.Body.String(), "acme") {
		t.Errorf("the audit is %s", answer.Body)
	}
	if text := log.String(); text != "" {
		t.Errorf("the log says\n%s", text)
	}
}

func served(t *testing.T, log *slog.Logger) (*api.Server, *queue.Queue) {
	t.Helper()
	q, err := queue.Connect(t.Context(), queue.EngineOptions{Embedded: true, Logger: log}, queue.Options{Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	server, err := api.New(q, api.Config{Routes: map[string]api.RouteInfo{"default": {}}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	return server, q
}
