package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/api"
)

// free is an address at which nothing listens.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// A job goes in by HTTP, is run by the handler, and the program ends in order.
func TestRun(t *testing.T) {
	defer goleak.VerifyNone(t)
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	intake, admin := free(t), free(t)
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, "", api.Addresses{Intake: intake, Admin: admin}) }()

	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+intake+"/v1/jobs",
			strings.NewReader(`{"type":"order.create","payload":{"sku":1}}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Prefer", "wait=10")
		resp, err := client.Do(req)
		if err != nil { // it does not listen yet
			select {
			case err := <-ended:
				t.Fatal(err)
			default:
				continue
			}
		}
		job, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err != nil || resp.StatusCode != http.StatusOK || !strings.Contains(string(job), `"state":"succeeded"`) {
			t.Errorf("%d %s %v", resp.StatusCode, job, err)
		}
		break
	}
	resp, err := client.Get("http://" + admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	for _, name := range []string{"sluice_http_requests_total", "sluice_deliveries_total", "sluice_script_"} {
		if err != nil || !strings.Contains(string(metrics), name) {
			t.Errorf("%d %v: the metrics lack %s", resp.StatusCode, err, name)
		}
	}
	client.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// An address that is taken ends it.
func TestRunWithoutAListener(t *testing.T) {
	defer goleak.VerifyNone(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := run(t.Context(), "", api.Addresses{Intake: free(t), Admin: l.Addr().String()}); err == nil ||
		!strings.Contains(err.Error(), "in use") {
		t.Errorf("it ended with %v", err)
	}
}
