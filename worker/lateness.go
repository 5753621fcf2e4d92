package worker

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/queue"
)

const (
	latenessEvery  = time.Second // between two reports
	latenessWindow = 10          // reports that count a departure
	missedLeast    = 5           // missed stamps within the window that are worth a line in the log
)

// lateness counts departures by how late they were, and reports those of the last ten seconds to the
// other processes. A worker from which nothing departed reports nothing, so an idle one costs nothing.
type lateness struct {
	counts [queue.LatenessClasses]atomic.Int64 // only grow, as does missed
	missed atomic.Int64                        // jobs that came too late to leave, and were given back
}

// observe counts a departure. Many goroutines call it at once.
func (l *lateness) observe(late time.Duration) { l.counts[queue.LatenessClass(late)].Add(1) }

// run reports until ctx ends. A report that fails is not repeated: a second later there is a newer
// one. It also logs when the worker begins and ends to miss most stamps. Such a worker makes no
// progress, although Redis answers.
func (l *lateness) run(ctx context.Context, b broker, worker string, log *slog.Logger) {
	var past [latenessWindow]queue.Lateness // a ring, as is the next
	var missedBefore [latenessWindow]int64
	missing := false
	for n := range ticks(ctx, latenessEvery) {
		at := n % latenessWindow
		var now, recent queue.Lateness
		for class := range now {
			now[class] = l.counts[class].Load()
			recent[class] = now[class] - past[at][class]
		}
		past[at] = now
		total := l.missed.Load()
		missed, left := total-missedBefore[at], recent.Sum()
		missedBefore[at] = total
		switch {
		case !missing && missed >= missedLeast && missed > left:
			missing = true
			log.Warn("most leased jobs miss their stamps and are given back: Redis or this machine is too slow for worker.lease",
				"missed", missed, "left", left, "within", latenessWindow*latenessEvery)
		case missing && missed <= left:
			missing = false
			log.Info("leased jobs leave at their stamps again")
		}
		if recent.Sum() > 0 {
			_ = b.TellLateness(ctx, worker, recent)
		}
	}
}
