package api

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

const traced = "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"

// TestSpansOfSubmissions: a submission has one span, a child of the client's, and the jobs carry
// the span's traceparent; what never came to an admission has none.
func TestSpansOfSubmissions(t *testing.T) {
	recorder := tracetest.NewSpanRecorder()
	b := newBench(t, func(c *Config) {
		c.Traces = sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder))
	})
	h := headers{"traceparent": "00-" + traced + "-01", codec.TenantHeader: "Åcme", "Idempotency-Key": "k"}
	last := func(n int, name string) sdk.ReadOnlySpan {
		t.Helper()
		ended := recorder.Ended()
		if len(ended) != n || ended[n-1].Name() != name || ended[n-1].SpanKind() != trace.SpanKindProducer ||
			ended[n-1].Parent().SpanID().String() != traced[33:] {
			t.Fatalf("%d spans, want %d with the last %s below the client's: %v", len(ended), n, name, ended)
		}
		return ended[n-1]
	}
	valueOf := func(s sdk.ReadOnlySpan, key attribute.Key) string {
		for _, a := range s.Attributes() {
			if a.Key == key {
				return a.Value.String()
			}
		}
		return ""
	}
	job := b.intake.do(t, "POST", "/v1/jobs", h, plainJob).job
	s := last(1, "send default")
	carried := "00-" + traced[:32] + "-" + s.SpanContext().SpanID().String() + "-01"
	if got := b.queue.Submission(job.ID).TraceParent; got != carried {
		t.Errorf("the job carries %s, want %s", got, carried)
	}
	if valueOf(s, "messaging.message.id") != job.ID || valueOf(s, "messaging.sluice.outcome") != "admitted" ||
		valueOf(s, "messaging.sluice.tenant") != store.EncodeName("Åcme") {
		t.Errorf("%v", s.Attributes())
	}

	b.intake.do(t, "POST", "/v1/jobs", h, plainJob)
	if s = last(2, "send default"); valueOf(s, "messaging.message.id") != job.ID ||
		valueOf(s, "messaging.sluice.outcome") != "replayed" {
		t.Errorf("%v", s.Attributes())
	}
	if got := b.queue.Submission(job.ID).TraceParent; got != carried {
		t.Errorf("after the repetition the job carries %s, want %s", got, carried)
	}

	delete(h, "Idempotency-Key")
	b.admin.do(t, "PATCH", "/v1/tenants/%C3%85cme", nil, `{"capacity":3}`)
	b.intake.do(t, "POST", "/v1/jobs/batch", h, `{"jobs":[`+strings.Repeat(plainJob+",", 2)+plainJob+`]}`)
	s = last(3, "send default")
	if valueOf(s, "messaging.batch.message_count") != "3" || valueOf(s, "messaging.sluice.admitted") != "2" ||
		valueOf(s, "messaging.sluice.refused") != "1" {
		t.Errorf("%v", s.Attributes())
	}
	for _, id := range b.queue.IDs() {
		if got := b.queue.Submission(id).TraceParent; id != job.ID &&
			got != "00-"+traced[:32]+"-"+s.SpanContext().SpanID().String()+"-01" {
			t.Errorf("a job of the batch carries %s", got)
		}
	}

	if got := b.intake.do(t, "POST", "/v1/jobs", h, plainJob); got.Code != http.StatusTooManyRequests {
		t.Fatal(got.Code)
	}
	if s = last(4, "send default"); valueOf(s, "error.type") != "full" {
		t.Errorf("%v", s.Attributes())
	}
	b.queue.Fail(queue.ErrUnavailable)
	b.intake.do(t, "POST", "/v1/jobs/batch", h, `{"jobs":[`+plainJob+`]}`)
	if s = last(5, "send default"); valueOf(s, "error.type") != "unavailable" {
		t.Errorf("%v", s.Attributes())
	}
	for _, body := range []string{`{}`, `{"type":"t","payload":1,"route":"nowhere"}`} {
		b.intake.do(t, "POST", "/v1/jobs", h, body)
	}
	last(5, "send default")
}

// BenchmarkSubmitTraced is BenchmarkSubmit with traces on: all kept, or none.
func BenchmarkSubmitTraced(b *testing.B) {
	for name, sampler := range map[string]sdk.Sampler{
		"sampled": sdk.AlwaysSample(), "unsampled": sdk.NeverSample(),
	} {
		b.Run(name, func(b *testing.B) {
			provider := sdk.NewTracerProvider(sdk.WithSampler(sampler), sdk.WithBatcher(discard{}))
			defer func() { _ = provider.Shutdown(context.Background()) }()
			submitAll(b, func(c *Config) { c.Registerer, c.Traces = nil, provider })
		})
	}
}

// discard is an exporter that takes everything.
type discard struct{}

func (discard) ExportSpans(context.Context, []sdk.ReadOnlySpan) error { return nil }
func (discard) Shutdown(context.Context) error                        { return nil }
