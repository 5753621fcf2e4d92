package worker

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/queue"
)

const (
	latenessEvery  = time.Second // between two tellings
	latenessWindow = 10          // tellings that a departure is counted in
)

// lateness counts departures by how late they were, and tells the other processes of those of the last ten seconds. What is counted only
// grows; what is told is the difference to what was ten seconds ago. A worker from which nothing departed tells nothing, so an idle one
// costs nothing.
type lateness struct {
	counts [queue.LatenessClasses]atomic.Int64
}

// observe counts a departure. It is called by many at once.
func (l *lateness) observe(late time.Duration) { l.counts[queue.LatenessClass(late)].Add(1) }

// run tells until ctx ends. What cannot be told is left: it is for the eye, and a second later there is something newer.
func (l *lateness) run(ctx context.Context, b broker, worker string) {
	ticker := time.NewTicker(latenessEvery)
	defer ticker.Stop()
	var past [latenessWindow]queue.Lateness // a ring
	for at := 0; ; at = (at + 1) % latenessWindow {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		var now, recent queue.Lateness
		for class := range now {
			now[class] = l.counts[class].Load()
			recent[class] = now[class] - past[at][class]
		}
		past[at] = now
		if recent.Sum() > 0 {
			_ = b.TellLateness(ctx, worker, recent)
		}
	}
}
