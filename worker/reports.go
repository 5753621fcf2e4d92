package worker

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const (
	reportEvery    = time.Second // between two reports to the other processes
	latenessWindow = 10          // reports that count a departure
	loadWindow     = 60          // reports that count the end of a delivery
	missedLeast    = 5           // missed stamps within latenessWindow that are worth a line in the log
)

// report reports lateness and routes to the other processes until ctx ends. An idle worker has
// nothing to report and calls nothing. A report that fails is not repeated: a second later there is
// a newer one.
func (w *Worker) report(ctx context.Context) {
	for n := 0; sleep(ctx, reportEvery); n++ {
		if late := w.lateness.recent(n, w.log); late.Sum() > 0 {
			_ = w.broker.ReportLateness(ctx, w.id, late)
		}
		if routes := w.loads.recent(n, w.log); len(routes) > 0 {
			_ = w.broker.ReportRoutes(ctx, w.id, routes)
		}
	}
}

// lateness counts departures by how late they were. Many goroutines use it at once.
type lateness struct {
	counts [reports.LatenessClasses]atomic.Int64 // only grow, as does missed
	missed atomic.Int64                          // jobs that came too late to leave, and were given back

	// Of recent alone.
	past [latenessWindow]struct { // a ring
		counts reports.Lateness
		missed int64
	}
	missing bool

	shards sync.Map // shard → *misses
}

// of returns the misses of a shard.
func (l *lateness) of(shard int) *misses {
	m, known := l.shards.Load(shard)
	if !known {
		m, _ = l.shards.LoadOrStore(shard, new(misses))
	}
	return m.(*misses)
}

const (
	missWindow  = time.Second
	missWindows = 2           // in a row after which a shard's jobs count as late
	missOld     = time.Minute // a window that began before that says nothing of now
)

// misses tells jobs of a shard that come too late for seconds from one that does now and then.
type misses struct {
	left atomic.Int64 // departures; only grows

	mu     sync.Mutex
	began  moment // of the window
	before int64  // left at its beginning
	missed int64  // stamps within it
	streak int    // windows in a row in which at least a quarter of the jobs missed their stamps
}

// miss notes a missed stamp. It reports whether the jobs of the shard are late.
func (m *misses) miss(now moment) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.missed++
	if passed := now.since(m.began); passed >= missWindow {
		left := m.left.Load()
		if m.streak++; passed >= missOld || 3*m.missed < left-m.before {
			m.streak = 0
		}
		m.began, m.before, m.missed = now, left, 0
	}
	return m.streak >= missWindows
}

func (l *lateness) observe(late time.Duration) { l.counts[reports.LatenessClass(late)].Add(1) }

// recent returns the departures of the window that ends with report n. It logs when the worker
// begins and ends to miss most stamps: such a worker makes no progress, although Redis answers.
func (l *lateness) recent(n int, log *slog.Logger) (recent reports.Lateness) {
	past, total := &l.past[n%latenessWindow], l.missed.Load()
	missed := total - past.missed
	past.missed = total
	for class := range recent {
		now := l.counts[class].Load()
		recent[class], past.counts[class] = now-past.counts[class], now
	}
	left := recent.Sum()
	switch {
	case !l.missing && missed >= missedLeast && missed > left:
		l.missing = true
		log.Warn("most leased jobs miss their stamps and are given back: Redis or this machine is too slow "+
			"for worker.lease",
			"missed", missed, "left", left, "within", latenessWindow*reportEvery)
	case l.missing && missed <= left:
		l.missing = false
		log.Info("leased jobs leave at their stamps again")
	}
	return recent
}

// routeLoad counts the deliveries of a route in this worker. Many goroutines use it at once.
type routeLoad struct {
	breaker        atomic.Int64 // a reports.BreakerState
	flows          atomic.Int64 // flows whose own circuit is not closed
	held           atomic.Int64 // jobs that the breaker did not let pass; only grows
	inFlight       atomic.Int64
	costs          costCounts
	upstream       *liveUpstream                   // nil: the route is not called by HTTP
	streams        *streams                        // nil: the route does not forward
	ends, failures atomic.Int64                    // only grow
	last           atomic.Pointer[reports.Failure] // the last failure; nil for none

	// Of recent alone.
	past    [loadWindow]struct{ ended, failed int64 } // a ring
	noToken string                                    // why there was none
}

// ended counts the end of a delivery, but no job that was held instead. It returns whether the
// delivery has failed, and why, if that is known.
func (l *routeLoad) ended(of *queue.Lease, s queue.Settlement) (failed bool, why *queue.JobError) {
	l.inFlight.Add(-1)
	switch s.Cause.By {
	case queue.HeldByBreaker, queue.HeldByFlowBreaker, queue.HeldByAuth:
		return false, nil
	}
	l.ends.Add(1)
	if failed, why = failureOf(s); !failed {
		return false, nil
	}
	l.failures.Add(1)
	if why != nil {
		f := reports.FailureOf(time.Now(), of.Tenant, of.ID, why.Message, why.Detail, why.Status)
		l.last.Store(&f)
	}
	return true, why
}

// failureOf reports whether a delivery has failed, whatever becomes of the job: a client gets an
// answer 5xx to a forwarded request, and an operator sees the failure of the upstream.
func failureOf(s queue.Settlement) (failed bool, why *queue.JobError) {
	switch {
	case s.Event == shaper.Succeed && s.Answer != nil && s.Response.Status >= http.StatusInternalServerError:
		return true, &queue.JobError{Message: refused(s.Response.Status), Status: s.Response.Status}
	case s.Event == shaper.Succeed, s.Event == shaper.LeaseExpired, s.Left, s.Event == "": // handed off
		return false, nil
	}
	return true, s.Error
}

func (l *routeLoad) logToken(log *slog.Logger, problem string) {
	switch {
	case problem != "" && problem != l.noToken:
		log.Warn("no token for the upstream can be had; its jobs wait", "reason", problem)
	case problem == "" && l.noToken != "":
		log.Info("there is a token for the upstream again")
	}
	l.noToken = problem
}

// routeLoads are the loads of all routes, by name. The map does not change.
type routeLoads map[string]*routeLoad

// recent returns the loads in the window that ends with report n, without those of idle routes. It
// logs when a route has no token for its upstream, and when it has one again.
func (r routeLoads) recent(n int, log *slog.Logger) map[string]reports.RouteLoad {
	report := map[string]reports.RouteLoad{}
	for name, l := range r {
		past, ended, failed := &l.past[n%loadWindow], l.ends.Load(), l.failures.Load()
		load := reports.RouteLoad{
			Breaker: reports.BreakerState(l.breaker.Load()), InFlight: l.inFlight.Load(),
			Ended: ended - past.ended, Failed: failed - past.failed,
		}
		if l.upstream != nil {
			load.Token, load.Until = l.upstream.tokenState()
			l.logToken(log.With("route", name), load.Token)
		}
		if l.streams != nil {
			load.Streams, load.Oldest = l.streams.now()
		}
		if last := l.last.Load(); last != nil && load.Failed > 0 {
			load.Last = *last
		}
		past.ended, past.failed = ended, failed
		if load != (reports.RouteLoad{}) {
			report[name] = load
		}
	}
	return report
}
