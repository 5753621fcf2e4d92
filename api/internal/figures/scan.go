package figures

import (
	"context"
	"time"

	"github.com/7509e464/sluice/queue"
)

// count makes one scan after the other until ctx ends. A failed scan is ignored: the overview shows
// why the store is away.
func (h *Hub) count(ctx context.Context, _ <-chan struct{}) {
	h.mu.Lock()
	next := h.nextScan
	h.mu.Unlock()
	for rest(ctx, time.Until(next)) {
		began := time.Now()
		c, busy, err := h.take(ctx)
		next = began.Add(min(max(scanEvery, scanPart*busy), scanSeldom))
		if soon := time.Now().Add(scanEvery / 4); next.Before(soon) || ctx.Err() != nil {
			// The scan takes longer than its interval, or was broken off: the next watcher must not
			// wait long.
			next = soon
		}
		h.mu.Lock()
		h.nextScan = next
		h.mu.Unlock()
		if ctx.Err() == nil {
			h.keep(c, err)
		}
		if err == nil {
			h.counted(c)
			h.publish(ctx, View.scans, func() { h.scan = c })
		}
	}
}

// take reads all tenants and pools once, and estimates how long the store was busy with it.
func (h *Hub) take(ctx context.Context) (c *Scan, busy time.Duration, err error) {
	c = &Scan{}
	var owed time.Duration // rest
	seen := map[string]bool{}
	for cursor := ""; ; {
		asked := time.Now()
		part, next, err := h.source.Scan(ctx, cursor, queue.ScanPage)
		// What goes beyond the most that it can have cost was spent waiting for others, and calls
		// for no rest.
		read := time.Now()
		took := min(read.Sub(asked), callCost+queue.ScanCost(part))
		busy += took
		if err != nil {
			return nil, busy, err
		}
		for _, b := range part {
			if !seen[b.Name] {
				seen[b.Name] = true
				c.Briefs, c.read = append(c.Briefs, b), append(c.read, read)
			}
		}
		if cursor = next; cursor == "" {
			if c.Pools, err = h.source.AllPools(ctx); err != nil {
				return nil, busy, err
			}
			c.At = time.Now()
			return c, busy, nil
		}
		if owed += restFactor * took; owed >= leastRest {
			if !rest(ctx, owed) {
				return nil, busy, ctx.Err()
			}
			owed = 0
		}
	}
}

// rest lets time pass; false when ctx has ended.
func rest(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
