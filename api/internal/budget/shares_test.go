package budget

import (
	"fmt"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// TestGuestsTogether: however many addresses a client has, its guests leave half to the others.
func TestGuestsTogether(t *testing.T) {
	s := NewShares(1000, DefaultTenantShare, 80)
	taken := 0
	for i := range 8 {
		guest := Owner{Tenant: fmt.Sprint("guest:192.0.2.", i), Address: fmt.Sprint("192.0.2.", i)}
		for s.Take(guest, 1) == Unbound {
			taken++
		}
	}
	if taken != 500 {
		t.Errorf("guests took %d", taken)
	}
	guest, customer := Owner{Tenant: "guest:192.0.2.7", Address: "192.0.2.7"}, Owner{Tenant: "acme", Address: "192.0.2.8"}
	if full := s.Take(guest, 1); full.Text("streams") != "all guests together have reached their limit of streams" {
		t.Errorf("a guest more: %s", full.Text("streams"))
	}
	if full := s.Take(customer, 250); full != Unbound {
		t.Errorf("a customer: %s", full.Text("streams"))
	}
	s.Give(Owner{Tenant: "guest:192.0.2.0", Address: "192.0.2.0"}, 1)
	if full := s.Take(guest, 1); full != Unbound {
		t.Errorf("a guest after another left: %s", full.Text("streams"))
	}
}

// TestReadsOfGuests: however many there are, guests read GuestRows times what one tenant may, and
// others read on.
func TestReadsOfGuests(t *testing.T) {
	rows, now := NewRows(shaper.Rate{Limit: 100, Period: time.Second}), time.Now()
	read := 0
	for i := range 5000 {
		if rows.Take(Owner{Tenant: fmt.Sprint("guest:192.0.2.", i%250), Address: fmt.Sprint("192.0.2.", i%250)}, now) == 0 {
			read++
		}
	}
	if most := GuestRows * rows.Burst(); read < most-GuestRows || read > most {
		t.Errorf("guests read %d at once, want %d", read, most)
	}
	if wait := rows.Take(Owner{Tenant: "acme", Address: "192.0.2.7"}, now); wait > 0 {
		t.Errorf("a customer waits %v", wait)
	}
}

// TestSeveralTakeAll: tenants that take all they can leave room for another, and one alone has its
// share.
func TestSeveralTakeAll(t *testing.T) {
	for _, c := range []struct {
		share  Percent
		n      int
		leaves int64
	}{{25, 1, 750}, {25, 3, 250}, {25, 4, 125}, {25, 12, 1}, {60, 1, 400}, {60, 3, 60}, {100, 1, 0}} {
		s := NewShares(1000, c.share, 100)
		for more := true; more; {
			more = false
			for i := range c.n {
				more = s.Take(Owner{Tenant: fmt.Sprint("hog", i)}, 1) == Unbound || more
			}
		}
		if left := 1000 - s.Count(); left < c.leaves || left > 0 && s.Take(Owner{Tenant: "quiet"}, 1) != Unbound {
			t.Errorf("%d tenants with a share of %d %% leave %d of 1000, want %d", c.n, c.share, left, c.leaves)
		}
	}
}
