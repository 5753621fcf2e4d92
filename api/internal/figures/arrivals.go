package figures

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// ArrivalsAge is how long arrivals are kept in memory.
const ArrivalsAge = time.Hour

// Arrival is a submission that the queue has decided on.
type Arrival struct {
	At       shaper.Instant // on the clock of the store
	Cost     int64          // departure intervals, 1 to shaper.MaxCost
	Route    string
	Admitted bool // false: refused
}

// Bounds of Arrivals. A run has 24 bytes: all of it is about 40 MB at the most.
const (
	stripes     = 64      // locks
	flowsMost   = 1024    // of the histories under one lock
	firstRuns   = 8       // of a new history
	flowRuns    = 1 << 16 // of one history
	spareRuns   = 1 << 20 // beyond the first ones, of all histories
	sampled     = 8       // tenants that are examined when the log is full
	followsMost = 32
)

// Arrivals records the arrivals of one process. It is safe for concurrent use; the zero value is
// not usable, see NewArrivals.
type Arrivals struct {
	begun    time.Time
	seed     maphash.Seed
	stripes  [stripes]stripe
	flows    atomic.Int64
	spare    atomic.Int64 // runs that histories may still grow by
	followed atomic.Int64
}

// stripe is a part of the tenants with its own lock.
type stripe struct {
	mu      sync.Mutex
	tenants map[string]*tenant
	flows   int
	_       [40]byte // so that no two locks share a line of the cache
}

// tenant holds the histories of a tenant. Routes are few, so the search is linear.
type tenant struct {
	flows     []*history
	followers []*Follower
}

// NewArrivals returns an empty log.
func NewArrivals() *Arrivals {
	l := &Arrivals{begun: time.Now(), seed: maphash.MakeSeed()}
	l.spare.Store(spareRuns)
	for i := range l.stripes {
		l.stripes[i].tenants = map[string]*tenant{}
	}
	return l
}

func (l *Arrivals) stripe(tenant string) *stripe {
	return &l.stripes[maphash.String(l.seed, tenant)%stripes]
}

// Note records an arrival and sends it to the followers of its tenant.
func (l *Arrivals) Note(name string, a Arrival) {
	s := l.stripe(name)
	s.mu.Lock()
	t := s.tenants[name]
	if t == nil {
		t = &tenant{}
		s.tenants[strings.Clone(name)] = t // which may be part of a request
	}
	h := t.of(a.Route)
	if h == nil {
		h = l.begin(s, t, a.Route)
	}
	refused := uint32(1)
	if a.Admitted {
		refused = 0
	}
	if !h.add(a.At, a.Cost, refused) {
		l.makeRoom(s, h, a.At)
		h.add(a.At, a.Cost, refused)
	}
	for _, f := range t.followers {
		f.offer(a)
	}
	s.mu.Unlock()
}

// of is the history of a route, nil if there is none.
func (t *tenant) of(route string) *history {
	for _, h := range t.flows {
		if h.route == route {
			return h
		}
	}
	return nil
}

// begin makes a history. When the stripe is full, it drops the history of a tenant that was silent
// for long.
func (l *Arrivals) begin(s *stripe, t *tenant, route string) *history {
	if s.flows >= flowsMost {
		l.forgetOne(s, t)
	}
	h := &history{route: strings.Clone(route), width: finest, runs: make([]run, 0, firstRuns)}
	t.flows = append(t.flows, h)
	s.flows++
	l.flows.Add(1)
	return h
}

// makeRoom makes space for one more run in a full history: it drops old runs if they are many, else
// the history grows, else it becomes coarser.
func (l *Arrivals) makeRoom(s *stripe, h *history, now shaper.Instant) {
	full := len(h.runs)
	h.drop(now.Add(-ArrivalsAge))
	if len(h.runs) <= full*3/4 { // else it would soon be full again
		if len(h.runs) <= full/4 && h.width > finest {
			h.width /= 2
		}
		return
	}
	if want := cap(h.runs); 2*want <= flowRuns && (l.take(want) || l.reclaim(s, h, now) && l.take(want)) {
		h.resize(2 * want)
		return
	}
	h.coarsen(cap(h.runs) / 2)
}

// take takes n of the spare runs, if there are that many.
func (l *Arrivals) take(runs int) bool {
	if l.spare.Add(-int64(runs)) >= 0 {
		return true
	}
	l.spare.Add(int64(runs))
	return false
}

// give returns the spare runs of a history.
func (l *Arrivals) give(h *history) { l.spare.Add(int64(cap(h.runs) - firstRuns)) }

// reclaim takes runs from some random tenants: those that are too old or beyond their share. It
// reports whether it took any.
func (l *Arrivals) reclaim(s *stripe, but *history, now shaper.Instant) (took bool) {
	share := max(firstRuns, int(spareRuns/max(1, l.flows.Load())))
	looked := 0
	for name, t := range s.tenants {
		if looked++; looked > sampled {
			break
		}
		for _, h := range slices.Clone(t.flows) {
			switch {
			case h == but:
			case h.last() < now.Add(-ArrivalsAge):
				l.forget(s, name, t, h)
				took = true
			case cap(h.runs) >= 2*share:
				l.give(h)
				h.coarsen(share)
				h.resize(max(firstRuns, share))
				l.spare.Add(-int64(cap(h.runs) - firstRuns))
				took = true
			}
		}
	}
	return took
}

// forgetOne drops the history that was silent longest among some random tenants other than but.
func (l *Arrivals) forgetOne(s *stripe, but *tenant) {
	var name string
	var of *tenant
	var oldest *history
	looked := 0
	for n, t := range s.tenants {
		if t == but {
			continue
		}
		if looked++; looked > sampled && oldest != nil {
			break
		}
		for _, h := range t.flows {
			if oldest == nil || h.last() < oldest.last() {
				name, of, oldest = n, t, h
			}
		}
	}
	if oldest != nil {
		l.forget(s, name, of, oldest)
	}
}

func (l *Arrivals) forget(s *stripe, name string, t *tenant, h *history) {
	l.give(h)
	t.flows = slices.DeleteFunc(t.flows, func(other *history) bool { return other == h })
	s.flows--
	l.flows.Add(-1)
	s.dropIfEmpty(name, t)
}

// dropIfEmpty drops a tenant without histories and followers.
func (s *stripe) dropIfEmpty(name string, t *tenant) {
	if len(t.flows) == 0 && len(t.followers) == 0 {
		delete(s.tenants, name)
	}
}

// Since returns the instant from which this process has arrivals: an hour before now, or its start.
func (l *Arrivals) Since(now time.Time) time.Time {
	if hour := now.Add(-ArrivalsAge); hour.After(l.begun) {
		return hour
	}
	return l.begun
}

// Tenants returns the names of the tenants with recorded arrivals, sorted.
func (l *Arrivals) Tenants() []string {
	var names []string
	for i := range l.stripes {
		s := &l.stripes[i]
		s.mu.Lock()
		names = slices.AppendSeq(names, maps.Keys(s.tenants))
		s.mu.Unlock()
	}
	slices.Sort(names)
	return names
}

// Traces returns the tenant's arrivals by route, admitted or not, at most an hour old at now. If
// they are more than most in total, it returns the last ones, and from is the instant of the first
// of them. Else from is 0.
func (l *Arrivals) Traces(
	name string, now shaper.Instant, most int,
) (traces map[string]simulate.Trace, from shaper.Instant) {
	flows := l.runs(name, now.Add(-ArrivalsAge))
	n := 0
	for _, runs := range flows {
		for _, r := range runs {
			n += int(r.n)
		}
	}
	if n > most {
		from = begin(flows, most)
	}
	traces = map[string]simulate.Trace{}
	for route, runs := range flows {
		if t := traceOf(runs, from); len(t) > 0 {
			traces[route] = t
		}
	}
	return traces, from
}

// runs returns copies of the tenant's histories from an instant on.
func (l *Arrivals) runs(name string, from shaper.Instant) map[string][]run {
	s := l.stripe(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tenants[name]
	if t == nil {
		return nil
	}
	flows := map[string][]run{}
	for _, h := range t.flows {
		flows[h.route] = slices.Clone(h.since(from))
	}
	return flows
}

// begin is the instant of the first of the last runs with at most most arrivals in total.
func begin(flows map[string][]run, most int) shaper.Instant {
	var all []run
	for _, runs := range flows {
		all = append(all, runs...)
	}
	slices.SortFunc(all, func(a, b run) int { return cmp.Compare(b.at, a.at) })
	from := all[0].at
	for _, r := range all {
		if most -= int(r.n); most < 0 {
			break
		}
		from = r.at
	}
	return from
}
