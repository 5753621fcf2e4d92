package worker

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
)

// errorLog logs bursts of like events in few lines. It logs one line when the first part of the
// worker cannot reach Redis, and one when all of them can again.
type errorLog struct {
	log            *slog.Logger
	failures       *burstlog.Log // deliveries
	deaths, panics *burstlog.Log
	damage         *burstlog.Log // stored items that Redis or this process cannot work with
	givenUp        *burstlog.Log // settlements
	costs          *burstlog.Log // actual costs that are ignored
	breakers       *burstlog.Log // of single flows that open
	cut            *burstlog.Log // actual costs of which a pool is charged for a part
	shortages      *burstlog.Log // jobs that this machine could not send
	routeless      *burstlog.Log // jobs of routes that this worker does not have

	mu    sync.Mutex
	away  map[any]bool // shards, a flusher, the heartbeat and so on that cannot reach Redis
	since time.Time    // when the first of them could not
}

// newErrorLog calls stopped with flows that have lost jobs, now and then.
func newErrorLog(log *slog.Logger, stopped func(burstlog.Key)) *errorLog {
	return &errorLog{
		log:      log,
		away:     map[any]bool{},
		failures: burstlog.New(log, slog.LevelWarn, "deliveries failed", nil),
		deaths:   burstlog.New(log, slog.LevelWarn, "jobs died and are kept as dead letters", stopped),
		panics:   burstlog.New(log, slog.LevelError, "deliveries panicked", nil),
		damage:   burstlog.New(log, slog.LevelError, "stored data is damaged; its jobs do not leave", nil),
		givenUp: burstlog.New(log, slog.LevelError,
			"settlements were given up; the leases will expire and the jobs be delivered again", nil),
		costs:    burstlog.New(log, slog.LevelWarn, "actual costs cannot be read; cost_missing or the estimates are charged", nil),
		breakers: burstlog.New(log, slog.LevelWarn, "circuit breakers of single flows are open", nil),
		cut: burstlog.New(log, slog.LevelWarn,
			"actual costs exceed max_cost of the pool; it is charged for max_cost, and the flow waits for the rest", nil),
		routeless: burstlog.New(log, slog.LevelWarn,
			"jobs wait for a route that this worker does not have; give all workers the same file", nil),
		shortages: burstlog.New(log, slog.LevelError,
			"jobs could not be sent for want of file descriptors, ports, a network or a resolver; they are tried again", nil),
	}
}

// report takes the end of a call by a part of the worker into account. Damaged data is no outage:
// Redis answered.
func (e *errorLog) report(part any, err error) {
	if errors.Is(err, queue.ErrScript) {
		e.damage.Add(burstlog.Key{}, 1, "error", err)
		err = nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case err == nil && e.away[part]:
		if delete(e.away, part); len(e.away) == 0 {
			e.log.Info("redis is back", "after", time.Since(e.since).Round(time.Millisecond))
		}
	case err != nil:
		if len(e.away) == 0 {
			e.since = time.Now()
			attrs := []any{"error", err}
			if advice := queue.Advice(err); advice != "" {
				attrs = append(attrs, "advice", advice)
			}
			e.log.Warn("redis is away; trying again", attrs...)
		}
		e.away[part] = true
	}
}

// end logs what is not logged yet.
func (e *errorLog) end() {
	for _, l := range []*burstlog.Log{e.failures, e.deaths, e.panics, e.damage, e.givenUp, e.costs, e.breakers, e.cut, e.shortages, e.routeless} {
		l.Flush()
	}
}

// stopped logs a flow that its dead letters have stopped: it does not go on by itself.
func (w *Worker) stopped(k burstlog.Key) {
	b, known := w.broker.(queueBroker)
	if !known || w.stopping.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	t, err := b.queue.Tenant(ctx, k.Tenant)
	if err != nil {
		return // the next line of the burst is another opportunity
	}
	if f, known := t.Routes[k.Route]; known && f.LimitedBy == "paused" && !f.Policy.Paused {
		w.log.Error("a flow has stopped: it has as many dead letters, or bytes of them, as are kept; "+
			"replay or purge them",
			"tenant", store.EncodeName(k.Tenant), "route", k.Route, "depth", f.Depth)
	}
}
