// Package spans makes the OpenTelemetry spans of jobs by the semantic conventions for messaging
// (1.43). The route is the destination:
//
//	client's span ──► send ROUTE (PRODUCER) ──► process ROUTE (CONSUMER) ──► what the upstream or the handler does
//	                  the admission             one per attempt
//
// A send span is the child of the submission's traceparent. Its own traceparent is stored with the
// job and makes it the parent of each process span, whose traceparent the delivery carries. So one
// trace shows all of a job. A process span also links to its send span, as the conventions require.
//
// The jobs of a batch share one send span: up to 1,000 spans would cost more than the admission.
//
// A nil *Tracer makes no spans, allocates nothing and passes the submitted traceparent on. Spans
// hold ids, the route, counts and outcomes, and the tenant's name as in keys, never client text.
package spans

import (
	"context"
	"fmt"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/internal/store"
)

// Attributes that the conventions leave to each messaging system.
const (
	// tenantKey is as in Redis keys: a hash where the name is not plain.
	tenantKey   = attribute.Key("messaging.sluice.tenant")
	outcomeKey  = attribute.Key("messaging.sluice.outcome")  // of an admission or a delivery
	attemptKey  = attribute.Key("messaging.sluice.attempt")  // number of the delivery, from 1
	waitKey     = attribute.Key("messaging.sluice.wait_ms")  // from when the job could have left to its stamp
	admittedKey = attribute.Key("messaging.sluice.admitted") // jobs of a batch
	refusedKey  = attribute.Key("messaging.sluice.refused")  // jobs of a batch
)

var system = semconv.MessagingSystemKey.String("sluice")

// Tracer makes spans. Nil makes none.
type Tracer struct{ tracer trace.Tracer }

// New returns a tracer of the provider, nil without one.
func New(p trace.TracerProvider) *Tracer {
	if p == nil {
		return nil
	}
	return &Tracer{p.Tracer("github.com/7509e464/sluice", trace.WithSchemaURL(semconv.SchemaURL))}
}

// start starts a span whose parent is the traceparent. It returns the span and its traceparent.
// operation is the conventions' type and the name.
func (t *Tracer) start(
	ctx context.Context, parent string, kind trace.SpanKind, operation attribute.KeyValue, route, tenant string,
	more ...attribute.KeyValue,
) (context.Context, trace.Span, string) {
	name := operation.Value.AsString()
	attributes := []attribute.KeyValue{
		system, operation, semconv.MessagingOperationName(name), tenantKey.String(store.EncodeName(tenant)),
	}
	if route != "" {
		name += " " + route
		attributes = append(attributes, semconv.MessagingDestinationName(route))
	}
	options := []trace.SpanStartOption{
		trace.WithSpanKind(kind), trace.WithAttributes(append(attributes, more...)...),
	}
	if of := contextOf(parent); of.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, of)
		if kind == trace.SpanKindConsumer {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: of}))
		}
	} else {
		options = append(options, trace.WithNewRoot())
	}
	ctx, span := t.tracer.Start(ctx, name, options...)
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	if own := carrier.Get("traceparent"); own != "" {
		return ctx, span, own
	}
	return ctx, span, parent // of a provider that makes none
}

// contextOf decodes a traceparent of version 00. Unknown flags are cleared, for which
// propagation.TraceContext would reject all of it.
func contextOf(parent string) trace.SpanContext {
	const flags = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-")
	if len(parent) != flags+2 || parent[:3] != "00-" {
		return trace.SpanContext{}
	}
	given, err := strconv.ParseUint(parent[flags:], 16, 8)
	if err != nil {
		return trace.SpanContext{}
	}
	known := given & uint64(trace.FlagsSampled|trace.FlagsRandom)
	carrier := propagation.MapCarrier{"traceparent": fmt.Sprintf("%s%02x", parent[:flags], known)}
	return trace.SpanContextFromContext(propagation.TraceContext{}.Extract(context.Background(), carrier))
}

// errorType is the error.type attribute: the status of an answer, or the kind without one.
func errorType(status int, kind string) attribute.KeyValue {
	if status != 0 {
		kind = strconv.Itoa(status)
	}
	return semconv.ErrorTypeKey.String(kind)
}
