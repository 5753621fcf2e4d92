package budget

import (
	"fmt"
	"testing"
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
