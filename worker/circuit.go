package worker

import (
	"time"

	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/internal/reports"
	"github.com/7509e464/sluice/queue"
)

const (
	// maxOpen bounds the growing delay, unless the one that is set is longer.
	maxOpen = time.Minute
	// minWait is the least time that jobs wait while another one is the probe.
	minWait = time.Second
	// minStreak is how long deliveries must have failed in a row. At a high rate, ten failures in a
	// row may be chance.
	minStreak = time.Second
	// minOverload is the same for an upstream that answers that it is overloaded: it is reachable,
	// and its flows slow down first.
	minOverload = 10 * time.Second
	// shareSpan is how long the end of a delivery counts; shareLeast is how many ends a share of
	// failures needs.
	shareSpan  = 10 * time.Second
	shareLeast = 20
)

// circuit is the state of a breaker for a route or for one flow of it.
type circuit struct {
	state      reports.BreakerState
	generation int            // names the state; each change gives another number
	changed    moment         // when that last was
	until      moment         // of an open circuit: when it may half-open
	opened     int            // times since it was closed
	cause      queue.JobError // the last failure

	failing int    // failed deliveries since the last success
	since   moment // when the first of them began, but not before the last success
	success moment // when the last one was
	slow    int    // deliveries under way for more than SlowAfter
	ends    ends
}

// fail counts a delivery that has failed.
func (c *circuit) fail(cause queue.JobError, began, now moment, overload bool) {
	cause.Message, cause.Detail = outbound.Cut(cause.Message), outbound.Cut(cause.Detail)
	c.cause = cause
	if c.failing == 0 {
		c.since = max(began, c.success)
	}
	c.failing++
	if !overload { // else the flows slow down until it takes their jobs
		c.ends.add(now, true)
	}
}

// succeed counts a delivery that found the upstream available.
func (c *circuit) succeed(now moment) {
	c.failing, c.success = 0, now
	c.ends.add(now, false)
}

// broken reports whether a closed circuit must open: Failures in a row over the given time, or a
// Share of the last ends. Deliveries that are slow count in the row behind one that has failed.
func (c *circuit) broken(rules Breaker, now moment, streak time.Duration) bool {
	if c.failing == 0 {
		return false
	}
	if c.failing+c.slow >= rules.Failures && now.since(c.since) >= streak {
		return true
	}
	ended, failed := c.ends.count(now)
	return rules.Share > 0 && ended >= shareLeast && failed*100 >= rules.Share*ended
}

// wait returns how long a job must wait before it may be sent, 0 if it may be now.
func (c *circuit) wait(now moment) time.Duration {
	switch c.state {
	case reports.BreakerOpen:
		return max(0, c.until.since(now))
	case reports.BreakerHalfOpen:
		// The longer the probe runs, the less likely it succeeds, and the holds of a job are
		// limited.
		return max(minWait, 2*now.since(c.changed))
	}
	return 0
}

// ends counts the ends of deliveries in the last shareSpan, by the second.
type ends struct {
	second        [shareSpan / time.Second]int64
	ended, failed [shareSpan / time.Second]int
}

func (e *ends) add(now moment, failed bool) {
	second := int64(now) / int64(time.Second)
	i := second % int64(len(e.second))
	if e.second[i] != second {
		e.second[i], e.ended[i], e.failed[i] = second, 0, 0
	}
	e.ended[i]++
	if failed {
		e.failed[i]++
	}
}

func (e *ends) count(now moment) (ended, failed int) {
	second := int64(now) / int64(time.Second)
	for i, of := range e.second {
		if second-of < int64(len(e.second)) {
			ended, failed = ended+e.ended[i], failed+e.failed[i]
		}
	}
	return ended, failed
}
