package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process/processtest"
	"github.com/7509e464/sluice/internal/queuetest"
)

// collector is an OpenTelemetry collector that keeps what it is sent.
type collector struct {
	*httptest.Server
	came chan struct{} // after each request

	mu       sync.Mutex
	spans    []*tracepb.Span
	resource map[string]string
	headers  http.Header
}

func startCollector(t *testing.T) *collector {
	t.Helper()
	c := &collector{came: make(chan struct{}, 100)}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var request tracepb.TracesData // has the fields of the request
		if err == nil {
			err = proto.Unmarshal(body, &request)
		}
		if err != nil || r.URL.Path != "/v1/traces" {
			t.Errorf("%s %s is not OTLP at /v1/traces: %v", r.Method, r.URL, err)
			http.Error(w, "no OTLP", http.StatusBadRequest)
			return
		}
		c.mu.Lock()
		c.headers = r.Header
		for _, of := range request.ResourceSpans {
			c.resource = textsOf(of.Resource.Attributes)
			for _, scope := range of.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
		c.mu.Unlock()
		c.came <- struct{}{}
	}))
	t.Cleanup(c.Close)
	return c
}

// got is the spans so far, by their beginning.
func (c *collector) got() []*tracepb.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(slices.Values(c.spans), func(a, b *tracepb.Span) int {
		return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano))
	})
}

// textsOf returns attributes as text, by key.
func textsOf(attributes []*commonpb.KeyValue) map[string]string {
	m := map[string]string{}
	for _, a := range attributes {
		switch v := a.Value.Value.(type) {
		case *commonpb.AnyValue_StringValue:
			m[a.Key] = v.StringValue
		case *commonpb.AnyValue_IntValue:
			m[a.Key] = fmt.Sprint(v.IntValue)
		default:
			m[a.Key] = a.Value.String()
		}
	}
	return m
}

// flaky is an upstream whose first delivery fails; it keeps the traceparents that it gets.
type flaky struct {
	*httptest.Server
	calls   atomic.Int32
	parents chan string
}

func startFlaky(t *testing.T) *flaky {
	t.Helper()
	u := &flaky{parents: make(chan string, 100)}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.parents <- r.Header.Get("traceparent")
		if u.calls.Add(1) == 1 {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	t.Cleanup(u.Close)
	return u
}

const (
	clientTrace = "0af7651916cd43dd8448eb211c80319c"
	clientSpan  = "b7ad6b7169203331"
)

// submitTraced submits a job as a client with a trace of its own, and waits for its end.
func submitTraced(t *testing.T, address string) wire.Job {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/v1/jobs",
		strings.NewReader(`{"type":"order.create","payload":{"secret":"hunter2"}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Prefer": "wait=20", "Sluice-Tenant": "Åcme & sons",
		"traceparent": "00-" + clientTrace + "-" + clientSpan + "-01",
	} {
		r.Header.Set(name, value)
	}
	hc := &http.Client{}
	defer hc.CloseIdleConnections()
	resp, err := hc.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var job wire.Job
	if err := json.NewDecoder(resp.Body).Decode(&job); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusOK || job.State != "succeeded" {
		t.Fatalf("the status is %d and the job %+v, want 200 and succeeded", resp.StatusCode, job)
	}
	return job
}

// checkWay holds the spans of a job that succeeded in its second attempt against each other, the
// client's trace and what the upstream got.
func checkWay(t *testing.T, job wire.Job, c *collector, u *flaky) {
	t.Helper()
	spans := c.got()
	if len(spans) != 3 {
		t.Fatalf("%d spans, want 3: %v", len(spans), spans)
	}
	for i, want := range []struct {
		name   string
		kind   tracepb.Span_SpanKind
		parent []byte
		has    map[string]string
	}{
		{"send default", tracepb.Span_SPAN_KIND_PRODUCER, nil, map[string]string{
			"messaging.operation.type": "send", "messaging.sluice.outcome": "admitted",
		}},
		{"process default", tracepb.Span_SPAN_KIND_CONSUMER, spans[0].SpanId, map[string]string{
			"messaging.operation.type": "process", "messaging.sluice.outcome": "retry",
			"messaging.sluice.attempt": "1", "http.response.status_code": "502", "error.type": "502"}},
		{"process default", tracepb.Span_SPAN_KIND_CONSUMER, spans[0].SpanId, map[string]string{
			"messaging.operation.type": "process", "messaging.sluice.outcome": "succeeded",
			"messaging.sluice.attempt": "2", "http.response.status_code": "200"}},
	} {
		s, about := spans[i], textsOf(spans[i].Attributes)
		what := fmt.Sprintf("span %d: ", i)
		queuetest.Compare(t, what+"name", s.Name, want.name)
		queuetest.Compare(t, what+"kind", s.Kind, want.kind)
		queuetest.Compare(t, what+"trace", fmt.Sprintf("%x", s.TraceId), clientTrace)
		if want.parent == nil && fmt.Sprintf("%x", s.ParentSpanId) != clientSpan {
			t.Errorf("span %d is not the client's child: %v", i, s)
		}
		if want.parent != nil {
			var linked [][]byte
			for _, l := range s.Links {
				linked = append(linked, l.SpanId)
			}
			queuetest.Compare(t, what+"parent", s.ParentSpanId, want.parent)
			queuetest.Compare(t, what+"links", linked, [][]byte{want.parent})
		}
		want.has["messaging.system"], want.has["messaging.destination.name"], want.has["messaging.message.id"] = "sluice", "default", job.ID
		for key, value := range want.has {
			if about[key] != value {
				t.Errorf("span %d: %s is %q, want %q", i, key, about[key], value)
			}
		}
		for _, secret := range []string{"cme & sons", "hunter2", "order.create"} {
			if text := s.String(); strings.Contains(text, secret) {
				t.Errorf("span %d contains %q of the client: %s", i, secret, text)
			}
		}
		if want.kind == tracepb.Span_SPAN_KIND_CONSUMER {
			if got, own := <-u.parents, fmt.Sprintf("00-%x-%x-01", s.TraceId, s.SpanId); got != own {
				t.Errorf("the upstream got %s, want %s", got, own)
			}
		}
	}
	for _, name := range []string{"service.name", "service.version"} {
		if c.resource[name] == "" {
			t.Errorf("the resource has no %s: %v", name, c.resource)
		}
	}
	queuetest.Compare(t, "telemetry.sdk.name", c.resource["telemetry.sdk.name"], "opentelemetry")
}

// TestTracesOfAProcess: the setting alone turns traces on, and a running process sends them soon.
func TestTracesOfAProcess(t *testing.T) {
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "20") // ms
	c, u := startCollector(t), startFlaky(t)
	now := processtest.Start(t, map[string]any{
		"routes": map[string]any{"default": map[string]any{
			"url": u.URL, "retry": map[string]any{"min_backoff": "10ms"},
		}},
		"tenants": map[string]any{"defaults": map[string]any{"rate": "100/s"}},
		"traces":  map[string]any{"endpoint": c.URL},
	})
	job := submitTraced(t, now.API.String())
	deadline := time.After(20 * time.Second)
	for len(c.got()) < 3 {
		select {
		case <-c.came:
		case <-deadline:
			t.Fatalf("only %d spans came", len(c.got()))
		}
	}
	checkWay(t, job, c, u)
}

// TestTracesOfServe: the standard variables turn traces on, name the service and bring headers;
// what is left is sent at the end. Without them, or with them and OTEL_SDK_DISABLED, nothing is
// sent and the client's traceparent goes on as it came.
func TestTracesOfServe(t *testing.T) {
	for _, disabled := range []string{"false", "true"} {
		t.Run("disabled "+disabled, func(t *testing.T) {
			c, u := startCollector(t), startFlaky(t)
			t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", c.URL)
			t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc")
			t.Setenv("OTEL_SERVICE_NAME", "orders-queue")
			t.Setenv("OTEL_SDK_DISABLED", disabled)
			file := filepath.Join(t.TempDir(), "sluice.yaml")
			if err := os.WriteFile(file, fmt.Appendf(nil, `
redis: { data_dir: %q }
api: { listen: "127.0.0.1:0" }
admin: { listen: "127.0.0.1:0" }
routes: { default: { url: %q, retry: { min_backoff: 10ms } } }
`, filepath.Join(filepath.Dir(file), "data"), u.URL), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			log, writer := io.Pipe()
			ended := make(chan int, 1)
			go func() {
				ended <- Run(ctx, []string{"serve", "--config", file},
					cli.Stdio{Out: io.Discard, Err: writer}, os.Environ())
				_ = writer.Close()
			}()
			address := ""
			lines := bufio.NewScanner(log)
			for address == "" && lines.Scan() {
				var line struct{ Msg, API string }
				if json.Unmarshal(lines.Bytes(), &line) == nil && line.Msg == "ready" {
					address = line.API
				}
			}
			rest := make(chan struct{})
			go func() {
				defer close(rest)
				_, _ = io.Copy(io.Discard, log)
			}()
			job := submitTraced(t, address)
			stop()
			if code := <-ended; code != cli.ExitOK {
				t.Errorf("exit code %d", code)
			}
			<-rest
			if disabled == "true" {
				if got := <-u.parents; len(c.got()) > 0 || got != "00-"+clientTrace+"-"+clientSpan+"-01" {
					t.Errorf("%d spans, the upstream got %s", len(c.got()), got)
				}
				return
			}
			checkWay(t, job, c, u)
			if c.resource["service.name"] != "orders-queue" || c.headers.Get("x-key") != "abc" {
				t.Errorf("resource %v, headers %v", c.resource, c.headers)
			}
		})
	}
}
