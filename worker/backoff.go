package worker

import (
	"math/rand/v2"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// backoff is how long a job waits after its nth failed attempt, n from 1: MinBackoff doubled n − 1 times
// and capped, then spread by ±20 % so that jobs which failed together do not come back together. It is
// from 0.8 × MinBackoff to MaxBackoff.
func (r Retry) backoff(n int) time.Duration {
	wait := min(r.MinBackoff, r.MaxBackoff)
	for ; n > 1 && wait < r.MaxBackoff; n-- {
		wait += min(wait, r.MaxBackoff-wait) // doubled, without overflow
	}
	spread := wait / 5
	return wait - spread + rand.N(spread+min(spread, r.MaxBackoff-wait)+1)
}

// again is the settlement of a failed attempt that may be repeated; status is 0 without an answer.
func (r Retry) again(l queue.Lease, message string, status int) queue.Settlement {
	return queue.Settlement{
		LeaseRef:    l.LeaseRef,
		Event:       shaper.Retry,
		Delay:       r.backoff(l.Attempt),
		MaxAttempts: r.MaxAttempts,
		Error:       &queue.JobError{Message: message, Status: status},
	}
}

// Bounds of the pause between two calls while Redis is away.
const (
	minPause = 25 * time.Millisecond
	maxPause = 500 * time.Millisecond
)

// pauses are the growing pauses between repeated calls; the zero value starts with the shortest.
type pauses struct{ last time.Duration }

func (p *pauses) next() time.Duration {
	p.last = min(max(2*p.last, minPause), maxPause)
	return p.last
}

// reset starts over, after a call that was answered.
func (p *pauses) reset() { p.last = 0 }
