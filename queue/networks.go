package queue

import (
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
)

// Bounds of the guests that one network brings.
const (
	networkPart  = 50 // it may bring a 50th of all guests that there may be, in networkSpan
	networkLeast = 16 // or this many
	networkSpan  = 10 * time.Minute
	networksHeld = 10_000 // networks in memory
)

// networks bounds the guests that each network brings through this process, beyond those that it
// has. One client may have a whole network of IPv6, with 65,536 guests. It is a token bucket of
// most new guests for each network, which is full again after networkSpan.
type networks struct {
	interval time.Duration // between two new guests of a network that has used up its bucket

	mu   sync.Mutex
	paid *simplelru.LRU[string, time.Time] // when each network has paid for its guests
}

// newNetworks returns the bounds where all guests together are at most this many.
func newNetworks(guests int64) *networks {
	paid, _ := simplelru.NewLRU[string, time.Time](networksHeld, nil) // fails only for sizes below 1
	return &networks{interval: networkSpan / time.Duration(max(networkLeast, guests/networkPart)), paid: paid}
}

// take counts a new guest of the network. It returns false, and counts nothing, if the network has
// used up its bucket.
func (n *networks) take(network string, now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	paid, _ := n.paid.Get(network)
	if paid.Before(now) {
		paid = now
	}
	if paid.Sub(now)+n.interval > networkSpan {
		return false
	}
	n.paid.Add(network, paid.Add(n.interval))
	return true
}

// give takes back what take has counted: the guest was not new.
func (n *networks) give(network string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if paid, known := n.paid.Get(network); known {
		n.paid.Add(network, paid.Add(-n.interval))
	}
}
