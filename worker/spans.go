package worker

import (
	"cmp"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/spans"
)

// endSpan tells the span of a delivery how it ended, in the metrics' words. The queue has the last word, and later: it may find the lease
// stale, or charge a hold as an attempt.
func (w *Worker) endSpan(span spans.Delivery, l queue.Lease, s queue.Settlement) {
	if !span.Recorded() {
		span.End("", s, true)
		return
	}
	outcome := outcomeHandedOff
	if s.Event != "" {
		s.Attempt = l.Attempt
		s.MaxAttempts = cmp.Or(s.MaxAttempts, l.MaxAttempts)
		outcome = outcomeOf(s, queue.Settled)
	}
	span.End(outcomeNames[outcome], s, w.cfg.Routes[l.Route].Handler)
}
