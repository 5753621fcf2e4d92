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
	most     int64         // new guests of a network in networkSpan
	interval time.Duration // between two new guests of a network that has used up its bucket

	mu   sync.Mutex
	paid *simplelru.LRU[string, time.Time] // when each network has paid for its guests
}

// newNetworks returns the bounds where all guests together are at most this many.
func newNetworks(guests int64) *networks {
	paid, _ := simplelru.NewLRU[string, time.Time](networksHeld, nil) // fails only for sizes below 1
	most := max(networkLeast, guests/networkPart)
	return &networks{most: most, interval: networkSpan / time.Duration(most), paid: paid}
}

// take counts a new guest of the network. If the network has used up its bucket, it counts nothing
// and returns the time until it would.
func (n *networks) take(network string, now time.Time) (wait time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	paid, _ := n.paid.Get(network)
	if paid.Before(now) {
		paid = now
	}
	if wait = paid.Sub(now) + n.interval - networkSpan; wait > 0 {
		return wait
	}
	n.paid.Add(network, paid.Add(n.interval))
	return 0
}

// give takes back what take has counted: the guest was not new.
func (n *networks) give(network string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if paid, known := n.paid.Get(network); known {
		n.paid.Add(network, paid.Add(-n.interval))
	}
}
