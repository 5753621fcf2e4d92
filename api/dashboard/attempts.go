package dashboard

import (
	"net/http"
	"net/netip"
	"time"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Bounds of signing in, so that nobody tries tokens one after the other. They are kept in the memory of each process.
const (
	attemptsLimit  = 10 // wrong tokens of one address within attemptsPeriod
	attemptsPeriod = time.Minute
	attemptsHeld   = 10_000 // addresses that are remembered at once
	attemptsBits   = 64     // how much of an IPv6 address counts: a host has the rest for itself and may change it at will
)

// attempts counts the wrong tokens of each address.
type attempts struct{ wrong *limiter.Memory }

func newAttempts() (attempts, error) {
	rate := shaper.Rate{Limit: attemptsLimit, Period: attemptsPeriod}
	wrong, err := limiter.NewMemory(limiter.Policy{Algorithm: limiter.SlidingLog, Rate: rate}, attemptsHeld)
	return attempts{wrong}, err
}

// begin counts an attempt as wrong before anybody looks at its token: many at once must not all pass. It returns how long the address has to
// wait, 0 if its token is to be looked at.
func (a attempts) begin(r *http.Request) time.Duration {
	return a.wrong.Take(addressOf(r), 1).RetryAfter
}

// right forgets the wrong tokens of an address that has shown the right one.
func (a attempts) right(r *http.Request) { a.wrong.Clear(addressOf(r)) }

// addressOf is what is known of the peer: the address of the connection, for a header may say anything. Behind a proxy all are one.
func addressOf(r *http.Request) string {
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	addr := peer.Addr().Unmap().WithZone("")
	if addr.Is4() {
		return addr.String()
	}
	return netip.PrefixFrom(addr, attemptsBits).Masked().String()
}
