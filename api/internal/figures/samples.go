package figures

import (
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// maxSamples bounds the samples of all tenants together, about 25 MB. Above it the history of each
// tenant is shorter.
const maxSamples = 1 << 17

// Sample is the state of a tenant at an instant.
type Sample struct {
	At                       time.Time
	Gap                      bool  // the store was unavailable since the previous sample
	Depth, Running, Capacity int64 // jobs
	OldestWait               time.Duration
	// Rate is the tenant's rate per second, Strictest the strictest of its rates, and Effective
	// that rate after holds, within what its pools allow.
	Rate, Strictest, Effective   float64
	Admitted, Rejected, Departed int64 // totals, which only grow
	Costs                        int64 // of a pool
}

// sampleAt makes the sample of a tenant at the instant.
func sampleAt(at time.Time, b *queue.Brief) Sample {
	l := Sample{
		At: at, Depth: b.Depth, Running: b.Running, Capacity: b.Capacity, OldestWait: b.OldestWait,
		Rate: b.Rate.PerSecond(), Effective: b.Allowed(), Admitted: b.Admitted, Rejected: b.Rejected,
		Departed: b.Departed, Costs: b.Costs,
	}
	l.Strictest = shaper.Policy{Rate: b.Rate, Rates: b.Rates}.Strictest()
	return l
}

// instant is the time of a scan of all tenants.
type instant struct {
	at  time.Time
	gap bool // the store was unavailable since the previous instant
}

// samples keeps the results of scans by tenant. A scan adds a sample of a tenant only if something
// has changed, so an idle tenant costs one sample.
type samples struct {
	mu       sync.Mutex
	most     int
	instants []instant
	tenants  map[string][]Sample // each begins with the latest sample before the first instant, if any
	count    int                 // samples of all tenants
	lost     bool                // the store was unavailable since the last instant
}

func newSamples(most int) *samples { return &samples{most: most, tenants: map[string][]Sample{}} }

// note adds a scan, if the last one is old enough. err is the error of a failed scan.
func (l *samples) note(c *Scan, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.lost = len(l.instants) > 0
		return
	}
	if n := len(l.instants); n > 0 && c.At.Sub(l.instants[n-1].at) < sampleEvery {
		return
	}
	l.pass(c.At)
	named := make(map[string]bool, len(c.Briefs))
	for i := range c.Briefs {
		b := &c.Briefs[i]
		named[b.Name] = true
		sample, known := sampleAt(c.read[i], b), l.tenants[b.Name]
		if n := len(known); n > 0 && same(known[n-1], sample) {
			continue
		}
		l.tenants[b.Name] = append(known, sample)
		l.count++
	}
	for name, known := range l.tenants {
		if !named[name] { // the store has deleted it, and counts from 0 if it returns
			l.count -= len(known)
			delete(l.tenants, name)
		}
	}
	l.instants = append(l.instants, instant{c.At, l.lost})
	l.lost = false
	for l.count > l.most && len(l.instants) > 1 {
		l.forget(l.instants[1].at)
	}
	if l.count > l.most { // more tenants than samples
		l.instants, l.tenants, l.count = nil, map[string][]Sample{}, 0
	}
}

// still notes that nothing has changed since the last scan.
func (l *samples) still(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.instants); n > 0 && at.Sub(l.instants[n-1].at) >= sampleEvery {
		l.pass(at)
		l.instants = append(l.instants, instant{at, l.lost})
		l.lost = false
	}
}

// same reports whether only time has passed between two samples.
func same(a, b Sample) bool {
	a.At = b.At
	return a == b
}

// pass drops the samples that are too old at now.
func (l *samples) pass(now time.Time) {
	old := slices.IndexFunc(l.instants, func(i instant) bool { return now.Sub(i.at) <= pastAge })
	switch {
	case old > 0:
		l.forget(l.instants[old].at)
	case old < 0:
		l.instants, l.tenants, l.count = nil, map[string][]Sample{}, 0
	}
}

// forget drops everything before from, which is one of the instants. It keeps each tenant's latest
// sample until then, which is its state at from.
func (l *samples) forget(from time.Time) {
	l.instants = slices.DeleteFunc(l.instants, func(i instant) bool { return i.at.Before(from) })
	for name, known := range l.tenants {
		old := 0
		for old+1 < len(known) && !known[old+1].At.After(from) {
			old++
		}
		if old > 0 {
			l.tenants[name] = append(known[:0], known[old:]...)
			l.count -= old
		}
	}
}

// of returns a sample of the tenant for each instant of the last minutes before now. Before its
// first sample the tenant had no jobs.
func (l *samples) of(tenant string, now Sample) []Sample {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(now.At)
	known, was := l.tenants[tenant], now
	if len(known) > 0 {
		was = known[0]
	}
	was.Depth, was.Running, was.OldestWait, was.Admitted, was.Rejected, was.Departed = 0, 0, 0, 0, 0, 0
	all := make([]Sample, 0, len(l.instants)+1)
	for k, i := range l.instants {
		if !i.at.Before(now.At) {
			break
		}
		was.At = i.at
		for len(known) > 0 && !known[0].At.After(i.at) {
			was, known = known[0], known[1:]
		}
		if k == 0 { // the sample may be older
			was.At = i.at
		}
		was.Gap = i.gap
		all = append(all, was)
	}
	now.Gap = l.lost
	return append(all, now)
}
