package api

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/7509e464/sluice/shaper"
)

// HeaderMode says which rate limit headers stand on 202 and 429.
type HeaderMode string

// The header modes. The zero value is HeadersBoth.
const (
	HeadersIETF   HeaderMode = "ietf"   // RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-11)
	HeadersLegacy HeaderMode = "legacy" // X-RateLimit-Limit, -Remaining, -Retry-After
	HeadersBoth   HeaderMode = "both"
	HeadersNone   HeaderMode = "none"
)

const (
	pausedRetryAfter = 30 * time.Second    // nobody knows when a pause ends
	maxStructuredInt = 999_999_999_999_999 // of an integer in a structured field (RFC 9651)
)

// limitHeaders tells the client where its queue stands. retryAfter is the Retry-After of a refusal
// in seconds, 0 otherwise.
func (m HeaderMode) limitHeaders(h http.Header, a shaper.Admission, retryAfter int64) {
	next := nextPlace(a)
	values := make([]string, 5)
	set := func(name, value string) {
		values[0] = value
		h[name], values = values[:1:1], values[1:]
	}
	if m == HeadersIETF || m == HeadersBoth {
		if text := policyText(quota{a.Capacity, a.Rate}); text != "" {
			set("Ratelimit-Policy", text)
		}
		set("Ratelimit", queueLeft(a.Remaining, next))
	}
	if m == HeadersLegacy || m == HeadersBoth {
		wait := retryAfter
		if wait == 0 && a.Remaining == 0 {
			wait = next
		}
		set("X-Ratelimit-Limit", strconv.FormatInt(a.Capacity, 10))
		set("X-Ratelimit-Remaining", strconv.FormatInt(a.Remaining, 10))
		set("X-Ratelimit-Retry-After", strconv.FormatInt(wait, 10))
	}
}

// quota is what the policy header says.
type quota struct {
	capacity int64
	rate     shaper.Rate
}

// lastPolicy is the policy header that was written last: most requests repeat it.
var lastPolicy atomic.Pointer[policyHeader]

type policyHeader struct {
	of   quota
	text string
}

// policyText is the policy header, empty if it cannot be encoded.
func policyText(of quota) string {
	if last := lastPolicy.Load(); last != nil && last.of == of {
		return last.text
	}
	text, err := httpsfv.Marshal(policyList(of))
	if err != nil {
		return ""
	}
	lastPolicy.Store(&policyHeader{of, text})
	return text
}

// queueQuoted is the name of the queue's quota as a structured string.
var queueQuoted = func() string {
	text, err := httpsfv.Marshal(httpsfv.NewItem("queue"))
	if err != nil {
		panic("api: a plain name is not a structured string: " + err.Error())
	}
	return text
}()

// queueLeft says what is left of the queue's quota and in how many seconds more is, 0 if nobody
// knows. Structured integers are plain decimals, and these headers are written for every job.
func queueLeft(remaining, next int64) string {
	b := make([]byte, 0, 48)
	b = append(append(b, queueQuoted...), ";r="...)
	b = strconv.AppendInt(b, structuredInt(remaining), 10)
	if next > 0 {
		b = strconv.AppendInt(append(b, ";t="...), structuredInt(next), 10)
	}
	return string(b)
}

// readHeaders tells a tenant that reads too often when it may read again. burst is what it may read
// at once.
func (m HeaderMode) readHeaders(h http.Header, r shaper.Rate, burst int64, wait time.Duration, retryAfter int64) {
	if m == HeadersIETF || m == HeadersBoth {
		quota, window := wholeWindow(r)
		policy, left := quotaItem("status", "q", quota), quotaItem("status", "r", 0)
		policy.Params.Add("w", structuredInt(window))
		left.Params.Add("t", structuredInt(max(1, ceilSeconds(wait))))
		setList(h, "RateLimit-Policy", httpsfv.List{policy})
		setList(h, "RateLimit", httpsfv.List{left})
	}
	if m == HeadersLegacy || m == HeadersBoth {
		h.Set("X-Ratelimit-Limit", strconv.FormatInt(burst, 10))
		h.Set("X-Ratelimit-Remaining", "0")
		h.Set("X-Ratelimit-Retry-After", strconv.FormatInt(retryAfter, 10))
	}
}

// nextPlace is in how many whole seconds, rounded up, the next place frees; 0 if nobody knows.
func nextPlace(a shaper.Admission) int64 {
	switch {
	case a.NextSlot > 0:
		return ceilSeconds(a.NextSlot)
	case a.RetryAfter > 0:
		return ceilSeconds(a.RetryAfter)
	case a.Position > 0 && a.Start != 0: // the first in the queue leaves now
		return 1
	default:
		return 0
	}
}

// policyList is the queue's bound and, where it is known, the rate at which it drains.
func policyList(of quota) httpsfv.List {
	list := httpsfv.List{quotaItem("queue", "q", of.capacity)}
	if of.rate.Validate() == nil {
		quota, window := wholeWindow(of.rate)
		drain := quotaItem("drain", "q", quota)
		drain.Params.Add("w", structuredInt(window))
		list = append(list, drain)
	}
	return list
}

// wholeWindow is the rate over the least whole number of seconds that keeps it exact: 5/24h is 5 in
// 86,400, 7/500ms is 14 in 1. Where the exact quota would not fit a structured field, it is the
// rate over its period rounded up, never too high.
func wholeWindow(r shaper.Rate) (quota, window int64) {
	ms := r.Period.Milliseconds()
	times := 1000 / gcd(1000, ms)
	if r.Limit <= maxStructuredInt/times {
		return r.Limit * times, ms * times / 1000
	}
	window = ceilSeconds(r.Period)
	return min(maxStructuredInt, r.Limit), window
}

// retryAfterSeconds is the wait rounded up and then scattered upward, so that clients that were
// refused together do not come back together.
func retryAfterSeconds(wait time.Duration) int64 {
	seconds := max(1, ceilSeconds(wait))
	return seconds + rand.Int64N(2+min(seconds/10, 60))
}

func ceilSeconds(d time.Duration) int64 {
	return int64((max(d, 0) + time.Second - 1) / time.Second)
}

func quotaItem(name, param string, value int64) httpsfv.Item {
	item := httpsfv.NewItem(name)
	item.Params.Add(param, structuredInt(value))
	return item
}

func structuredInt(n int64) int64 { return min(max(n, 0), maxStructuredInt) }

// setList writes a structured list. All our items are plain names and bounded integers, which
// always encode.
func setList(h http.Header, name string, list httpsfv.List) {
	if text, err := httpsfv.Marshal(list); err == nil {
		h[http.CanonicalHeaderKey(name)] = []string{text}
	}
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
