package spans_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/spans"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const (
	traceID = "0af7651916cd43dd8448eb211c80319c"
	client  = "00-" + traceID + "-b7ad6b7169203331-01"
)

// record is a tracer and the spans that it has ended.
func record(options ...sdk.TracerProviderOption) (*spans.Tracer, *tracetest.SpanRecorder) {
	r := tracetest.NewSpanRecorder()
	return spans.New(sdk.NewTracerProvider(append(options, sdk.WithSpanProcessor(r))...)), r
}

// one is the only span that was ended.
func one(t *testing.T, r *tracetest.SpanRecorder) sdk.ReadOnlySpan {
	t.Helper()
	ended := r.Ended()
	if len(ended) != 1 {
		t.Fatalf("%d spans, want 1", len(ended))
	}
	return ended[0]
}

// attributes are those of a span as text, sorted as they were set.
func attributes(s sdk.ReadOnlySpan) string {
	var b strings.Builder
	for _, a := range s.Attributes() {
		fmt.Fprintf(&b, "%s=%s ", a.Key, a.Value.String())
	}
	return strings.TrimSpace(b.String())
}

func decision(o shaper.Outcome, id string) queue.Decision {
	return queue.Decision{Admission: shaper.Admission{Outcome: o}, Job: queue.Job{ID: id}}
}

const common = "messaging.system=sluice messaging.operation.type=send messaging.operation.name=send "

func TestSend(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tt := range []struct {
		name     string
		tenant   string
		decision queue.Decision
		err      error
		want     string
		status   sdk.Status
	}{
		{"admitted", "acme", decision(shaper.Admitted, "job-1"), nil,
			"messaging.sluice.tenant=acme messaging.destination.name=orders " +
				"messaging.sluice.outcome=admitted messaging.message.id=job-1", sdk.Status{}},
		{"replayed", "acme", decision(shaper.Replayed, "job-0"), nil,
			"messaging.sluice.tenant=acme messaging.destination.name=orders " +
				"messaging.sluice.outcome=replayed messaging.message.id=job-0", sdk.Status{}},
		{"full", "acme", decision(shaper.Full, ""), nil,
			"messaging.sluice.tenant=acme messaging.destination.name=orders messaging.sluice.outcome=full " +
				"error.type=full", sdk.Status{Code: codes.Error, Description: "not admitted"}},
		{"client text", "Åcme & \r\n", decision(shaper.Admitted, "job-1"), nil,
			"messaging.sluice.tenant=" + store.EncodeName("Åcme & \r\n") +
				" messaging.destination.name=orders messaging.sluice.outcome=admitted " +
				"messaging.message.id=job-1", sdk.Status{}},
		{"redis away", "acme", queue.Decision{}, fmt.Errorf("%w: hunter2", queue.ErrUnavailable),
			"messaging.sluice.tenant=acme messaging.destination.name=orders error.type=unavailable",
			sdk.Status{Code: codes.Error, Description: "no decision"}},
		{"client gone", "acme", queue.Decision{}, ctx.Err(),
			"messaging.sluice.tenant=acme messaging.destination.name=orders error.type=cancelled",
			sdk.Status{Code: codes.Error, Description: "no decision"}},
		{"other", "acme", queue.Decision{}, errors.New("hunter2"),
			"messaging.sluice.tenant=acme messaging.destination.name=orders error.type=_OTHER",
			sdk.Status{Code: codes.Error, Description: "no decision"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tracer, r := record()
			s := tracer.Send(t.Context(), client, tt.tenant, "orders")
			s.End(tt.decision, tt.err)
			got := one(t, r)
			queuetest.Compare(t, "the name", got.Name(), "send orders")
			queuetest.Compare(t, "the kind", got.SpanKind(), trace.SpanKindProducer)
			queuetest.Compare(t, "the status", got.Status(), tt.status)
			queuetest.Compare(t, "the links", len(got.Links()), 0)
			queuetest.Compare(t, "the attributes", attributes(got), common+tt.want)
			p := got.Parent()
			queuetest.Compare(t, "the parent is remote", p.IsRemote(), true)
			queuetest.Compare(t, "the parent's trace", p.TraceID().String(), traceID)
			queuetest.Compare(t, "the parent's span", p.SpanID().String(), "b7ad6b7169203331")
			parent := "00-" + traceID + "-" + got.SpanContext().SpanID().String() + "-01"
			queuetest.Compare(t, "what the job carries", s.TraceParent, parent)
		})
	}
}

func TestSendBatch(t *testing.T) {
	for _, tt := range []struct {
		name     string
		routes   []string
		outcomes []shaper.Outcome
		err      error
		span     string
		want     string
		code     codes.Code
	}{
		{"all", []string{"orders", "orders"}, []shaper.Outcome{shaper.Admitted, shaper.Replayed}, nil,
			"send orders",
			"messaging.sluice.tenant=acme messaging.destination.name=orders " +
				"messaging.batch.message_count=2 messaging.sluice.admitted=2 messaging.sluice.refused=0",
			codes.Unset},
		{"some, of two routes", []string{"orders", "mails", "mails"},
			[]shaper.Outcome{shaper.Admitted, shaper.Full, shaper.Full}, nil, "send",
			"messaging.sluice.tenant=acme messaging.batch.message_count=3 messaging.sluice.admitted=1 " +
				"messaging.sluice.refused=2", codes.Unset},
		{"none", []string{"orders"}, []shaper.Outcome{shaper.StoreFull}, nil, "send orders",
			"messaging.sluice.tenant=acme messaging.destination.name=orders " +
				"messaging.batch.message_count=1 messaging.sluice.admitted=0 messaging.sluice.refused=1 " +
				"error.type=store_full", codes.Error},
		{"redis away", []string{"orders"}, nil, queue.ErrUnavailable, "send orders",
			"messaging.sluice.tenant=acme messaging.destination.name=orders " +
				"messaging.batch.message_count=1 error.type=unavailable", codes.Error},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tracer, r := record()
			var batch []queue.Submission
			for _, route := range tt.routes {
				batch = append(batch, queue.Submission{Tenant: "acme", Route: route})
			}
			var decisions []queue.Decision
			for _, o := range tt.outcomes {
				decisions = append(decisions, decision(o, "id"))
			}
			s := tracer.SendBatch(t.Context(), client, batch)
			s.EndBatch(decisions, tt.err)
			got := one(t, r)
			queuetest.Compare(t, "the name", got.Name(), tt.span)
			queuetest.Compare(t, "the kind", got.SpanKind(), trace.SpanKindProducer)
			queuetest.Compare(t, "the status", got.Status().Code, tt.code)
			queuetest.Compare(t, "the attributes", attributes(got), common+tt.want)
		})
	}
}

// lease is one that has waited for 1.5 s.
func lease(parent string) queue.Lease {
	return queue.Lease{
		LeaseRef: queue.LeaseRef{ID: "job-1", Epoch: 7}, Tenant: "acme", Route: "orders", Attempt: 2,
		MaxAttempts: 5, TraceParent: parent,
		Eligible: 1_000_000, Stamp: 2_500_000,
	}
}

func TestProcess(t *testing.T) {
	failed := &queue.JobError{Message: "the upstream answered 503 Service Unavailable", Status: 503}
	const common = "messaging.system=sluice messaging.operation.type=process " +
		"messaging.operation.name=process messaging.sluice.tenant=acme messaging.destination.name=orders " +
		"messaging.message.id=job-1 messaging.sluice.attempt=2 messaging.sluice.wait_ms=1500 "
	for _, tt := range []struct {
		outcome    string
		settlement queue.Settlement
		private    bool
		want       string
		status     sdk.Status
	}{
		{"succeeded", queue.Settlement{Response: &queue.Response{Status: 201}}, false,
			"messaging.sluice.outcome=succeeded http.response.status_code=201", sdk.Status{}},
		{"handed_off", queue.Settlement{}, false, "messaging.sluice.outcome=handed_off", sdk.Status{}},
		{"retry", queue.Settlement{Error: failed}, false,
			"messaging.sluice.outcome=retry http.response.status_code=503 error.type=503",
			sdk.Status{Code: codes.Error, Description: failed.Message}},
		{"dead", queue.Settlement{Error: &queue.JobError{Message: "no answer within 10s"}}, false,
			"messaging.sluice.outcome=dead error.type=dead",
			sdk.Status{Code: codes.Error, Description: "no answer within 10s"}},
		{"dead", queue.Settlement{Error: &queue.JobError{Message: "hunter2"}}, true,
			"messaging.sluice.outcome=dead error.type=dead", sdk.Status{Code: codes.Error}},
		{"succeeded", queue.Settlement{Error: &queue.JobError{Message: "hunter2"}}, true,
			"messaging.sluice.outcome=succeeded", sdk.Status{}},
	} {
		tracer, r := record()
		l := lease(client)
		d := tracer.Process(t.Context(), &l)
		if !d.Recorded() || trace.SpanContextFromContext(d.Context).TraceID().String() != traceID {
			t.Errorf("%s: the context has no span", tt.outcome)
		}
		d.End(tt.outcome, tt.settlement, tt.private)
		got := one(t, r)
		queuetest.Compare(t, "the name", got.Name(), "process orders")
		queuetest.Compare(t, "the kind", got.SpanKind(), trace.SpanKindConsumer)
		queuetest.Compare(t, "the status", got.Status(), tt.status)
		queuetest.Compare(t, "the attributes", attributes(got), common+tt.want)
		queuetest.Compare(t, "the parent's span", got.Parent().SpanID().String(), "b7ad6b7169203331")
		if links := got.Links(); len(links) != 1 || !links[0].SpanContext.Equal(got.Parent()) {
			t.Errorf("the links are %v, want one, to the parent %v", links, got.Parent())
		}
		parent := "00-" + traceID + "-" + got.SpanContext().SpanID().String() + "-01"
		queuetest.Compare(t, "what the upstream gets", d.TraceParent, parent)
	}
}

// TestParents: which traceparents are followed, and that the decision whether to sample is the
// client's where there is one.
func TestParents(t *testing.T) {
	never := sdk.WithSampler(sdk.ParentBased(sdk.NeverSample()))
	always := sdk.WithSampler(sdk.ParentBased(sdk.AlwaysSample()))
	for _, tt := range []struct {
		parent  string
		sampler sdk.TracerProviderOption
		follows bool
		flags   string
		ended   int
	}{
		{client, never, true, "01", 1},
		{"00-" + traceID + "-b7ad6b7169203331-00", always, true, "00", 0},
		{"00-" + traceID + "-b7ad6b7169203331-ff", never, true, "03", 1},
		// As the docs advise against clients that decide.
		{client, sdk.WithSampler(sdk.TraceIDRatioBased(0)), true, "00", 0},
		{"", always, false, "01", 1},
		{"", never, false, "00", 0},
		{"00-" + traceID + "-b7ad6b7169203331-0", always, false, "01", 1},
		{"00-" + traceID + "-b7ad6b7169203331-0g", always, false, "01", 1},
		{"00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", always, false, "01", 1},
		{"01-" + traceID + "-b7ad6b7169203331-01", always, false, "01", 1},
		{strings.Repeat("x", 255), always, false, "01", 1},
	} {
		tracer, r := record(tt.sampler)
		l := lease(tt.parent)
		// What the worker was started in is no parent of a delivery.
		around := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: 1,
		}))
		d := tracer.Process(around, &l)
		d.End("succeeded", queue.Settlement{}, false)
		id, flags := d.TraceParent[3:35], d.TraceParent[53:]
		queuetest.Compare(t, tt.parent+" is followed", id == traceID, tt.follows)
		queuetest.Compare(t, tt.parent+": spans", len(r.Ended()), tt.ended)
		if strings.HasPrefix(id, "01000000") {
			t.Errorf("%q: the trace is %s, the one that the worker was started in", tt.parent, id)
		}
		if flags != tt.flags && flags != "03" {
			t.Errorf("%q: the flags are %s, want %s or 03", tt.parent, flags, tt.flags)
		}
	}
}

// TestWithoutATracer: without a tracer the client's traceparent is passed on, and nothing is
// allocated.
func TestWithoutATracer(t *testing.T) {
	var tracer *spans.Tracer
	if spans.New(nil) != nil {
		t.Error("a tracer of no provider")
	}
	l, v := lease(client), decision(shaper.Admitted, "job-1")
	ctx := t.Context()
	batch := []queue.Submission{{Tenant: "acme"}}
	decisions := []queue.Decision{v}
	allocations := testing.AllocsPerRun(100, func() {
		s := tracer.Send(ctx, client, "acme", "orders")
		s.End(v, nil)
		b := tracer.SendBatch(ctx, client, batch)
		b.EndBatch(decisions, nil)
		d := tracer.Process(ctx, &l)
		d.End("succeeded", queue.Settlement{}, false)
		if s.TraceParent != client || b.TraceParent != client || d.TraceParent != client ||
			d.Context != ctx || d.Recorded() {
			t.Error("something is not as it came")
		}
	})
	if allocations != 0 {
		t.Errorf("%v allocations, want none", allocations)
	}
}

// FuzzParent: whatever is stored as a traceparent, a delivery has a valid one of its own, of the
// same trace if it was valid.
func FuzzParent(f *testing.F) {
	for _, s := range []string{client, "", "00-", "00-" + traceID + "-b7ad6b7169203331-ff", "\xff"} {
		f.Add(s)
	}
	tracer, _ := record(sdk.WithSampler(sdk.NeverSample()))
	f.Fuzz(func(t *testing.T, parent string) {
		l := lease(parent)
		d := tracer.Process(t.Context(), &l)
		d.End("succeeded", queue.Settlement{}, false)
		if len(d.TraceParent) != len(client) || d.TraceParent[:3] != "00-" {
			t.Errorf("%q: %q", parent, d.TraceParent)
		}
	})
}

// BenchmarkNone is what a submission and a delivery pay where traces are off.
func BenchmarkNone(b *testing.B) {
	var tracer *spans.Tracer
	l, v, ctx := lease(client), decision(shaper.Admitted, "job-1"), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		tracer.Send(ctx, client, "acme", "orders").End(v, nil)
		tracer.Process(ctx, &l).End("succeeded", queue.Settlement{}, false)
	}
}

// BenchmarkSpans is what they pay where traces are on: all sampled, or none.
func BenchmarkSpans(b *testing.B) {
	for name, sampler := range map[string]sdk.Sampler{
		"sampled": sdk.AlwaysSample(), "unsampled": sdk.NeverSample(),
	} {
		b.Run(name, func(b *testing.B) {
			provider := sdk.NewTracerProvider(sdk.WithSampler(sampler),
				sdk.WithBatcher(nothing{}, sdk.WithBatchTimeout(time.Hour)))
			defer func() { _ = provider.Shutdown(context.Background()) }()
			tracer := spans.New(provider)
			l, v, ctx := lease(client), decision(shaper.Admitted, "job-1"), b.Context()
			b.ReportAllocs()
			for b.Loop() {
				tracer.Send(ctx, client, "acme", "orders").End(v, nil)
				tracer.Process(ctx, &l).End("succeeded", queue.Settlement{}, false)
			}
		})
	}
}

// nothing is an exporter that takes everything.
type nothing struct{}

func (nothing) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }
func (nothing) Shutdown(context.Context) error                        { return nil }
