package figures

import (
	"slices"
	"time"
	"unicode/utf8"

	"github.com/7509e464/sluice/internal/store"
)

const (
	// MaxShown bounds the tenants with gauges of their own, because each adds series.
	MaxShown = 100
	// otherTenants is the label of all tenants that are not shown. A tenant of that name is one of
	// them.
	otherTenants = "other"
	// holdSlot is how long a tenant keeps its slot, however deep the queues of others are. Clients
	// choose the names of tenants, and each shown name is a new series. This bounds how many series
	// they can create per time.
	holdSlot = 10 * time.Minute
)

// shown chooses the tenants that have gauges of their own: those that the configuration names, or
// those with the deepest queues.
type shown struct {
	top    int // how many of the deepest; 0: the named ones
	hidden bool
	slots  []slot
}

// slot is a shown tenant.
type slot struct {
	tenant string
	since  time.Time
}

// newShown shows the named tenants, or the top tenants with the deepest queues. With neither there
// are no gauges by tenant at all, not even for the others.
func newShown(named []string, top int) *shown {
	s := &shown{top: min(top, MaxShown), hidden: named == nil && top == 0}
	s.name(named)
	return s
}

// none reports whether there are no gauges of tenants at all.
func (s *shown) none() bool { return s.hidden }

// name shows these tenants. It does nothing where the deepest are shown.
func (s *shown) name(tenants []string) {
	if s.top > 0 || s.hidden {
		return
	}
	s.slots = nil
	for _, t := range slices.Sorted(slices.Values(tenants)) {
		if s.fits(t) && len(s.slots) < MaxShown {
			s.slots = append(s.slots, slot{tenant: t})
		}
	}
}

// fits reports whether the tenant is not shown yet and its label is free.
func (s *shown) fits(tenant string) bool {
	label := tenantLabel(tenant)
	return label != otherTenants &&
		!slices.ContainsFunc(s.slots, func(p slot) bool { return tenantLabel(p.tenant) == label })
}

func (s *shown) tenants() []string {
	names := make([]string, len(s.slots))
	for i, p := range s.slots {
		names[i] = p.tenant
	}
	return names
}

func (s *shown) has(tenant string) bool {
	return slices.ContainsFunc(s.slots, func(p slot) bool { return p.tenant == tenant })
}

// choose gives the slots to the deepest tenants found. A tenant loses its slot only to a deeper
// one, and not before holdSlot.
func (s *shown) choose(found *findings, now time.Time) {
	if s.top == 0 {
		return
	}
	for _, b := range found.deepest {
		if !s.fits(b.Name) { // usually already shown
			continue
		}
		if len(s.slots) >= s.top {
			shallowest := -1
			for i, p := range s.slots {
				held := now.Sub(p.since) < holdSlot
				if !held && (shallowest < 0 || found.of(p.tenant).Depth < found.of(s.slots[shallowest].tenant).Depth) {
					shallowest = i
				}
			}
			if shallowest < 0 || found.of(s.slots[shallowest].tenant).Depth >= b.Depth {
				return // the following are not deeper
			}
			s.slots = slices.Delete(s.slots, shallowest, shallowest+1)
		}
		s.slots = append(s.slots, slot{b.Name, now})
	}
}

// tenantLabel is the name as a label, which must be UTF-8.
func tenantLabel(tenant string) string {
	if utf8.ValidString(tenant) {
		return tenant
	}
	return store.EncodeName(tenant)
}
