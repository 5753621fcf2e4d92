package live

import (
	"slices"
	"sync"
	"time"

	"github.com/7509e464/sluice/queue"
)

// looksMost bounds the looks of all tenants together: up to 25 MB. Beyond it they reach less far
// back.
const looksMost = 1 << 17

// Look is what is remembered of a tenant at an instant.
type Look struct {
	At                           time.Time
	Gap                          bool // the store was away since the look before
	Depth, Running, Capacity     int64
	OldestWait                   time.Duration
	Rate, Strictest, Effective   float64 // per second: its rate, the least of all its rates, and what is left of that
	Admitted, Rejected, Departed int64
}

// lookAt is what is remembered of a tenant at the instant.
func lookAt(at time.Time, b *queue.Brief) Look {
	l := Look{
		At: at, Depth: b.Depth, Running: b.Running, Capacity: b.Capacity, OldestWait: b.OldestWait,
		Rate: b.Rate.PerSecond(), Effective: b.EffectiveRate, Admitted: b.Admitted, Rejected: b.Rejected, Departed: b.Departed,
	}
	l.Strictest = l.Rate
	for _, p := range b.Rates {
		l.Strictest = min(l.Strictest, p.Rate.PerSecond())
	}
	return l
}

// instant is when all tenants had been looked at.
type instant struct {
	at  time.Time
	gap bool // the store was away since the instant before
}

// looks remembers what scans told of each tenant. A tenant has a look of its own only where
// something has changed, so that idle tenants cost one look each.
type looks struct {
	mu       sync.Mutex
	most     int
	instants []instant
	tenants  map[string][]Look // each from the latest look at the first instant on, or from when it appeared
	count    int               // looks of all tenants
	lost     bool              // the store was away since the last instant
}

func newLooks(most int) *looks { return &looks{most: most, tenants: map[string][]Look{}} }

// note remembers a scan, if the last one is old enough. err says why there is none.
func (l *looks) note(c *Scan, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.lost = len(l.instants) > 0
		return
	}
	if n := len(l.instants); n > 0 && c.At.Sub(l.instants[n-1].at) < lookEvery {
		return
	}
	l.pass(c.At)
	named := make(map[string]bool, len(c.Briefs))
	for i := range c.Briefs {
		b := &c.Briefs[i]
		named[b.Name] = true
		look, known := lookAt(c.read[i], b), l.tenants[b.Name]
		if n := len(known); n > 0 && same(known[n-1], look) {
			continue
		}
		l.tenants[b.Name] = append(known, look)
		l.count++
	}
	for name, known := range l.tenants {
		if !named[name] { // the store has forgotten it, and will count it anew
			l.count -= len(known)
			delete(l.tenants, name)
		}
	}
	l.instants = append(l.instants, instant{c.At, l.lost})
	l.lost = false
	for l.count > l.most && len(l.instants) > 1 {
		l.forget(l.instants[1].at)
	}
	if l.count > l.most { // more tenants than looks
		l.instants, l.tenants, l.count = nil, map[string][]Look{}, 0
	}
}

// still remembers that nothing has changed since the last scan.
func (l *looks) still(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.instants); n > 0 && at.Sub(l.instants[n-1].at) >= lookEvery {
		l.pass(at)
		l.instants = append(l.instants, instant{at, l.lost})
		l.lost = false
	}
}

// same reports whether only time has passed between two looks.
func same(a, b Look) bool {
	a.At = b.At
	return a == b
}

// pass drops what is too old at the instant.
func (l *looks) pass(now time.Time) {
	old := slices.IndexFunc(l.instants, func(i instant) bool { return now.Sub(i.at) <= pastKept })
	switch {
	case old > 0:
		l.forget(l.instants[old].at)
	case old < 0:
		l.instants, l.tenants, l.count = nil, map[string][]Look{}, 0
	}
}

// forget drops what was before the instant from, which is one of them. Of each tenant its latest
// look until then is kept: it says how the tenant was.
func (l *looks) forget(from time.Time) {
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

// of is a look at the tenant for each instant of the last minutes before now. Before it appeared it
// had no jobs.
func (l *looks) of(tenant string, now Look) []Look {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pass(now.At)
	known, was := l.tenants[tenant], now
	if len(known) > 0 {
		was = known[0]
	}
	was.Depth, was.Running, was.OldestWait, was.Admitted, was.Rejected, was.Departed = 0, 0, 0, 0, 0, 0
	all := make([]Look, 0, len(l.instants)+1)
	for k, i := range l.instants {
		if !i.at.Before(now.At) {
			break
		}
		was.At = i.at
		for len(known) > 0 && !known[0].At.After(i.at) {
			was, known = known[0], known[1:]
		}
		if k == 0 { // the look may be older
			was.At = i.at
		}
		was.Gap = i.gap
		all = append(all, was)
	}
	now.Gap = l.lost
	return append(all, now)
}
