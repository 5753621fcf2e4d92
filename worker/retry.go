package worker

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// maxHold caps a Retry-After: an upstream must not be able to stop a flow for days.
const maxHold = time.Hour

// decide decides what an answer means for the job:
//
//	2xx                              succeeded
//	429, 503 with a Retry-After      the flow is held for that long, no attempt is spent
//	429, 503 without                 tried again after a backoff; of many, the flow slows down
//	408, 425, other 5xx              tried again after a backoff
//	anything else, redirects too     dead at once: the same request would get the same answer
func (r Retry) decide(
	l *queue.Lease, answer *queue.Response, retryAfter string, now time.Time,
) queue.Settlement {
	status := answer.Status
	s := queue.Settlement{LeaseRef: l.LeaseRef, MaxAttempts: r.MaxAttempts}
	if status >= 200 && status < 300 {
		s.Event, s.Response = shaper.Succeed, answer
		return s
	}
	message := refused(status)
	overload := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
	again := status == http.StatusRequestTimeout || status == http.StatusTooEarly ||
		status >= 500 && status < 600
	hold, given := parseRetryAfter(retryAfter, now)
	switch {
	case overload && given:
		s.Event, s.Cause, s.Delay = shaper.Hold, queue.HoldCause{By: queue.HeldByRetryAfter, Status: status}, hold
		if hold <= 0 { // at once it would be refused again
			s.Delay = min(r.MinBackoff, maxHold)
		}
	case overload, again:
		s = r.again(l, message, status)
		s.Overload = overload
		if l.Attempt >= r.MaxAttempts {
			s.Response = answer // shows why the job died
		}
	default:
		s.Event, s.Response = shaper.Die, answer
		if status >= 300 && status < 400 {
			message += "; redirects are not followed"
		}
	}
	s.Error = &queue.JobError{Message: message, Status: status}
	return s
}

// parseRetryAfter reads the header of RFC 9110, section 10.2.3: whole seconds or an HTTP date.
// Servers also send fractions, lists and other names of UTC: a list is as long as its longest item.
// The result is from 0, for now or a past date, to maxHold; ok is false for anything else.
func parseRetryAfter(value string, now time.Time) (wait time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	for _, zone := range []string{" UTC", " +0000"} {
		if rest, is := strings.CutSuffix(value, zone); is {
			value = rest + " GMT"
		}
	}
	if date, err := http.ParseTime(value); err == nil {
		return min(max(0, date.Sub(now)), maxHold), true
	}
	for item := range strings.SplitSeq(value, ",") {
		item = strings.TrimSpace(item)
		seconds, err := strconv.ParseFloat(item, 64)
		if item == "" || strings.Trim(item, "0123456789.") != "" || err != nil && !errors.Is(err, strconv.ErrRange) {
			return 0, false
		}
		milliseconds := math.Ceil(min(seconds, maxHold.Seconds()) * 1000)
		wait = max(wait, time.Duration(milliseconds)*time.Millisecond)
	}
	return wait, true
}

// clockOf returns now by the clock of the upstream that gave an answer, which its dates refer to.
func clockOf(answer http.Header, now time.Time) time.Time {
	if date, err := http.ParseTime(answer.Get("Date")); err == nil {
		return date
	}
	return now
}

// backoff returns how long a job waits after its nth failed attempt, n from 1: MinBackoff doubled
// n − 1 times and capped, then spread by ±20 % so that jobs which failed together are not
// repeated together. It is from 0.8 × MinBackoff to MaxBackoff.
func (r Retry) backoff(n int) time.Duration {
	wait := min(r.MinBackoff, r.MaxBackoff)
	for ; n > 1 && wait < r.MaxBackoff; n-- {
		wait += min(wait, r.MaxBackoff-wait) // doubled, without overflow
	}
	spread := wait / 5
	return wait - spread + rand.N(spread+min(spread, r.MaxBackoff-wait)+1)
}

// again returns the settlement of a failed attempt that may be repeated; status is 0 without an
// answer.
func (r Retry) again(l *queue.Lease, message string, status int) queue.Settlement {
	return queue.Settlement{
		LeaseRef:    l.LeaseRef,
		Event:       shaper.Retry,
		Delay:       r.backoff(l.Attempt),
		MaxAttempts: r.MaxAttempts,
		Error:       &queue.JobError{Message: message, Status: status},
	}
}

// Bounds of the pause between two calls while Redis does not answer.
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

// refused says in an error what the upstream answered.
func refused(status int) string {
	return strings.TrimSpace(fmt.Sprintf("the upstream answered %d %s", status, http.StatusText(status)))
}
