package worker

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// recorded is a tracer and the spans that it has ended.
func recorded() (*sdk.TracerProvider, *tracetest.SpanRecorder) {
	r := tracetest.NewSpanRecorder()
	return sdk.NewTracerProvider(sdk.WithSpanProcessor(r)), r
}

// toldOf is the value of an attribute of the span as text, empty if it has none.
func toldOf(s sdk.ReadOnlySpan, key attribute.Key) string {
	for _, a := range s.Attributes() {
		if a.Key == key {
			return a.Value.String()
		}
	}
	return ""
}

// TestSpansOfDeliveries: each attempt has a span of its own with its outcome, a child of the span
// that submitted the job. The deliverer gets the traceparent of the attempt.
func TestSpansOfDeliveries(t *testing.T) {
	const of = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	ends := map[string]queue.Settlement{
		"ok":     {Event: shaper.Succeed, Response: &queue.Response{Status: 200}},
		"again":  {Event: shaper.Retry, MaxAttempts: 3, Error: &queue.JobError{Message: "no answer within 10s"}},
		"last":   {Event: shaper.Retry, MaxAttempts: 1, Error: &queue.JobError{Message: "busy", Status: 503}},
		"own":    {Event: shaper.Retry, Error: &queue.JobError{Message: "busy", Status: 503}},
		"held":   {Event: shaper.Hold, Error: &queue.JobError{Message: "slow down", Status: 429}},
		"handed": {},
		"refused": {
			Event: shaper.Die, Error: &queue.JobError{Message: "bad", Status: 400},
			Response: &queue.Response{Status: 400},
		},
	}
	want := map[string]string{
		"ok": "succeeded", "again": "retry", "last": "dead", "own": "retry", "held": "held",
		"handed": "handed_off", "refused": "dead", "panics": "retry",
	}
	synctest.Test(t, func(t *testing.T) {
		tracer, recorder := recorded()
		q := newFakeQueue(1)
		got := make(chan [2]string, len(want))
		r := startRig(t, q, Config{Traces: tracer}, func(ctx context.Context, l *queue.Lease) queue.Settlement {
			got <- [2]string{l.ID, l.TraceParent}
			if trace.SpanFromContext(ctx).SpanContext().TraceID().String() != of[3:35] {
				t.Errorf("%s: the context does not hold the span", l.ID)
			}
			s, ok := ends[l.ID]
			if !ok {
				panic("secret")
			}
			s.LeaseRef = l.LeaseRef
			return s
		})
		for id := range want {
			q.put(0, id, 2*time.Second)
		}
		q.set(func() {
			for i := range q.shards[0].jobs {
				q.shards[0].jobs[i].TraceParent = of
			}
		})
		time.Sleep(5 * time.Second)
		r.end(t)
		close(got)
		parents := map[string]string{}
		for g := range got {
			parents[g[0]] = g[1]
		}
		ended := recorder.Ended()
		if len(ended) != len(want) {
			t.Fatalf("%d spans, want %d", len(ended), len(want))
		}
		for _, s := range ended {
			id := toldOf(s, "messaging.message.id")
			queuetest.Compare(t, id+": kind", s.SpanKind(), trace.SpanKindConsumer)
			queuetest.Compare(t, id+": name", s.Name(), "process default")
			queuetest.Compare(t, id+": outcome", toldOf(s, "messaging.sluice.outcome"), want[id])
			queuetest.Compare(t, id+": attempt", toldOf(s, "messaging.sluice.attempt"), "1")
			queuetest.Compare(t, id+": wait", toldOf(s, "messaging.sluice.wait_ms"), "2000")
			failed := s.Status().Code == codes.Error
			if failed != (want[id] != "succeeded" && want[id] != "handed_off") {
				t.Errorf("%s: %v", id, s.Status())
			}
			own := fmt.Sprintf("00-%s-%s-01", s.SpanContext().TraceID(), s.SpanContext().SpanID())
			if parents[id] != own || s.Parent().SpanID().String() != of[36:52] {
				t.Errorf("%s: delivered with %s, the span is %s below %v", id, parents[id], own, s.Parent())
			}
		}
	})
}

// TestSpansOfHandlers: a handler finds the span in its context, and the traceparent in what
// Delivery tells; its error, which may quote the payload, stays with the job.
func TestSpansOfHandlers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tracer, recorder := recorded()
		q := newFakeQueue(1)
		handler := asynq.HandlerFunc(func(ctx context.Context, _ *asynq.Task) error {
			info, _ := Delivery(ctx)
			of := trace.SpanContextFromContext(ctx)
			want := fmt.Sprintf("00-%s-%s-01", of.TraceID(), of.SpanID())
			if !of.IsValid() || info.TraceParent != want {
				t.Errorf("Delivery tells %s, the context %s", info.TraceParent, want)
			}
			return errors.New("hunter2")
		})
		w, err := newWorker(q, q.consumer, newTimerWaiter, Config{
			Traces: tracer, Handler: handler, Routes: map[string]Route{"default": {Handler: true}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- w.Run(ctx) }()
		q.put(0, "job-1", 0)
		time.Sleep(20 * time.Second)
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		ended := recorder.Ended()
		if len(ended) != 1 {
			t.Fatalf("%d spans, want 1: %v", len(ended), ended)
		}
		queuetest.Compare(t, "the status", ended[0].Status(), sdk.Status{Code: codes.Error})
		queuetest.Compare(t, "the error's type", toldOf(ended[0], "error.type"), "retry")
		queuetest.Compare(t, "the span has a parent", ended[0].Parent().IsValid(), false)
	})
}
