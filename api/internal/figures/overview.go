package figures

import (
	"context"
	"maps"
	"slices"
	"time"
)

// read samples the overview and the tenants that are watched in detail until ctx ends.
func (h *Hub) read(ctx context.Context, woken <-chan struct{}) {
	ticker := time.NewTicker(overviewEvery)
	defer ticker.Stop()
	waits := map[string]*recent{}
	for newcomer := false; ; {
		if !newcomer {
			h.sampling.Lock()
			h.countDead(ctx)
			o := h.sample(ctx)
			h.sampling.Unlock()
			h.publish(ctx, func(View) bool { return true }, func() { h.overview = o })
		}
		names := h.wanted(func(v View) string { return v.Tenant })
		for _, name := range names {
			h.detail(ctx, name, waits)
		}
		for _, name := range h.wanted(func(v View) string { return v.Pool }) {
			h.poolDetail(ctx, name)
		}
		maps.DeleteFunc(waits, func(name string, _ *recent) bool { return !slices.Contains(names, name) })
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			newcomer = false
		case <-woken:
			newcomer = true
		}
	}
}

// Overview returns the current figures. They are as old as those of a watch at most, so a client
// that polls often costs no more than a watch.
func (h *Hub) Overview(ctx context.Context) Overview {
	h.sampling.Lock()
	defer h.sampling.Unlock()
	h.countDead(ctx)
	return h.latest(ctx)
}

// latest reads the overview, unless one is as fresh as for a watcher. It is called with sampling
// held.
func (h *Hub) latest(ctx context.Context) Overview {
	h.mu.Lock()
	last := h.overview
	h.mu.Unlock()
	if last != nil && time.Since(last.At) < overviewEvery {
		return *last
	}
	o := h.sample(ctx)
	if ctx.Err() == nil {
		h.mu.Lock()
		h.overview = o
		h.mu.Unlock()
	}
	return *o
}

// sample reads the overview. It is called with sampling held.
func (h *Hub) sample(ctx context.Context) *Overview {
	h.mu.Lock()
	last := h.overview
	h.mu.Unlock()
	o := &Overview{}
	if h.known != nil {
		o.Totals, o.Workers, o.Store, o.Read = h.known.Totals, h.known.Workers, h.known.Store, h.known.Read
	}
	if last != nil {
		o.Err = last.Err
	}
	if h.healthAt.IsZero() || time.Since(h.healthAt) >= healthEvery || o.Err != nil || last == nil {
		h.healthAt = time.Now()
		o.Err = h.health(ctx, o)
	}
	if o.Err == nil {
		totals, err := h.source.Totals(ctx)
		if o.Err = err; err == nil {
			o.Totals = totals
		}
	}
	if found := h.tally.last.Load(); found != nil {
		o.Dead = &found.dead
	}
	o.Listed = max(0, o.Tenants-h.doubled)
	o.At = time.Now()
	if o.Err == nil {
		o.Read, h.known = o.At, o
	}
	h.note(o)
	return o
}

// countDead scans for the dead letters where no scan has counted them lately, and none is about to.
func (h *Hub) countDead(ctx context.Context) {
	h.mu.Lock()
	counting := h.counting != nil
	h.mu.Unlock()
	if !counting {
		h.tally.sample(ctx)
	}
}

// counted takes the number of tenants of a scan.
func (h *Hub) counted(c *Scan) {
	h.tally.note(c)
	h.sampling.Lock()
	defer h.sampling.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.overview != nil {
		h.doubled = max(0, h.overview.Tenants-int64(len(c.Briefs)))
	}
}

// health reads what changes slowly.
func (h *Hub) health(ctx context.Context, o *Overview) error {
	store, err := h.source.StoreHealth(ctx)
	if err == nil || o.Read.IsZero() {
		o.Store = store
	}
	if err != nil {
		return err
	}
	workers, err := h.source.Workers(ctx)
	if err == nil {
		o.Workers = workers
	}
	return err
}

// wanted are the names that are watched in detail, which of takes from a view.
func (h *Hub) wanted(of func(View) string) (names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.watches {
		if name := of(w.view); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// recent is the waits of a tenant's jobs as of a moment.
type recent struct {
	at    time.Time
	waits []time.Duration
}

// detail reads a tenant. While the store is unavailable there are no figures of it; the overview
// has the error.
func (h *Hub) detail(ctx context.Context, name string, waits map[string]*recent) {
	t, err := h.source.Tenant(ctx, name)
	if err != nil {
		return
	}
	w := waits[name]
	if w == nil || time.Since(w.at) >= healthEvery {
		w = &recent{at: time.Now()}
		if w.waits, err = h.source.Waits(ctx, name, waitsMost); err != nil {
			return
		}
		waits[name] = w
	}
	d := &Detail{At: time.Now(), Tenant: t, Waits: w.waits}
	h.publish(ctx, func(v View) bool { return v.Tenant == name }, func() { h.details[name] = d })
}

// poolDetail reads a pool. There are no figures of one that is not declared.
func (h *Hub) poolDetail(ctx context.Context, name string) {
	p, err := h.source.Pool(ctx, name)
	if err != nil {
		return
	}
	d := &PoolDetail{At: time.Now(), Pool: p}
	h.publish(ctx, func(v View) bool { return v.Pool == name }, func() { h.poolsNow[name] = d })
}
