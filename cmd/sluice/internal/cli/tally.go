package cli

import (
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// Tally counts the outcomes of many jobs. It is safe for concurrent use.
type Tally struct {
	mu      sync.Mutex
	Began   time.Time // set by NewTally
	counts  Counts
	waits   []time.Duration
	changed time.Time // when a job last ended
	first   time.Time // the first and the last departure
	last    time.Time
}

// Counts are the figures of a tally at one instant.
type Counts struct {
	Accepted int            // jobs, like all counts here
	Refused  map[string]int // by the kind of refusal
	Failed   map[string]int // by reason: the outcome is unknown
	Ended    map[string]int // by the state in which jobs ended
	Waiting  string         // what the command waits for; empty while it works
}

// NewTally returns an empty tally that starts at now.
func NewTally(now time.Time) *Tally {
	return &Tally{Began: now, changed: now, counts: Counts{Refused: map[string]int{},
		Failed: map[string]int{}, Ended: map[string]int{}}}
}

// Accept counts an accepted job.
func (t *Tally) Accept() { t.With(func(c *Counts) { c.Accepted++ }) }

// Refuse counts a refused job by the kind of refusal.
func (t *Tally) Refuse(why string) { t.With(func(c *Counts) { c.Refused[why]++ }) }

// Fail counts a job with an unknown outcome by the reason.
func (t *Tally) Fail(why string) { t.With(func(c *Counts) { c.Failed[why]++ }) }

// With calls change with the counts, under the lock of the tally.
func (t *Tally) With(change func(*Counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.counts)
}

// End counts a job that has ended, with its wait for the last departure.
func (t *Tally) End(job wire.Job, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.counts.Ended[job.State]++
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

// Start makes Quiet count from now.
func (t *Tally) Start(now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.changed = now
}

// Quiet returns the time since the last end of a job.
func (t *Tally) Quiet(now time.Time) time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Sub(t.changed)
}

// Now returns a copy of the counts.
func (t *Tally) Now() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.counts
	c.Refused, c.Failed, c.Ended = maps.Clone(c.Refused), maps.Clone(c.Failed), maps.Clone(c.Ended)
	return c
}

// Answered returns the number of jobs with an answer or a failure.
func (c Counts) Answered() int { return c.Accepted + Sum(c.Refused) + Sum(c.Failed) }

// Done returns the number of ended jobs.
func (c Counts) Done() int { return Sum(c.Ended) }

// Pace returns the rate from the first to the last departure and percentiles of the waits. All are
// zero without departures.
func (t *Tally) Pace() (perSecond float64, p50, p99 time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if span := t.last.Sub(t.first); span > 0 {
		perSecond = float64(len(t.waits)-1) / span.Seconds()
	}
	slices.Sort(t.waits)
	return perSecond, Percentile(t.waits, 0.50), Percentile(t.waits, 0.99)
}

// Percentile returns the value that the share q, 0 to 1, of the sorted values does not exceed.
func Percentile(sorted []time.Duration, q float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(q*float64(len(sorted))))-1, 0)]
}

// Sum returns the sum of the values.
func Sum(m map[string]int) int {
	n := 0
	for _, v := range m {
		n += v
	}
	return n
}
