package worker

import (
	"log/slog"
	"sync"
	"time"
)

// health knows which parts of the worker cannot reach Redis, and logs when the first one fails and when the last one is back:
// one line per transition, however many shards there are.
type health struct {
	log *slog.Logger

	mu      sync.Mutex
	failing int
	since   time.Time
}

// probe is the view of one part of the worker: a shard, a flusher, the beat. It is used by one goroutine at a time.
type probe struct {
	health  *health
	failing bool
}

func (h *health) probe() *probe { return &probe{health: h} }

// report takes the outcome of a call into account; nil is a good one.
func (p *probe) report(err error) {
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
