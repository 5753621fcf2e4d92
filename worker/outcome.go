package worker

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// maxHold caps what an upstream may ask for: it must not be able to stop a flow for days.
const maxHold = time.Hour

// judge decides what an answer means for the job:
//
//	2xx                              succeeded
//	429, 503 with a Retry-After      the flow is held for so long, no attempt is spent
//	429, 503 without                 tried again after a backoff; of many, the flow slows down
//	408, 425, other 5xx              tried again after a backoff
//	anything else, redirects too     dead at once: the same request would get the same answer
func (r Retry) judge(l queue.Lease, answer *queue.Response, retryAfter string, now time.Time) queue.Settlement {
	status := answer.Status
	message := strings.TrimSpace(fmt.Sprintf("the upstream answered %d %s", status, http.StatusText(status)))
	failed := &queue.JobError{Message: message, Status: status}
	s := queue.Settlement{LeaseRef: l.LeaseRef, MaxAttempts: r.MaxAttempts, Error: failed}
	switch {
	case status >= 200 && status < 300:
		s.Event, s.Error, s.Response = shaper.Succeed, nil, answer
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		if hold, ok := parseRetryAfter(retryAfter, now); ok {
			s.Event, s.Cause = shaper.Hold, queue.HoldCause{By: queue.HeldByRetryAfter, Status: status}
			// "At once" from an upstream that has just refused would only be refused again.
			s.Delay = hold
			if hold <= 0 {
				s.Delay = min(r.MinBackoff, maxHold)
			}
			return s
		}
		s = r.againAnswered(l, answer, message)
		s.Overload = true
		return s
	case status == http.StatusRequestTimeout, status == http.StatusTooEarly, status >= 500 && status < 600:
		return r.againAnswered(l, answer, message)
	case status >= 300 && status < 400:
		s.Event, s.Response = shaper.Die, answer
		failed.Message += "; redirects are not followed"
	default:
		s.Event, s.Response = shaper.Die, answer
	}
	return s
}

// againAnswered is again with the answer, which is kept only where this attempt was the last one: there it tells why the job
// died.
func (r Retry) againAnswered(l queue.Lease, answer *queue.Response, message string) queue.Settlement {
	s := r.again(l, message, answer.Status)
	if l.Attempt >= r.MaxAttempts {
		s.Response = answer
	}
	return s
}

// parseRetryAfter reads the header of RFC 9110, section 10.2.3: whole seconds or an HTTP date. The result is from 0, for now
// or a past date, to maxHold; ok is false when there is nothing to read or it makes no sense.
func parseRetryAfter(value string, now time.Time) (wait time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	if value == "" {
		return 0, false
	}
	if strings.Trim(value, "0123456789") == "" {
		seconds, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			seconds = math.MaxInt64 // digits only, so it can only be too large
		}
		return min(time.Duration(min(seconds, int64(maxHold/time.Second)))*time.Second, maxHold), true
	}
	date, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	return min(max(0, date.Sub(now)), maxHold), true
}
