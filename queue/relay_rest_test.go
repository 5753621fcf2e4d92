package queue

import (
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/store"
)

// TestRelayRests: while writes wait for Redis, many answers of a tenant are written less often, and
// one of another tenant as ever.
func TestRelayRests(t *testing.T) {
	const way = time.Millisecond
	for _, c := range []struct {
		answers int
		took    time.Duration
		want    time.Duration
	}{
		{64, 0, 0},
		{64, 2 * way, 0},
		{64, 3 * way, 16 * time.Millisecond},
		{1, 3 * way, 250 * time.Microsecond},
		{64, time.Minute, mostRest},
	} {
		b := &Broker{
			parts: tenantParts{tenants: map[string]partsOf{}},
			store: &store.Store{Way: func() time.Duration { return way }},
		}
		for id := range c.answers {
			r := &Relay{b: b, id: partID("", 0, int64(id)), tenant: "many"}
			r.enter()
			r.enter() // again, after a lost lease
			defer r.leave()
		}
		r := &Relay{b: b, tenant: "many"}
		if got := r.restAfter(c.took); got != c.want {
			t.Errorf("%d answers rest for %v after %v, want %v", c.answers, got, c.took, c.want)
		}
		r.tenant = "one"
		r.enter()
		if got := r.restAfter(3 * way); got > way {
			t.Errorf("that of another tenant rests for %v", got)
		}
		r.leave()
	}
}
