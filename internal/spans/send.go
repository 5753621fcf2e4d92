package spans

import (
	"context"
	"errors"
	"slices"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Sending is the span of an admission, up to its decision.
type Sending struct {
	TraceParent string // of the jobs: the span's, or the client's without a span
	span        trace.Span
}

// Send starts the span of an admission; parent is the client's traceparent, empty for none.
func (t *Tracer) Send(ctx context.Context, parent, tenant, route string, more ...attribute.KeyValue) Sending {
	if t == nil {
		return Sending{TraceParent: parent}
	}
	_, span, own := t.start(ctx, parent, trace.SpanKindProducer, semconv.MessagingOperationTypeSend,
		route, tenant, more...)
	return Sending{own, span}
}

// SendBatch starts the span of a batch, with a destination if all its jobs have the same route.
func (t *Tracer) SendBatch(ctx context.Context, parent string, batch []queue.Submission) Sending {
	if t == nil || len(batch) == 0 {
		return Sending{TraceParent: parent}
	}
	route := batch[0].Route
	if slices.ContainsFunc(batch, func(s queue.Submission) bool { return s.Route != route }) {
		route = ""
	}
	return t.Send(ctx, parent, batch[0].Tenant, route, semconv.MessagingBatchMessageCount(len(batch)))
}

// End ends the span with the decision or the error. A refusal is an error, named by its outcome.
func (s Sending) End(v queue.Decision, err error) {
	s.end(err, func() {
		s.span.SetAttributes(outcomeKey.String(string(v.Outcome)))
		if taken(v) {
			// Of the earlier job, if the idempotency key is known.
			s.span.SetAttributes(semconv.MessagingMessageID(v.Job.ID))
		} else {
			s.refused(v)
		}
	})
}

// EndBatch ends the span with the decisions of its jobs. It has failed if none was admitted.
func (s Sending) EndBatch(decisions []queue.Decision, err error) {
	s.end(err, func() {
		refused := slices.DeleteFunc(slices.Clone(decisions), taken)
		admitted := len(decisions) - len(refused)
		s.span.SetAttributes(admittedKey.Int(admitted), refusedKey.Int(len(refused)))
		if admitted == 0 && len(refused) > 0 {
			s.refused(refused[0])
		}
	})
}

// end ends the span, after answered has described an answer.
func (s Sending) end(err error, answered func()) {
	if s.span == nil {
		return
	}
	if s.span.IsRecording() && !s.unanswered(err) {
		answered()
	}
	s.span.End()
}

func taken(v queue.Decision) bool {
	return v.Outcome == shaper.Admitted || v.Outcome == shaper.Replayed
}

func (s Sending) refused(v queue.Decision) {
	s.span.SetAttributes(semconv.ErrorTypeKey.String(string(v.Outcome)))
	s.span.SetStatus(codes.Error, "not admitted")
}

// unanswered records the kind of an error and reports whether there was one.
func (s Sending) unanswered(err error) bool {
	kind := "_OTHER"
	switch {
	case err == nil:
		return false
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		kind = "cancelled"
	case errors.Is(err, queue.ErrUnavailable):
		kind = "unavailable"
	case errors.Is(err, queue.ErrScript):
		kind = "damaged"
	}
	s.span.SetAttributes(semconv.ErrorTypeKey.String(kind))
	s.span.SetStatus(codes.Error, "no decision")
	return true
}
