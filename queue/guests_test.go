package queue_test

import (
	"fmt"
	"testing"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestGuestsOfNetworks: guests of one client's network leave places to those of others.
func TestGuestsOfNetworks(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			q := open(t, options(t), func(o *queue.Options) {
				o.Store.Tenants = 200
				o.Store.Classes = map[string]queue.ClassBound{queue.ClassGuests: {Bytes: 25, Tenants: 50}}
			})
			submit := func(network string, guest int) queue.Decision {
				t.Helper()
				v, err := q.Submit(t.Context(), queue.Submission{
					Tenant: fmt.Sprintf("guest:%s:%d::/64", network, guest), Guest: true, Network: network, Tier: "free",
					Route: "default", Type: "t", MaxAttempts: 1,
				})
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			for _, network := range []string{"2001:db8:1", "2001:db8:2"} {
				admitted := 0
				for i := range 60 {
					switch v := submit(network, i); {
					case v.Outcome == shaper.Admitted:
						admitted++
					case v.Outcome != shaper.StoreFull || !v.OfPart:
						t.Fatalf("a guest got %s", v.Outcome)
					case v.Part != shaper.PartNetwork || v.PartGuests != 16 || v.RetryAfter <= 0:
						t.Fatalf("refused by %q of %d guests, retry after %v", v.Part, v.PartGuests, v.RetryAfter)
					}
				}
				if admitted != 16 { // a 50th of 100 guests is less
					t.Errorf("%d guests of %s, want 16", admitted, network)
				}
			}
			page, _, err := q.Scan(t.Context(), "", 1000)
			for _, b := range page {
				if b.Tier != "free" {
					t.Errorf("%s has the tier %q", b.Name, b.Tier)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			if v := submit("2001:db8:1", 0); v.Outcome != shaper.Admitted {
				t.Errorf("a guest that the store knows got %s", v.Outcome)
			}
		})
	}
}
