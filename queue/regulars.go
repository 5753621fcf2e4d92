package queue

import (
	"maps"
	"slices"
	"time"

	"github.com/7509e464/sluice/internal/policies"
	"github.com/7509e464/sluice/internal/store"
)

// Bounds of regulars.
const (
	regularFor  = 2 * time.Second // within which a flow must bring jobs twice
	maxRegulars = 1024            // flows that one such time keeps
	regularMost = 256             // with more, none is preferred: a crowd of them waits alike
	crowdFor    = 3 * time.Second // of an overload that lasts longer, all lose alike
)

// regulars are the flows of a shard that bring jobs poll after poll. While thousands of others are
// due at one instant, a poll that knows them by name looks at them first: they lose no departures
// to a crowd that it takes many polls to serve or to put off.
type regulars struct {
	since       time.Time
	now, before map[member]int // polls that brought jobs, by flow: since then, and in the time before
}

// member is a flow by its tenant and route.
type member struct{ tenant, route string }

// note takes the leases of a poll into account.
func (r *regulars) note(at time.Time, leases []Lease) {
	if at.Sub(r.since) >= regularFor {
		r.since, r.now, r.before = at, map[member]int{}, r.now
	}
	last := member{}
	for _, l := range leases {
		c := member{l.Tenant, l.Route}
		if c == last {
			continue // the jobs of a flow come together
		}
		last = c
		if n := r.now[c]; n > 0 || len(r.now) < maxRegulars {
			r.now[c] = n + 1
		}
	}
}

// names returns the regulars as they are in the index of due flows, in no order: flows, and pools
// for the flows that are in one; none if there are more than regularMost.
func (r *regulars) names(p *policies.Set) []string {
	names := map[string]bool{}
	for _, seen := range []map[member]int{r.now, r.before} {
		for c := range seen {
			if r.now[c]+r.before[c] >= 2 {
				names[dueName(p, c)] = true
			}
		}
	}
	if len(names) > regularMost {
		return nil
	}
	return slices.Collect(maps.Keys(names))
}

// dueName is the name by which a flow is in the index of due flows: its own, or that of its pool.
func dueName(p *policies.Set, c member) string {
	if p != nil {
		if pool := p.Baseline.PoolOf(c.route); pool != "" {
			return store.PoolName(pool) + "/"
		}
	}
	return store.FlowName(c.tenant, c.route)
}
