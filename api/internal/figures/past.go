package figures

import (
	"context"
	"time"

	"github.com/7509e464/sluice/queue"
)

const (
	pastAge     = 5 * time.Minute
	pastStep    = time.Second      // between two moments while somebody watches or something happens
	idleEvery   = 10 * time.Second // between two while nothing does
	sampleEvery = 5 * time.Second  // least time between two readings of a tenant
	sampleSteps = 5                // jobs that come or leave between two readings of a tenant, at least
	samplePart  = 100              // unwatched scans take at most 1/samplePart of the time
)

// Moment holds the figures of an overview that are kept for the history.
type Moment struct {
	At                           time.Time
	Gap                          bool          // the store was unavailable since the moment before
	Depth, Running               int64         // jobs
	Admitted, Rejected, Departed int64         // totals, which only grow
	Lateness                     time.Duration // 99 of 100 departures left no later; 0 if there were none
	Ping                         time.Duration // of the store
}

// Remember records the history until Close, also without watches, so that a new page begins with
// the minutes before. It reads the overview about once for each job that comes or leaves: every
// second while there are many, and every ten seconds while there are none. A reading costs two
// commands of each shard, and a scan more. Between two scans are five readings, or more with many
// tenants. It does not scan if nothing waits, runs or has happened since the last scan. Call it at
// most once.
func (h *Hub) Remember() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ctx.Err() == nil {
		h.start(h.remember)
	}
}

// Stir reports new jobs, so that Remember reads at once. Repeated calls cost almost nothing.
func (h *Hub) Stir() {
	if h.resting.Load() {
		signal(h.stirred)
	}
}

func (h *Hub) remember(ctx context.Context, _ <-chan struct{}) {
	var counted *queue.Totals // at the last scan
	var due time.Time         // of the next scan
	var seen traffic
	for every, step := pastStep, pastStep; ; {
		h.resting.Store(every > pastStep)
		timer := time.NewTimer(every)
		select {
		case <-timer.C:
		case <-h.stirred:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
		h.mu.Lock()
		last, watched, counting := h.overview, h.reading != nil, h.counting != nil
		h.mu.Unlock()
		now := last
		if !watched || now == nil {
			h.sampling.Lock()
			o := h.latest(ctx)
			h.sampling.Unlock()
			now = &o
		}
		if every = min(2*every, idleEvery); watched || last == nil {
			every, step = pastStep, pastStep
		} else if now.Totals != last.Totals {
			every = seen.step(last, now)
			step = every
		}
		switch {
		case counting: // for who watches; that is remembered, too
		case now.Err != nil:
			h.keep(nil, now.Err)
		case counted != nil && now.Totals == *counted && now.Depth == 0 && now.Running == 0:
			h.tenants.still(now.At)
			h.pools.still(now.At)
			h.tally.still()
		case !time.Now().Before(due):
			began := time.Now()
			c, busy, err := h.take(ctx)
			due = began.Add(max(sampleEvery, sampleSteps*step, samplePart*busy))
			h.keep(c, err)
			if err == nil {
				counted = &now.Totals
				h.counted(c)
			}
		}
	}
}

// traffic is when jobs were last seen to have come, and to have left.
type traffic struct{ came, left time.Time }

// step returns the time until the next reading, after one that found a change: about that in which
// a job came or left, and a second while jobs wait.
func (t *traffic) step(last, now *Overview) time.Duration {
	every := idleEvery
	between := func(at *time.Time, jobs int64) {
		if jobs > 0 {
			every, *at = min(every, now.At.Sub(*at)/time.Duration(jobs)), now.At
		}
	}
	between(&t.came, now.Admitted-last.Admitted+now.Rejected-last.Rejected)
	between(&t.left, now.Departed-last.Departed)
	if now.Depth > 0 {
		every = pastStep
	}
	return max(every, pastStep)
}

// Past returns the moments of the last five minutes, the earliest first, and that of now at the
// end. They are a second apart while there was a watch or many jobs came or left, and at most ten
// seconds.
// There are none while the store was unavailable.
func (h *Hub) Past(now *Overview) []Moment {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.forget(now.At)
	var past []Moment
	for _, m := range h.past {
		if m.At.Before(now.At) {
			past = append(past, m)
		}
	}
	if now.Err == nil {
		m := momentOf(now)
		m.Gap = h.lost
		past = append(past, m)
	}
	return past
}

// PastOf returns the samples of a tenant in the last five minutes, the earliest first, and that of
// now at the end. With many tenants they are rarer.
func (h *Hub) PastOf(now *Detail) []Sample {
	t := now.Tenant
	return h.tenants.of(t.Name, sampleAt(now.At, &queue.Brief{
		Name: t.Name, Rate: t.Policy.Rate, Rates: t.Policy.Rates, Capacity: t.Policy.Capacity, Figures: t.Figures,
	}))
}

// momentOf is what is remembered of an overview that has no error.
func momentOf(o *Overview) Moment {
	m := Moment{
		At: o.At, Depth: o.Depth, Running: o.Running, Admitted: o.Admitted, Rejected: o.Rejected,
		Departed: o.Departed,
		Ping:     o.Store.Ping,
	}
	if o.Workers.Lateness.Sum() > 0 {
		m.Lateness = o.Workers.Lateness.Quantile(0.99)
	}
	return m
}

// note remembers an overview if the last one that is remembered is old enough.
func (h *Hub) note(o *Overview) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if o.Err != nil {
		h.lost = len(h.past) > 0
		return
	}
	if n := len(h.past); n > 0 && o.At.Sub(h.past[n-1].At) < pastStep {
		return
	}
	h.forget(o.At)
	m := momentOf(o)
	m.Gap, h.lost = h.lost, false
	h.past = append(h.past, m)
}

// forget drops what is too old. It is called with the lock held.
func (h *Hub) forget(now time.Time) {
	old := 0
	for old < len(h.past) && now.Sub(h.past[old].At) > pastAge {
		old++
	}
	h.past = append(h.past[:0], h.past[old:]...)
}
