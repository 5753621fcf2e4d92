package spans

import (
	"context"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/queue"
)

// Delivery is the span of one attempt to deliver a job, without its settlement.
type Delivery struct {
	Context     context.Context // holds the span, for the handler
	TraceParent string          // of the delivery: the span's, or as submitted without a span
	span        trace.Span
}

// Process starts the span of one delivery of the lease's job.
func (t *Tracer) Process(ctx context.Context, l *queue.Lease) Delivery {
	if t == nil {
		return Delivery{Context: ctx, TraceParent: l.TraceParent}
	}
	ctx, span, own := t.start(ctx, l.TraceParent, trace.SpanKindConsumer,
		semconv.MessagingOperationTypeProcess, l.Route, l.Tenant,
		semconv.MessagingMessageID(l.ID), attemptKey.Int(l.Attempt),
		waitKey.Int64(max(0, l.Stamp.Sub(l.Eligible).Milliseconds())))
	return Delivery{ctx, own, span}
}

// Recorded reports whether the span records its end.
func (d Delivery) Recorded() bool { return d.span != nil && d.span.IsRecording() }

// End ends the span. outcome is a value of the metrics' label; every outcome but succeeded and
// handed_off is an error. The error of the settlement describes it, unless private is true: the
// text may quote the payload.
func (d Delivery) End(outcome string, s queue.Settlement, private bool) {
	if d.span == nil {
		return
	}
	defer d.span.End()
	if !d.span.IsRecording() {
		return
	}
	d.span.SetAttributes(outcomeKey.String(outcome))
	status, why := 0, ""
	if s.Response != nil {
		status = s.Response.Status
	}
	if s.Error != nil {
		status, why = max(status, s.Error.Status), s.Error.Message
		if s.Error.Detail != "" {
			why += ": " + s.Error.Detail
		}
	}
	if status != 0 {
		d.span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	}
	if outcome == "succeeded" || outcome == "handed_off" {
		return
	}
	if private {
		why = ""
	}
	d.span.SetAttributes(errorType(status, outcome))
	d.span.SetStatus(codes.Error, why)
}
