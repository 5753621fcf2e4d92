package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/spans"
	"github.com/7509e464/sluice/queue"
)

// The setting outranks the standard variables. An invalid endpoint is refused by its field, without
// its text.
func TestEndpoint(t *testing.T) {
	const base, own = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	for _, tt := range []struct {
		setting   string
		variables map[string]string
		want      string
		bad       string // the field that is wrong
	}{
		{"", nil, "", ""},
		{"http://127.0.0.1:4318", nil, "http://127.0.0.1:4318/v1/traces", ""},
		{"http://127.0.0.1:4318/", nil, "http://127.0.0.1:4318/v1/traces", ""},
		{"https://c.example/otlp/traces", nil, "https://c.example/otlp/traces", ""},
		{"", map[string]string{base: "http://c.example:4318"}, "http://c.example:4318/v1/traces", ""},
		{"", map[string]string{base: "http://c.example/otlp"}, "http://c.example/otlp/v1/traces", ""},
		{"", map[string]string{base: "http://c.example", own: "https://me:hunter2@d.example/x?token=hunter2"},
			"https://d.example/x", ""},
		{"http://a.example/x", map[string]string{base: "http://c.example", own: "http://d.example"},
			"http://a.example/x", ""},
		{"", map[string]string{base: " "}, "", ""},
		{"", map[string]string{base: "127.0.0.1:4318"}, "", base},
		{"", map[string]string{base: "grpc://c.example:4317"}, "", base},
		{"", map[string]string{own: "hunter2"}, "", own},
		{"http://a.example", map[string]string{"OTEL_SDK_DISABLED": "true"}, "", ""},
		{"http://a.example", map[string]string{"OTEL_SDK_DISABLED": "no"}, "http://a.example/v1/traces", ""},
		{"", map[string]string{base: "http://c.example", "OTEL_TRACES_EXPORTER": "none"}, "", ""},
		{"", map[string]string{base: "http://c.example", "OTEL_TRACES_EXPORTER": "otlp"},
			"http://c.example/v1/traces", ""},
	} {
		got, err := tracesConfig{Endpoint: tt.setting, Getenv: func(name string) string {
			return tt.variables[name]
		}}.endpoint()
		what := fmt.Sprintf("%q, %v: ", tt.setting, tt.variables)
		queuetest.Compare(t, what+"the endpoint", got, tt.want)
		queuetest.Compare(t, what+"is refused", err != nil, tt.bad != "")
		if err == nil {
			continue
		}
		queuetest.Contains(t, what+"the error", err.Error(), tt.bad)
		if strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%sthe error reveals a secret: %v", what, err)
		}
	}
}

// failing is an exporter whose exports return err.
type failing struct{ err error }

func (f *failing) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return f.err }
func (f *failing) Shutdown(context.Context) error                        { return nil }

// An outage of the collector is logged once when it begins, and once when it ends.
func TestOneLinePerChange(t *testing.T) {
	var log queuetest.Log
	next := &failing{}
	registry := prometheus.NewRegistry()
	w, err := watch(next, "http://c.example/v1/traces", registry, log.Logger(slog.LevelInfo))
	if err != nil {
		t.Fatal(err)
	}
	batch := tracetest.SpanStubs{{Name: "a"}, {Name: "b"}}.Snapshots()
	for _, err := range []error{
		nil, errors.New("down\nfor\tlong " + strings.Repeat("x", 1000)), errors.New("down"), nil, nil,
		errors.New("down"),
	} {
		next.err = err
		if got := w.ExportSpans(t.Context(), batch); got != nil {
			t.Errorf("the SDK gets %v", got)
		}
	}
	w.closed(nil)
	text := log.String()
	for part, want := range map[string]int{"\n": 4, "traces cannot be sent": 2, "traces are sent again": 1} {
		if n := strings.Count(text, part); n != want {
			t.Errorf("%q is logged %d times, want %d:\n%s", part, n, want, text)
		}
	}
	queuetest.Contains(t, "the log", text, "lost=4", "the last traces were not sent")
	if len(text) > 1200 {
		t.Errorf("the log has %d bytes, want at most 1200:\n%s", len(text), text)
	}
	want := `
# HELP sluice_trace_spans_total Spans that were sent to the collector, or could not be.
# TYPE sluice_trace_spans_total counter
sluice_trace_spans_total{result="exported"} 6
sluice_trace_spans_total{result="failed"} 6
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// A collector that hangs delays no span, and the end by the grace at most.
func TestCollectorThatHangs(t *testing.T) {
	asked, end := make(chan struct{}, 1), make(chan struct{})
	collector := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		select {
		case asked <- struct{}{}:
		default:
		}
		<-end
	}))
	defer collector.Close()
	defer close(end)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10") // ms
	t.Setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
	var log queuetest.Log
	traces, err := openTraces(t.Context(), tracesConfig{Endpoint: collector.URL, Logger: log.Logger(slog.LevelInfo)})
	if err != nil {
		t.Fatal(err)
	}
	tracer := spans.New(traces.Provider())
	span := func() {
		l := queue.Lease{Tenant: "acme", Route: "default"}
		tracer.Process(t.Context(), &l).End("succeeded", queue.Settlement{}, false)
	}
	span()
	<-asked
	begin := time.Now()
	for range 1000 { // more than the queue holds: waiting for capacity would take the exporter's 10 s
		span()
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("1,000 spans took %v", took)
	}
	begin = time.Now()
	traces.Close()
	traces.Close()
	if took := time.Since(begin); took > closeGrace+2*time.Second {
		t.Errorf("the end took %v", took)
	}
	if text := log.String(); strings.Count(text, "the last traces were not sent") != 1 {
		t.Errorf("the log is %s, want that the last traces were not sent, once", text)
	}
}

// Without an endpoint there are no traces, and the methods of nil work.
func TestTracingIsOff(t *testing.T) {
	traces, err := openTraces(t.Context(), tracesConfig{})
	if traces != nil || err != nil {
		t.Errorf("%v, %v, want neither traces nor an error", traces, err)
	}
	if traces.Provider() != nil {
		t.Error("there is a tracer")
	}
	traces.Close()
}

func TestOpenRefusesRegisteredMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	cfg := tracesConfig{Endpoint: "http://127.0.0.1:1", Registerer: registry, Logger: slog.New(slog.DiscardHandler)}
	first, err := openTraces(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if _, err := openTraces(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "traces: metrics") {
		t.Errorf("metrics that are there already: %v", err)
	}
}

// TestTracesWithoutProxy: no proxy variable redirects traces. The variables never concern
// loopback; 0.0.0.0 leads there, and is another address to them.
func TestTracesWithoutProxy(t *testing.T) {
	came := make(chan string, 2)
	serve := func(name string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			came <- name
		}))
	}
	proxy, collector := serve("proxy"), serve("collector")
	defer proxy.Close()
	defer collector.Close()
	t.Setenv("HTTP_PROXY", proxy.URL)
	var log queuetest.Log
	traces, err := openTraces(t.Context(), tracesConfig{
		Endpoint: strings.Replace(collector.URL, "127.0.0.1", "0.0.0.0", 1), Logger: log.Logger(slog.LevelInfo),
	})
	if err != nil {
		t.Fatal(err)
	}
	l := queue.Lease{Tenant: "acme", Route: "default"}
	spans.New(traces.Provider()).Process(t.Context(), &l).End("succeeded", queue.Settlement{}, false)
	traces.Close()
	if at := <-came; at != "collector" {
		t.Errorf("the %s got the traces", at)
	}
}
