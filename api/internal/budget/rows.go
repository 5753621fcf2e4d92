package budget

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

const (
	// rowsBurst is how long an idle client may have gathered reads.
	rowsBurst = 2 * time.Second
	// AddressRows is how many times the reads of one tenant an address has, and GuestRows is that
	// of all guests together.
	AddressRows, GuestRows = 2, 4
)

// Rows bounds the work that the reads of one tenant, and of one address, make in the store. Its
// unit is the read of one job. What a read costs beyond one is charged when it is known, so the
// next reads wait for it. It is in memory: n processes allow n times the rate.
type Rows struct {
	Shown    shaper.Rate   // of a tenant
	interval time.Duration // between two reads of a tenant

	mu        sync.Mutex
	tenants   *simplelru.LRU[string, time.Time] // when each has paid for its reads
	addresses *simplelru.LRU[string, time.Time]
}

// NewRows returns a bound that allows each tenant the rate, and each address AddressRows times it.
func NewRows(r shaper.Rate) *Rows {
	tenants, _ := simplelru.NewLRU[string, time.Time](maxReaders, nil) // fails only for sizes below 1
	addresses, _ := simplelru.NewLRU[string, time.Time](maxReaders, nil)
	return &Rows{
		Shown: r, interval: time.Duration(float64(time.Second) / r.PerSecond()), tenants: tenants, addresses: addresses,
	}
}

// Burst is the number of reads that are possible at once after an idle period.
func (b *Rows) Burst() int { return max(1, int(b.Shown.PerSecond()*rowsBurst.Seconds())) }

// Take spends one read of the owner. If the tenant, the address or all guests have none left, it
// spends nothing and returns the time until all have one.
func (b *Rows) Take(o Owner, now time.Time) (wait time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, paid := range []time.Time{
		paidBy(b.tenants, o.Tenant), paidBy(b.addresses, o.Address), paidBy(b.tenants, guestsOf(o)),
	} {
		wait = max(wait, paid.Sub(now.Add(max(0, rowsBurst-b.interval))))
	}
	if wait <= 0 {
		b.charge(o, 1, now)
	}
	return wait
}

// Charge spends n further reads, also those that the owner does not have yet.
func (b *Rows) Charge(o Owner, n int, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.charge(o, n, now)
}

func (b *Rows) charge(o Owner, n int, now time.Time) {
	pay := func(of *simplelru.LRU[string, time.Time], name string, each time.Duration) {
		if name == "" {
			return
		}
		paid := paidBy(of, name)
		if paid.Before(now) {
			paid = now
		}
		of.Add(name, paid.Add(time.Duration(n)*each))
	}
	pay(b.tenants, o.Tenant, b.interval)
	pay(b.addresses, o.Address, b.interval/AddressRows)
	pay(b.tenants, guestsOf(o), b.interval/GuestRows)
}

// guestsOf is the name under which all guests pay, if the owner is one, and else empty.
func guestsOf(o Owner) string {
	if queue.IsGuest(o.Tenant) {
		return queue.GuestPrefix
	}
	return ""
}

func paidBy(of *simplelru.LRU[string, time.Time], name string) time.Time {
	paid, _ := of.Get(name)
	return paid
}
