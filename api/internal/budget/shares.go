// Package budget bounds the share of one tenant, one address and all guests in common resources:
// requests, event streams, reads of jobs and the memory of large bodies. Package api and its
// internal packages import it.
package budget

import (
	"sync"

	"github.com/7509e464/sluice/queue"
)

// Owner is the client that uses a shared resource. An empty part is unknown and has no bound.
type Owner struct {
	Tenant  string
	Address string // see auth.ClientNetwork
}

// Bound is one of the limits of shares.
type Bound int

// The limits. Take returns Unbound if it exceeds none.
const (
	Unbound   Bound = iota
	inAll           // the whole resource is in use
	ofTenant        // the tenant holds its share
	ofAddress       // the address holds its share
	ofGuests        // all guests together hold theirs
)

// Shares counts the use of a limited resource. One tenant or one address gets a share of it, never
// the whole, nor do all guests together: a client with many addresses is as many guests.
//
// Nor do a few tenants together, such as subjects of tokens: what one holds may not be more than
// what is free then, after the dynamic thresholds of Choudhury and Hahne (IEEE/ACM Transactions on
// Networking, 1998). n of them that take what they can leave at least 1/(n+1). A share of p percent
// above 50 may be p/(100-p) times as much as is free, so that one tenant alone has its share. A few
// units, 1/64 of all, are free of this.
type Shares struct {
	most, perTenant, perAddress, perGuests int64

	mu        sync.Mutex
	held      int64
	ofGuests  int64
	tenants   map[string]int64
	addresses map[string]int64
}

// Percent is the share of a resource that one client may use at once, 1 to 100.
type Percent int

// The default shares of one client.
const (
	DefaultTenantShare  Percent = 25
	DefaultAddressShare Percent = 50
)

// Of returns the share of most, rounded up and at least 1.
func (p Percent) Of(most int64) int64 { return max(1, (most*int64(p)+99)/100) }

// NewShares returns shares of a resource of most units. One tenant and one address may hold the
// given percentages of them, and all guests together as much as one address, but at most half.
func NewShares(most int64, tenant, address Percent) Shares {
	return Shares{
		most: most, perTenant: tenant.Of(most), perAddress: address.Of(most),
		perGuests: min(address, DefaultAddressShare).Of(most),
		tenants:   map[string]int64{}, addresses: map[string]int64{},
	}
}

// Take reserves n units for the owner and returns Unbound. If n exceeds a limit, it reserves
// nothing and returns that limit.
func (s *Shares) Take(o Owner, n int64) Bound {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.full(o, n)
	if full == Unbound {
		s.add(o, n)
	}
	return full
}

// Give returns n units that Take reserved for the same owner.
func (s *Shares) Give(o Owner, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.add(o, -n)
}

// Count returns the number of units in use by all clients.
func (s *Shares) Count() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held
}

// full returns the bound that n more would exceed; s.mu is held.
func (s *Shares) full(o Owner, n int64) Bound {
	switch {
	case o.Tenant != "" && s.tenants[o.Tenant]+n > s.perTenant:
		return ofTenant
	case o.Address != "" && s.addresses[o.Address]+n > s.perAddress:
		return ofAddress
	case queue.IsGuest(o.Tenant) && s.ofGuests+n > s.perGuests:
		return ofGuests
	case s.held+n > s.most:
		return inAll
	case o.Tenant != "" && s.crowds(s.tenants[o.Tenant], n):
		return ofTenant
	}
	return Unbound
}

// crowds reports whether a tenant that holds some units would have too much of the rest with n
// more; s.mu is held.
func (s *Shares) crowds(holds, n int64) bool {
	share, few := max(s.perTenant, s.most/2), max(1, s.most/64)
	return holds+n > few && float64(holds+n)*float64(s.most-share) > float64(share)*float64(s.most-s.held-n)
}

// add changes the use of the owner; s.mu is held.
func (s *Shares) add(o Owner, n int64) {
	s.held += n
	addTo(s.tenants, o.Tenant, n)
	addTo(s.addresses, o.Address, n)
	if queue.IsGuest(o.Tenant) {
		s.ofGuests += n
	}
}

// addTo deletes names at zero.
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

// Text names the limit for a message; what is the plural of the units.
func (b Bound) Text(what string) string {
	switch b {
	case ofTenant:
		return "the tenant has reached its limit of " + what
	case ofAddress:
		return "the client's address has reached its limit of " + what
	case ofGuests:
		return "all guests together have reached their limit of " + what
	default:
		return "the process has reached its limit of " + what
	}
}
