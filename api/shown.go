package api

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/7509e464/sluice/queue"
)

const (
	// maxShown bounds the tenants with gauges of their own, for the sake of the metrics' size.
	maxShown = 100
	// otherTenants is the label of all tenants that are not shown; a tenant of that name is one of
	// them.
	otherTenants = "other"
	// holdPlace is how long a tenant keeps its place among the deepest, however deep others are.
	// Each new one is a new series wherever metrics are kept, and clients choose the names: so they
	// cannot make more of these than there are places in that time.
	holdPlace = 10 * time.Minute
)

// shown chooses the tenants that have gauges of their own: those that the configuration names, or
// those with the deepest queues.
type shown struct {
	top    int // how many of the deepest; 0: the named ones
	hidden bool
	places []place
}

// place is a tenant that is shown, since then.
type place struct {
	tenant string
	since  time.Time
}

// newShown shows the named tenants, or as many of the deepest as top says. Without either, none:
// not even the others.
func newShown(named []string, top int) *shown {
	s := &shown{top: min(top, maxShown), hidden: named == nil && top == 0}
	s.name(named)
	return s
}

// none reports whether there are no gauges of tenants at all.
func (s *shown) none() bool { return s.hidden }

// name shows these tenants, unless the deepest are shown.
func (s *shown) name(tenants []string) {
	if s.top > 0 || s.hidden {
		return
	}
	s.places = nil
	for _, t := range slices.Sorted(slices.Values(tenants)) {
		if s.fits(t) && len(s.places) < maxShown {
			s.places = append(s.places, place{tenant: t})
		}
	}
}

// fits reports whether the tenant can have series of its own, beside those that there are.
func (s *shown) fits(tenant string) bool {
	label := tenantLabel(tenant)
	return label != otherTenants && !slices.ContainsFunc(s.places, func(p place) bool { return tenantLabel(p.tenant) == label })
}

func (s *shown) tenants() []string {
	names := make([]string, len(s.places))
	for i, p := range s.places {
		names[i] = p.tenant
	}
	return names
}

func (s *shown) has(tenant string) bool {
	return slices.ContainsFunc(s.places, func(p place) bool { return p.tenant == tenant })
}

// choose gives the places to the deepest of those that were found. One that is taken changes hands
// for a deeper tenant, and not before its time.
func (s *shown) choose(found *findings, now time.Time) {
	if s.top == 0 {
		return
	}
	for _, b := range found.deepest {
		if !s.fits(b.Name) { // it is shown already, mostly
			continue
		}
		if len(s.places) >= s.top {
			shallowest := -1
			for i, p := range s.places {
				held := now.Sub(p.since) < holdPlace
				if !held && (shallowest < 0 || found.of(p.tenant).Depth < found.of(s.places[shallowest].tenant).Depth) {
					shallowest = i
				}
			}
			if shallowest < 0 || found.of(s.places[shallowest].tenant).Depth >= b.Depth {
				return // those that follow are not deeper
			}
			s.places = slices.Delete(s.places, shallowest, shallowest+1)
		}
		s.places = append(s.places, place{b.Name, now})
	}
}

// tenantLabel is the name as metrics may have it: they must be UTF-8.
func tenantLabel(tenant string) string {
	if utf8.ValidString(tenant) {
		return tenant
	}
	return queue.EncodeName(tenant)
}
