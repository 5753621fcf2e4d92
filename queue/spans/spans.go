// Package spans makes the OpenTelemetry spans of a job's way, by the semantic conventions for messaging (1.43), with Sluice as the
// messaging system and the route as the destination:
//
//	client's span ──► send ROUTE (PRODUCER) ──► process ROUTE (CONSUMER) ──► what the upstream or the handler does
//	                  the admission             one per attempt
//
// A send span is the child of the traceparent that came with the submission. Its own traceparent is stored with the job, so each process
// span, however late and in whatever process, is its child, and what a delivery is sent with is the traceparent of its process span. A
// process span is linked to its send span as well: the conventions want the link in any case, and allow the parent where a span is of one
// message and there is no other span around it, which is always so here. With the parent one trace tells all of a job, and whoever
// follows the client's trace to the upstream finds the same trace as without spans in between.
//
// A batch has one send span, which its jobs share: a span for each of up to 1,000 jobs would cost more than their admission.
//
// What it promises: a nil *Tracer makes no spans, allocates nothing and leaves the client's traceparent as it is. Spans hold ids, the
// route, counts and outcomes; of the tenant its name as in keys, so never client text. What it leaves to others: where spans are sent,
// and which are sampled.
package spans

import (
	"context"
	"encoding/hex"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/queue"
)

// Attributes that the conventions leave to each messaging system.
const (
	tenantKey   = attribute.Key("messaging.sluice.tenant")   // as in Redis keys: a hash where the name is not plain
	outcomeKey  = attribute.Key("messaging.sluice.outcome")  // of an admission or a delivery
	attemptKey  = attribute.Key("messaging.sluice.attempt")  // number of the delivery, from 1
	waitKey     = attribute.Key("messaging.sluice.wait_ms")  // from when the job could have left to its stamp
	admittedKey = attribute.Key("messaging.sluice.admitted") // jobs of a batch
	refusedKey  = attribute.Key("messaging.sluice.refused")  // jobs of a batch
)

var system = semconv.MessagingSystemKey.String("sluice")

// Tracer makes spans. Nil makes none.
type Tracer struct{ tracer trace.Tracer }

// New makes spans of the provider. Without one, which is nil, it makes none.
func New(p trace.TracerProvider) *Tracer {
	if p == nil {
		return nil
	}
	return &Tracer{p.Tracer("github.com/7509e464/sluice", trace.WithSchemaURL(semconv.SchemaURL))}
}

// start starts a span whose parent is the traceparent, and returns it with its own. operation is both the conventions' type and the name.
func (t *Tracer) start(
	ctx context.Context, parent string, kind trace.SpanKind, operation attribute.KeyValue, route, tenant string, more ...attribute.KeyValue,
) (context.Context, trace.Span, string) {
	name := operation.Value.AsString()
	attributes := make([]attribute.KeyValue, 0, 6+len(more)) // with room for what is added
	attributes = append(attributes, system, operation, semconv.MessagingOperationName(name), tenantKey.String(queue.EncodeName(tenant)))
	if route != "" {
		name += " " + route
		attributes = append(attributes, semconv.MessagingDestinationName(route))
	}
	options := []trace.SpanStartOption{trace.WithSpanKind(kind), trace.WithAttributes(append(attributes, more...)...)}
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

// contextOf reads a traceparent of version 00, as package api keeps them; what is not one is no context. Flags that are not known are
// dropped, where propagation.TraceContext would drop the trace.
func contextOf(parent string) trace.SpanContext {
	const size = len("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	if len(parent) != size || parent[:3] != "00-" || parent[35] != '-' || parent[52] != '-' {
		return trace.SpanContext{}
	}
	traceID, badTrace := trace.TraceIDFromHex(parent[3:35])
	spanID, badSpan := trace.SpanIDFromHex(parent[36:52])
	flags, badFlags := hex.DecodeString(parent[53:])
	if badTrace != nil || badSpan != nil || badFlags != nil {
		return trace.SpanContext{}
	}
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: traceID, SpanID: spanID, TraceFlags: trace.TraceFlags(flags[0]) & (trace.FlagsSampled | trace.FlagsRandom), Remote: true,
	})
}

// errorType is the attribute of what failed, by the status of an answer if there was one.
func errorType(status int, kind string) attribute.KeyValue {
	if status != 0 {
		kind = strconv.Itoa(status)
	}
	return semconv.ErrorTypeKey.String(kind)
}
