package process

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/shaper"
)

// closeGrace bounds the duration of Close.
const closeGrace = 3 * time.Second

// tracesConfig holds the settings of traces.
type tracesConfig struct {
	// Endpoint is an http or https URL; without a path, /v1/traces is added. Empty: OpenTelemetry's
	// variables decide.
	Endpoint   string
	Sample     *float64            // share of sampled traces that begin here, 0 to 1; nil: the variables decide
	Version    string              // of the program
	Getenv     func(string) string // nil: there are no variables
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// tracing sends the spans of a process to an OpenTelemetry collector, by OTLP over HTTP. Nil is
// off: so it is unless the configuration or a standard variable sets an endpoint. OpenTelemetry's
// own variables for headers, certificates, compression, timeouts, batches and the resource apply.
//
// A collector that is unreachable, slow or refusing loses spans and affects nothing else. Spans
// wait in a bounded queue (OTEL_BSP_MAX_QUEUE_SIZE, 2,048) and are dropped while it is full. One
// log line reports the first loss, and one the recovery. Close sends the remaining spans, for a
// bounded time.
type tracing struct {
	provider *sdk.TracerProvider
	exporter *watched
	close    sync.Once
}

// openTraces prepares the export without contacting the collector. It returns nil if traces are
// off. It fails if settings contradict each other, such as a client certificate for an endpoint
// without TLS.
func openTraces(ctx context.Context, cfg tracesConfig) (*tracing, error) {
	if cfg.Getenv == nil {
		cfg.Getenv = func(string) string { return "" }
	}
	at, err := cfg.endpoint()
	if at == "" || err != nil {
		return nil, err
	}
	// The SDK has global loggers, which write to standard error by default.
	otel.SetLogger(logr.FromSlogHandler(cfg.Logger.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) {
		cfg.Logger.Warn("traces", "error",
			shortError(err))
	}))
	switch p := cfg.protocol(); p {
	case "", "http/protobuf":
	case "grpc":
		cfg.Logger.Warn("OTLP over gRPC is not supported: traces are sent over HTTP, so the endpoint must " +
			"accept HTTP, usually on port 4318")
	default:
		cfg.Logger.Warn("traces are sent as http/protobuf, the only protocol of OTLP that is supported",
			"wanted", p)
	}
	client, err := newCollector(at, cfg.Getenv)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	to, err := otlptrace.New(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	exporter, err := watch(to, at, cfg.Registerer, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("traces: metrics: %w", err)
	}
	who, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("sluice"), semconv.ServiceVersion(cfg.Version),
			semconv.ServiceInstanceID(uuid.NewString())),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		cfg.Logger.Warn("traces: the resource attributes of this process are incomplete", "error", shortError(err))
	}
	provided := []sdk.TracerProviderOption{sdk.WithBatcher(exporter), sdk.WithResource(who)}
	if cfg.Sample != nil {
		provided = append(provided, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(*cfg.Sample))))
	}
	cfg.Logger.Info("traces are sent", "to", at)
	return &tracing{provider: sdk.NewTracerProvider(provided...), exporter: exporter}, nil
}

// The variables of the endpoint. The first one is for traces alone and used unchanged; the second
// one is the base for all signals.
const (
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	baseEndpoint   = "OTEL_EXPORTER_OTLP_ENDPOINT"
)

// endpoint returns the URL for spans without secrets, empty if traces are off. The error is of type
// shaper.Problems. It reports an invalid URL in a variable, which the SDK replaces by its default.
func (c tracesConfig) endpoint() (string, error) {
	if strings.EqualFold(strings.TrimSpace(c.Getenv("OTEL_SDK_DISABLED")), "true") ||
		c.Getenv("OTEL_TRACES_EXPORTER") == "none" {
		return "", nil
	}
	field, given := "traces.endpoint", c.Endpoint
	for _, name := range []string{tracesEndpoint, baseEndpoint} {
		if given == "" {
			field, given = name, strings.TrimSpace(c.Getenv(name))
		}
	}
	if given == "" {
		return "", nil
	}
	u, err := url.Parse(given)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", shaper.Problems{{Field: field, Value: "(hidden)",
			Rule: "must be an http:// or https:// URL, such as http://127.0.0.1:4318"}}
	}
	if field == baseEndpoint || field != tracesEndpoint && strings.Trim(u.Path, "/") == "" {
		u = u.JoinPath("v1/traces")
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String(), nil
}

func (c tracesConfig) protocol() string {
	if p := c.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"); p != "" {
		return p
	}
	return c.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
}

// Provider returns the provider of tracers, nil if traces are off.
func (t *tracing) Provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.provider
}

// Close sends the remaining spans within closeGrace and ends the export. It may be called again.
func (t *tracing) Close() {
	if t == nil {
		return
	}
	t.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		t.exporter.closed(t.provider.Shutdown(ctx))
	})
}
