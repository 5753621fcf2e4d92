package problem

import (
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/7509e464/sluice/shaper"
)

// HeaderMode selects the rate limit headers of 202 and 429 answers.
type HeaderMode string

// The header modes.
const (
	IETF   HeaderMode = "ietf"   // RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-11)
	Legacy HeaderMode = "legacy" // X-RateLimit-Limit, -Remaining, -Retry-After
	Both   HeaderMode = "both"
	None   HeaderMode = "none"
)

const maxStructuredInt = 999_999_999_999_999 // of an integer in a structured field (RFC 9651)

func (m HeaderMode) ietf() bool   { return m == IETF || m == Both }
func (m HeaderMode) legacy() bool { return m == Legacy || m == Both }

// Queue sets the headers that describe a flow's queue. retryAfter is the Retry-After of a
// refusal in seconds, 0 otherwise.
func (m HeaderMode) Queue(h http.Header, a shaper.Admission, retryAfter int64) {
	next := nextSlot(a)
	values := make([]string, 5)
	set := func(name, value string) {
		values[0] = value
		h[name], values = values[:1:1], values[1:]
	}
	if m.ietf() {
		if text := policyText(quota{a.Capacity, a.Rate}); text != "" {
			set("Ratelimit-Policy", text)
		}
		set("Ratelimit", queueLeft(a.Remaining, next))
	}
	if m.legacy() {
		wait := retryAfter
		if wait == 0 && a.Remaining == 0 {
			wait = next
		}
		set("X-Ratelimit-Limit", strconv.FormatInt(a.Capacity, 10))
		set("X-Ratelimit-Remaining", strconv.FormatInt(a.Remaining, 10))
		set("X-Ratelimit-Retry-After", strconv.FormatInt(wait, 10))
	}
}

// LimiterState is the state of a limiter for one key.
type LimiterState struct {
	Name             string        // of the limiter
	Rate             shaper.Rate   // as configured
	Limit, Remaining int64         // requests at once; requests left now
	Next             time.Duration // until more requests may pass
	RetryAfter       int64         // the Retry-After of a refusal in seconds, 0 otherwise
}

// Limiter sets the headers that describe a limiter.
func (m HeaderMode) Limiter(h http.Header, l LimiterState) {
	if m.ietf() {
		quota, window := wholeWindow(l.Rate)
		policy, left := quotaItem(l.Name, "q", quota), quotaItem(l.Name, "r", l.Remaining)
		policy.Params.Add("w", structuredInt(window))
		left.Params.Add("t", structuredInt(max(1, Seconds(l.Next))))
		setList(h, "RateLimit-Policy", httpsfv.List{policy})
		setList(h, "RateLimit", httpsfv.List{left})
	}
	if m.legacy() {
		h.Set("X-Ratelimit-Limit", strconv.FormatInt(l.Limit, 10))
		h.Set("X-Ratelimit-Remaining", strconv.FormatInt(l.Remaining, 10))
		h.Set("X-Ratelimit-Retry-After", strconv.FormatInt(l.RetryAfter, 10))
	}
}

// quota is the content of the policy header.
type quota struct {
	capacity int64
	rate     shaper.Rate
}

// lastPolicy caches the last policy header, because most requests repeat it.
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

// queueLeft is the RateLimit header of a queue: free slots, and seconds until the next one frees, 0
// if unknown. It writes the structured field itself because every job has this header.
func queueLeft(remaining, next int64) string {
	b := make([]byte, 0, 48)
	b = append(append(b, queueQuoted...), ";r="...)
	b = strconv.AppendInt(b, structuredInt(remaining), 10)
	if next > 0 {
		b = strconv.AppendInt(append(b, ";t="...), structuredInt(next), 10)
	}
	return string(b)
}

// nextSlot returns in how many whole seconds, rounded up, the next slot frees; 0 if unknown.
func nextSlot(a shaper.Admission) int64 {
	switch {
	case a.NextSlot > 0:
		return Seconds(a.NextSlot)
	case a.RetryAfter > 0:
		return Seconds(a.RetryAfter)
	case a.Position > 0 && a.Start != 0: // the first job of the queue leaves now
		return 1
	default:
		return 0
	}
}

// policyList is the queue's capacity and, if known, the rate at which it drains.
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
	window = Seconds(r.Period)
	return min(maxStructuredInt, r.Limit), window
}

// RetryAfter returns the seconds of Retry-After for a wait: rounded up, at least 1, plus a random
// part, so that clients that were refused together do not retry together.
func RetryAfter(wait time.Duration) int64 {
	seconds := max(1, Seconds(wait))
	return seconds + rand.Int64N(2+min(seconds/10, 60))
}

// Seconds returns the duration in seconds, rounded up; 0 if it is negative.
func Seconds(d time.Duration) int64 {
	return int64((max(d, 0) + time.Second - 1) / time.Second)
}

func quotaItem(name, param string, value int64) httpsfv.Item {
	item := httpsfv.NewItem(name)
	item.Params.Add(param, structuredInt(value))
	return item
}

func structuredInt(n int64) int64 { return min(max(n, 0), maxStructuredInt) }

// setList sets a header to a structured list. Plain names and bounded integers always encode.
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

// Millis returns the duration in milliseconds, rounded up.
func Millis(d time.Duration) int64 { return (d + time.Millisecond - 1).Milliseconds() }
