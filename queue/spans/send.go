package spans

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Sending is the admission of jobs, from when it is asked for to its verdict. The wait for a job's end is no part of it.
type Sending struct {
	TraceParent string // what the jobs carry on: the span's, or the client's where there is no span
	span        trace.Span
}

// Send starts the span of one job's admission; parent is the client's traceparent, empty for none.
func (t *Tracer) Send(ctx context.Context, parent, tenant, route string) Sending {
	if t == nil {
		return Sending{TraceParent: parent}
	}
	_, span, own := t.start(ctx, parent, trace.SpanKindProducer, semconv.MessagingOperationTypeSend, route, tenant)
	return Sending{own, span}
}

// SendBatch starts the span of a batch's admission. It names a destination where all jobs have the same route.
func (t *Tracer) SendBatch(ctx context.Context, parent string, batch []queue.Submission) Sending {
	if t == nil || len(batch) == 0 {
		return Sending{TraceParent: parent}
	}
	route := batch[0].Route
	for _, s := range batch {
		if s.Route != route {
			route = ""
			break
		}
	}
	_, span, own := t.start(ctx, parent, trace.SpanKindProducer, semconv.MessagingOperationTypeSend, route, batch[0].Tenant,
		semconv.MessagingBatchMessageCount(len(batch)))
	return Sending{own, span}
}

// End ends the span with the verdict, or with why there is none. A refusal is a failed send, named by its outcome.
func (s Sending) End(v queue.Verdict, err error) {
	if s.span == nil {
		return
	}
	defer s.span.End()
	if !s.span.IsRecording() || s.unanswered(err) {
		return
	}
	s.span.SetAttributes(outcomeKey.String(string(v.Outcome)))
	if !taken(v) {
		s.refused(v)
		return
	}
	s.span.SetAttributes(semconv.MessagingMessageID(v.Job.ID)) // of the earlier job, if the idempotency key is known
}

// EndBatch ends the span with the verdicts of its jobs. It has failed if none was admitted.
func (s Sending) EndBatch(verdicts []queue.Verdict, err error) {
	if s.span == nil {
		return
	}
	defer s.span.End()
	if !s.span.IsRecording() || s.unanswered(err) {
		return
	}
	admitted, refusal := 0, queue.Verdict{}
	for _, v := range verdicts {
		if taken(v) {
			admitted++
		} else if refusal.Outcome == "" {
			refusal = v
		}
	}
	s.span.SetAttributes(admittedKey.Int(admitted), refusedKey.Int(len(verdicts)-admitted))
	if admitted == 0 {
		s.refused(refusal)
	}
}

func taken(v queue.Verdict) bool { return v.Outcome == shaper.Admitted || v.Outcome == shaper.Replayed }

func (s Sending) refused(v queue.Verdict) {
	s.span.SetAttributes(semconv.ErrorTypeKey.String(string(v.Outcome)))
	s.span.SetStatus(codes.Error, "not admitted")
}

// unanswered takes an error into the span, in words of our own, and reports whether there was one.
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
	s.span.SetStatus(codes.Error, "no verdict")
	return true
}
