package live

import (
	"context"
	"time"
)

const (
	pastKept  = 5 * time.Minute
	pastStep  = time.Second      // between two moments while somebody watches
	idleEvery = 10 * time.Second // between two while nobody does
)

// Moment is what is remembered of an overview.
type Moment struct {
	At                           time.Time
	Depth, Running               int64
	Admitted, Rejected, Departed int64
	Lateness                     time.Duration // 99 of 100 departures left no later; 0 if there were none
	Ping                         time.Duration // of the store
}

// Remember reads the overview every ten seconds from now on until Close, also while nobody watches, so that who comes in a hurry sees the
// minutes before. It reads nothing of single tenants. It is called at most once.
func (h *Hub) Remember() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() != nil {
		return
	}
	h.start(func(ctx context.Context, _ <-chan struct{}) {
		for rest(ctx, idleEvery) {
			h.mu.Lock()
			watched := h.reading != nil
			h.mu.Unlock()
			if !watched {
				h.Overview(ctx)
			}
		}
	})
}

// Past is the moments of the last five minutes that are remembered, the earliest first: a second apart while somebody watched, seldomer else,
// none while the store was away.
func (h *Hub) Past() []Moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(time.Now())
	return append([]Moment(nil), h.past...)
}

// note remembers an overview if the last one that is remembered is old enough.
func (h *Hub) note(o *Overview) {
	if o.Err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := len(h.past); n > 0 && o.At.Sub(h.past[n-1].At) < pastStep {
		return
	}
	h.forget(o.At)
	m := Moment{At: o.At, Depth: o.Depth, Running: o.Running, Admitted: o.Admitted, Rejected: o.Rejected, Departed: o.Departed, Ping: o.Store.Ping}
	if o.Workers.Lateness.Sum() > 0 {
		m.Lateness = o.Workers.Lateness.Quantile(0.99)
	}
	h.past = append(h.past, m)
}

// forget drops what is too old. It is called with the lock held.
func (h *Hub) forget(now time.Time) {
	old := 0
	for old < len(h.past) && now.Sub(h.past[old].At) > pastKept {
		old++
	}
	h.past = append(h.past[:0], h.past[old:]...)
}
