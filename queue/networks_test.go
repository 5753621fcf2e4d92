package queue

import (
	"strconv"
	"testing"
	"time"
)

func TestGuestsOfANetwork(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	come := func(n *networks, network string, guests int) (taken int) {
		for range guests {
			if n.take(network, now) == 0 {
				taken++
			}
		}
		return taken
	}
	n := newNetworks(5000)
	if got := come(n, "2001:db8:1::/48", 1000); got != 100 {
		t.Errorf("a network brings %d guests of 5,000, want 100", got)
	}
	if got := come(n, "2001:db8:2::/48", 1000); got != 100 {
		t.Errorf("another brings %d, want 100", got)
	}
	n.give("2001:db8:1::/48")
	if got := come(n, "2001:db8:1::/48", 2); got != 1 {
		t.Errorf("one that was not new leaves a place for %d, want 1", got)
	}
	now = now.Add(networkSpan / 2)
	if got := come(n, "2001:db8:1::/48", 1000); got != 50 {
		t.Errorf("after half of the time it brings %d, want 50", got)
	}
	if got := come(newNetworks(10), "2001:db8:1::/48", 1000); got != networkLeast {
		t.Errorf("of few guests a network brings %d, want %d", got, networkLeast)
	}
	for i := range 2 * networksHeld {
		n.take(strconv.Itoa(i), now)
	}
	if got := n.paid.Len(); got != networksHeld {
		t.Errorf("%d networks are in memory, want %d", got, networksHeld)
	}
}
