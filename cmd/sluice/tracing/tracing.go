// Package tracing sends the spans of a process to an OpenTelemetry collector, by OTLP over HTTP.
//
// It is off unless an endpoint is set, by the configuration or by the standard variables. What
// OpenTelemetry's own variables say of headers, certificates, compression, time limits, batches and
// the resource is left to its SDK.
//
// What it promises: a collector that is away, slow or refuses everything costs spans and nothing
// else. Spans wait in a queue of bounded size (OTEL_BSP_MAX_QUEUE_SIZE, 2,048) and are dropped
// where it is full; one log line tells that they are lost, and one that they are not any more.
// Close sends what is left, for a bounded time.
package tracing

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
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/7509e464/sluice/queue/spans"
	"github.com/7509e464/sluice/shaper"
)

// closeGrace is how long Close may take.
const closeGrace = 3 * time.Second

// Config is what the program knows of its traces.
type Config struct {
	Endpoint   string              // http or https URL; spans go to /v1/traces there, unless it has a path. Empty: as the variables say
	Sample     *float64            // share of the traces begun here, 0 to 1, where the client does not decide; nil: as the variables say, else 1
	Version    string              // of the program
	Getenv     func(string) string // nil: there are no variables
	Registerer prometheus.Registerer
	Logger     *slog.Logger
}

// Tracing is the way of the spans out of the process. Nil is off.
type Tracing struct {
	provider *sdk.TracerProvider
	exporter *watched
	close    sync.Once
}

// Open prepares the export, without a look at the collector. It returns nil where traces are off,
// and fails where the settings cannot work together, such as a client certificate for an endpoint
// without TLS.
func Open(ctx context.Context, cfg Config) (*Tracing, error) {
	if cfg.Getenv == nil {
		cfg.Getenv = func(string) string { return "" }
	}
	at, err := cfg.endpoint()
	if at == "" || err != nil {
		return nil, err
	}
	// The SDK has one place for what it has to say, and writes to standard error by itself.
	otel.SetLogger(logr.FromSlogHandler(cfg.Logger.Handler()))
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { cfg.Logger.Warn("traces", "error", short(err)) }))
	if p := cfg.protocol(); strings.HasPrefix(p, "grpc") {
		cfg.Logger.Warn("traces are sent by OTLP over HTTP, although the environment asks for grpc: the endpoint must be one for HTTP, usually port 4318")
	}
	var options []otlptracehttp.Option
	if cfg.Endpoint != "" {
		options = append(options, otlptracehttp.WithEndpointURL(at))
	}
	to, err := otlptracehttp.New(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	exporter, err := watch(to, at, cfg.Registerer, cfg.Logger)
	if err != nil {
		return nil, fmt.Errorf("traces: metrics: %w", err)
	}
	who, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("sluice"), semconv.ServiceVersion(cfg.Version), semconv.ServiceInstanceID(uuid.NewString())),
		resource.WithHost(), resource.WithTelemetrySDK(), resource.WithFromEnv())
	if err != nil {
		cfg.Logger.Warn("traces: not all is known of this process", "error", short(err))
	}
	trace := []sdk.TracerProviderOption{sdk.WithBatcher(exporter), sdk.WithResource(who)}
	if cfg.Sample != nil {
		trace = append(trace, sdk.WithSampler(sdk.ParentBased(sdk.TraceIDRatioBased(*cfg.Sample))))
	}
	cfg.Logger.Info("traces are sent", "to", at)
	return &Tracing{provider: sdk.NewTracerProvider(trace...), exporter: exporter}, nil
}

// The variables that say where spans are sent: the first for traces alone, as it stands, the second
// for all there is to send.
const (
	tracesEndpoint = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
	baseEndpoint   = "OTEL_EXPORTER_OTLP_ENDPOINT"
)

// endpoint is where spans are sent, without what may be secret in a URL. It is empty where traces
// are off. The error is of type shaper.Problems: the SDK would take its default instead of a
// variable that is no URL.
func (c Config) endpoint() (string, error) {
	if strings.EqualFold(strings.TrimSpace(c.Getenv("OTEL_SDK_DISABLED")), "true") || c.Getenv("OTEL_TRACES_EXPORTER") == "none" {
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
		return "", shaper.Problems{{Field: field, Value: "(hidden)", Rule: "must be an http:// or https:// URL, such as http://127.0.0.1:4318"}}
	}
	if field == baseEndpoint || field != tracesEndpoint && strings.Trim(u.Path, "/") == "" {
		u = u.JoinPath("v1/traces")
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String(), nil
}

func (c Config) protocol() string {
	if p := c.Getenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"); p != "" {
		return p
	}
	return c.Getenv("OTEL_EXPORTER_OTLP_PROTOCOL")
}

// Tracer makes the spans that are sent; nil where traces are off.
func (t *Tracing) Tracer() *spans.Tracer {
	if t == nil {
		return nil
	}
	return spans.New(t.provider)
}

// Close sends what is left, within closeGrace, and ends the export. It may be called again.
func (t *Tracing) Close() {
	if t == nil {
		return
	}
	t.close.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeGrace)
		defer cancel()
		t.exporter.closed(t.provider.Shutdown(ctx))
	})
}
