package main

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/wire"
)

// tally counts what becomes of many jobs. Safe for concurrent use.
type tally struct {
	mu      sync.Mutex
	began   time.Time
	counts  counts
	waits   []time.Duration
	changed time.Time // when a job last ended
	first   time.Time // the first and the last departure
	last    time.Time
}

// counts is a tally at one instant.
type counts struct {
	accepted int
	refused  map[string]int // by the kind of refusal: the queue said no
	failed   map[string]int // by reason: there was no verdict
	ended    map[string]int // by the state in which jobs ended
	waiting  bool           // for places in the queue
}

func newTally(now time.Time) *tally {
	return &tally{began: now, changed: now, counts: counts{refused: map[string]int{}, failed: map[string]int{}, ended: map[string]int{}}}
}

func (t *tally) accept() { t.with(func(c *counts) { c.accepted++ }) }

func (t *tally) refuse(why string) { t.with(func(c *counts) { c.refused[why]++ }) }

func (t *tally) fail(why string) { t.with(func(c *counts) { c.failed[why]++ }) }

func (t *tally) with(change func(*counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.counts)
}

// end notes a job that is done, with how long it waited for its last departure.
func (t *tally) end(job wire.Job, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.ended[job.State]++
	t.changed = now
	if job.Started.IsZero() {
		return
	}
	t.waits = append(t.waits, job.Started.Sub(job.Created))
	if t.first.IsZero() || job.Started.Before(t.first) {
		t.first = job.Started
	}
	if job.Started.After(t.last) {
		t.last = job.Started
	}
}

// start makes quiet count from now.
func (t *tally) start(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = now
}

// quiet is how long no job has ended.
func (t *tally) quiet(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Sub(t.changed)
}

// now is the counts as they are.
func (t *tally) now() counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	c.refused, c.failed, c.ended = maps.Clone(c.refused), maps.Clone(c.failed), maps.Clone(c.ended)
	return c
}

func (c counts) answered() int { return c.accepted + sum(c.refused) + sum(c.failed) }

func (c counts) done() int { return sum(c.ended) }

// pace is the rate of departures between the first and the last, and percentiles of the waits; zero
// without departures.
func (t *tally) pace() (perSecond float64, p50, p99 time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if span := t.last.Sub(t.first); span > 0 {
		perSecond = float64(len(t.waits)-1) / span.Seconds()
	}
	slices.Sort(t.waits)
	return perSecond, percentile(t.waits, 0.50), percentile(t.waits, 0.99)
}

// percentile is the value that the share q of the sorted values does not exceed.
func percentile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

func sum(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}
