package auth

import (
	"errors"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue"
)

// TestUsesAreStored: the first use of a key is stored within a second or two, further ones once a
// minute, and none on the path of a request.
func TestUsesAreStored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &ring{}
		id, key := store.add("acme", time.Time{})
		a := gate(t, Config{Modes: []Mode{Keys}, Keys: store})
		stored := func() (list []queue.Use) {
			store.set(func(r *ring) { list = append(list, r.used...) })
			return list
		}
		began := time.Now()
		if got := outcome(t, a, bearer(key)); got != "acme" || len(stored()) != 0 {
			t.Errorf("%s, stored on the path of the request: %v", got, stored())
		}
		time.Sleep(2 * usesEvery)
		if got := stored(); len(got) != 1 || got[0] != (queue.Use{ID: id, At: began}) {
			t.Errorf("%v", got)
		}
		for range 10 * 60 { // ten minutes of traffic, twice a second
			outcome(t, a, bearer(key))
			time.Sleep(time.Second / 2)
			outcome(t, a, bearer(key))
			time.Sleep(time.Second / 2)
			all := stored() // once: a use may be stored at this instant
			if lag := time.Since(all[len(all)-1].At); lag > useAge+2*usesEvery {
				t.Fatalf("the stored use is %v behind", lag)
			}
		}
		if n := len(stored()); n < 10 || n > 12 {
			t.Errorf("%d writes in ten minutes", n)
		}
		store.set(func(r *ring) { r.full = errors.New("away") })
		time.Sleep(2 * useAge)
		outcome(t, a, bearer(key))
		last, n := time.Now(), len(stored())
		time.Sleep(2 * usesEvery)
		store.set(func(r *ring) { r.full = nil })
		time.Sleep(useAge + usesEvery)
		if got := stored(); len(got) != n+1 || !got[n].At.Equal(last) {
			t.Errorf("a use that could not be stored at first: %v", got[n:])
		}
		time.Sleep(3 * useAge)
		if a.uses.mu.Lock(); len(a.uses.keys) != 0 {
			t.Errorf("%d keys are still known", len(a.uses.keys))
		}
		a.uses.mu.Unlock()
	})
}

// TestNetworksOfAKey: a key with networks is refused elsewhere, also where a header says otherwise,
// and that is no guess and no end of its validity elsewhere.
func TestNetworksOfAKey(t *testing.T) {
	store := &ring{}
	id, key := store.add("acme", time.Time{})
	store.set(func(r *ring) {
		k := r.keys[id]
		k.Rights = &queue.Rights{Networks: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"),
			netip.MustParsePrefix("2001:db8::/32")}}
		r.keys[id] = k
	})
	a := gate(t, Config{Modes: []Mode{Keys}, Keys: store,
		Guest: GuestConfig{TrustedProxies: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}}})
	for from, want := range map[string]bool{
		"192.0.2.7:1": true, "192.0.3.7:1": false, "[2001:db8::1]:1": true, "[2001:db9::1]:1": false,
		"[::ffff:192.0.2.7]:1": true, "10.0.0.1:1": false, "10.0.0.2:1": false, "nonsense": false,
		"10.0.0.1:2 192.0.2.9": true, "10.0.0.2:2 192.0.2.9": false, "10.0.0.1:2 192.0.3.9": false,
	} {
		peer, client := from, ""
		if i := len("10.0.0.1:2"); len(from) > i && from[i] == ' ' {
			peer, client = from[:i], from[i+1:]
		}
		r := request(peer, "Authorization: Bearer "+key)
		if client != "" {
			r.Header.Set("X-Forwarded-For", client)
		}
		who, err := a.Authenticate(r)
		var forbidden *Forbidden
		if good := err == nil && who.Tenant == "acme"; good != want || !want && (!errors.As(err, &forbidden) ||
			forbidden.Missing != "network") || a.Good(r) != want {
			t.Errorf("from %s: %v, %v, want %v", from, who, err, want)
		}
	}
}
