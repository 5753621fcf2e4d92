package api

import "sync"

// owner is who uses something that all clients share. An empty part is not known, and has no bound.
type owner struct {
	tenant  string
	address string // as auth.ClientAddress tells clients apart
}

// bound is one of the limits of shares.
type bound int

const (
	unbound   bound = iota
	inAll           // nothing is left for anybody
	ofTenant        // the tenant holds its share
	ofAddress       // the address holds its share
)

// shares counts what clients hold of something that there is only so much of. Neither one tenant
// nor one address may hold all of it.
type shares struct {
	most, perTenant, perAddress int64

	mu        sync.Mutex
	held      int64
	tenants   map[string]int64
	addresses map[string]int64
}

// Percent is the part of what all clients share that one of them may hold at once.
type Percent int

// Shares of one client, in percent of the whole. The zero value of a Config means these.
const (
	DefaultTenantShare  Percent = 25
	DefaultAddressShare Percent = 50
)

// Of is the share of most, at least 1.
func (p Percent) Of(most int64) int64 { return max(1, (most*int64(p)+99)/100) }

func newShares(most int64, tenant, address Percent) shares {
	return shares{
		most: most, perTenant: tenant.Of(most), perAddress: address.Of(most),
		tenants: map[string]int64{}, addresses: map[string]int64{},
	}
}

// take reserves n, or returns the bound that leaves no room for it.
func (s *shares) take(o owner, n int64) bound {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.full(o, n)
	if full == unbound {
		s.add(o, n)
	}
	return full
}

func (s *shares) give(o owner, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(o, -n)
}

// count returns what is held by all.
func (s *shares) count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// full returns the bound that leaves no room for n; s.mu is held.
func (s *shares) full(o owner, n int64) bound {
	switch {
	case o.tenant != "" && s.tenants[o.tenant]+n > s.perTenant:
		return ofTenant
	case o.address != "" && s.addresses[o.address]+n > s.perAddress:
		return ofAddress
	case s.held+n > s.most:
		return inAll
	}
	return unbound
}

// add changes what the owner holds; s.mu is held.
func (s *shares) add(o owner, n int64) {
	s.held += n
	addTo(s.tenants, o.tenant, n)
	addTo(s.addresses, o.address, n)
}

// addTo keeps no name that holds nothing.
func addTo(counts map[string]int64, name string, n int64) {
	if name == "" {
		return
	}
	if left := counts[name] + n; left != 0 {
		counts[name] = left
	} else {
		delete(counts, name)
	}
}

// blame says in whose share there is no room, of what is named by a plural.
func (b bound) blame(what string) string {
	switch b {
	case ofTenant:
		return "the tenant holds as many " + what + " as one tenant may"
	case ofAddress:
		return "the client's address holds as many " + what + " as one address may"
	default:
		return "the process has no room for more " + what
	}
}
