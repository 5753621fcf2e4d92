package worker

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/queue"
)

const (
	latenessEvery  = time.Second // between two tellings
	latenessWindow = 10          // tellings that a departure is counted in
	missedLeast    = 5           // missed stamps within the window that are worth a line in the log
)

// lateness counts departures by how late they were, and tells the other processes of those of the last ten seconds. What is counted only
// grows; what is told is the difference to what was ten seconds ago. A worker from which nothing departed tells nothing, so an idle one
// costs nothing.
type lateness struct {
	counts [queue.LatenessClasses]atomic.Int64
	missed atomic.Int64 // jobs that came too late to leave, and were given back
}

// observe counts a departure. It is called by many at once.
func (l *lateness) observe(late time.Duration) { l.counts[queue.LatenessClass(late)].Add(1) }

// run tells until ctx ends. What cannot be told is left: it is for the eye, and a second later there is something newer.
//
// A worker that misses most stamps makes no progress, although Redis answers and the upstream waits. So run logs when that begins and
// when it ends.
func (l *lateness) run(ctx context.Context, b broker, worker string, log *slog.Logger) {
	ticker := time.NewTicker(latenessEvery)
	defer ticker.Stop()
	var past [latenessWindow]queue.Lateness // a ring
	var missedBefore [latenessWindow]int64
	missing := false
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
