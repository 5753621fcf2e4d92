package process

import (
	"context"
	"log/slog"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	sdk "go.opentelemetry.io/otel/sdk/trace"
)

// maxError bounds a logged error in bytes, because it may contain an answer of the collector.
const maxError = 300

// watched is an exporter that logs the first failure and the recovery, not every failure.
type watched struct {
	next sdk.SpanExporter
	to   string
	log  *slog.Logger
	stop context.Context // ends an export that outlasts Close
	cut  context.CancelFunc

	exported, failed prometheus.Counter

	mu      sync.Mutex
	failing bool
	lost    int // spans since the first failure
}

// watch returns a watched exporter and registers its metrics, unless registerer is nil. The error
// is that of the registration.
func watch(next sdk.SpanExporter, to string, registerer prometheus.Registerer, log *slog.Logger) (*watched,
	error) {
	total := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_trace_spans_total", Help: "Spans that were sent to the collector, or could not be.",
	}, []string{"result"})
	w := &watched{next: next, to: to, log: log, exported: total.WithLabelValues("exported"),
		failed: total.WithLabelValues("failed")}
	w.stop, w.cut = context.WithCancel(context.Background())
	if registerer == nil {
		return w, nil
	}
	return w, registerer.Register(total)
}

// ExportSpans implements sdktrace.SpanExporter. It returns no error, because the SDK would log
// each.
func (w *watched) ExportSpans(ctx context.Context, batch []sdk.ReadOnlySpan) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(w.stop, cancel)()
	err := w.next.ExportSpans(ctx, batch)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.failed.Add(float64(len(batch)))
		w.lost += len(batch)
		if !w.failing {
			w.failing = true
			w.log.Warn("traces cannot be sent; jobs are not affected", "to", w.to, "error", shortError(err))
		}
		return nil
	}
	w.exported.Add(float64(len(batch)))
	if w.failing {
		w.log.Info("traces are sent again", "to", w.to, "lost", w.lost)
		w.failing, w.lost = false, 0
	}
	return nil
}

// Shutdown implements sdktrace.SpanExporter.
func (w *watched) Shutdown(ctx context.Context) error { return w.next.Shutdown(ctx) }

// closed logs spans that were lost at the end of the export. err is why it ended early.
func (w *watched) closed(err error) {
	w.cut()
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case err != nil:
		w.log.Warn("the last traces were not sent", "to", w.to, "error", shortError(err))
	case w.failing:
		w.log.Warn("the last traces were not sent", "to", w.to, "lost", w.lost)
	}
}

// shortError returns an error on one line of bounded length.
func shortError(err error) string {
	text := strings.Join(strings.Fields(err.Error()), " ")
	return strings.ToValidUTF8(text[:min(len(text), maxError)], "")
}
