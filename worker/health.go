package worker

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/burstlog"
)

// health counts the parts of the worker that cannot reach Redis. It logs when the first one fails and
// when the last one is back, so one line per transition.
type health struct {
	log    *slog.Logger
	damage *burstlog.Log // nil: not logged

	mu      sync.Mutex
	failing int
	since   time.Time
}

// probe is one part of the worker: a shard, a flusher, the heartbeat. One goroutine uses it at a time.
type probe struct {
	health  *health
	failing bool
}

func (h *health) probe() *probe { return &probe{health: h} }

// report takes the end of a call into account. Damaged data is no outage: Redis answered.
func (p *probe) report(err error) {
	if errors.Is(err, queue.ErrScript) {
		p.health.damage.Add(burstlog.Key{}, 1, "error", err)
		err = nil
	}
	if p.failing == (err != nil) {
		return
	}
	p.failing = err != nil
	h := p.health
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.failing {
		if h.failing++; h.failing == 1 {
			h.since = time.Now()
			h.log.Warn("redis is away; trying again", "error", err)
		}
		return
	}
	if h.failing--; h.failing == 0 {
		h.log.Info("redis is back", "after", time.Since(h.since).Round(time.Millisecond))
	}
}
