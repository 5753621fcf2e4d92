package worker

import (
	"errors"
	"fmt"
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
			s.Event, s.Cause, s.Delay = shaper.Hold, queue.HoldCause{By: queue.HeldByRetryAfter, Status: status}, hold
			if hold <= 0 { // to come back at once would be to be refused again
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

// againAnswered is again with the answer, which is kept only of the last attempt: it shows why the job
// died.
func (r Retry) againAnswered(l queue.Lease, answer *queue.Response, message string) queue.Settlement {
	s := r.again(l, message, answer.Status)
	if l.Attempt >= r.MaxAttempts {
		s.Response = answer
	}
	return s
}

// parseRetryAfter reads the header of RFC 9110, section 10.2.3: whole seconds or an HTTP date. The
// result is from 0, for now or a past date, to maxHold; ok is false for anything else.
func parseRetryAfter(value string, now time.Time) (wait time.Duration, ok bool) {
	value = strings.TrimSpace(value)
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(min(seconds, uint64(maxHold/time.Second))) * time.Second, true
	}
	date, err := http.ParseTime(value)
	return min(max(0, date.Sub(now)), maxHold), err == nil
}
