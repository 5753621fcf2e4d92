package worker

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// forwarder sends stored requests to one upstream as their clients sent them, one per attempt, and
// stores the answers. It follows no redirect.
type forwarder struct {
	route    Route
	base     url.URL
	path     string // of the base, encoded, without a slash at its end
	upstream *liveUpstream
	costs    answerCosts
	relays   relays // nil: answers are read whole
	streams  *streams
}

func newForwarder(r Route, costs answerCosts) *forwarder {
	base, _ := url.Parse(r.Forward.URL) // was validated
	return &forwarder{
		route: r, base: *base, path: strings.TrimRight(base.EscapedPath(), "/"), upstream: newLiveUpstream(r), costs: costs,
		streams: newStreams(),
	}
}

// Deliver makes one request. What its answer means:
//
//	429, 503 with a Retry-After    the flow is held for that long, no attempt is spent; after
//	                               forwardHolds of them, an answer
//	a status of RetryOn            tried again, if the request may be sent again; else an answer
//	any other                      an answer: the job has succeeded
//	none                           tried again, if the request may be sent again; else it failed
//
// An answer that is passed on while it comes is never tried again: see stream. A request that
// failed for good is no dead letter: its client gets the failure.
func (d *forwarder) Deliver(ctx context.Context, l *queue.Lease) queue.Settlement {
	m, err := httpmsg.DecodeRequest(l.Payload)
	if err != nil {
		return d.notSent(l, queue.JobError{Message: "the stored request cannot be read"})
	}
	if l.Expired && l.FreeLeases >= shaper.FreeLeases { // a further one might make a dead letter of it
		return d.failed(l, queue.JobError{Message: "too many workers stopped while they sent it"})
	}
	departed := time.Now()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	if d.relays != nil {
		defer d.relays.OnLeave(l.ID, func() { end(errLeft) })()
	}
	req, err := d.request(ctx, m, l)
	if err != nil {
		return d.notSent(l, queue.JobError{Message: "the request cannot be sent", Detail: err.Error()})
	}
	a, err := d.upstream.Load().Open(req, m.Body)
	if no, is := err.(outbound.NoToken); is {
		if d.route.lastHold(l) {
			return d.notSent(l, queue.JobError{Message: noToken, Detail: no.Error()})
		}
		s := lacksToken(l, d.route, no)
		s.Retention = d.route.Forward.Retention // a forwarded request, whose holds count
		return s
	}
	if err != nil {
		return d.unanswered(ctx, l, m, err)
	}
	defer a.Close()
	if d.relays != nil && d.mayStream(l, m, a) {
		return d.stream(ctx, end, l, m, a, departed)
	}
	body, cut, err := a.All(d.route.Forward.MaxAnswer)
	if err != nil {
		return d.unanswered(ctx, l, m, err)
	}
	return d.answered(l, m, a.Response, body, cut)
}

// unanswered decides what an attempt means that got no answer, or not the whole of one of which no
// byte was passed on. err is a NoAnswer.
func (d *forwarder) unanswered(ctx context.Context, l *queue.Lease, m httpmsg.Request, err error) queue.Settlement {
	no, _ := errors.AsType[outbound.NoAnswer](err)
	if context.Cause(ctx) == errLeft {
		s := d.notSent(l, queue.JobError{Message: "the client left before the upstream had answered"})
		s.Left = true
		return s
	}
	if no.Shortage {
		return lacksMeans(ctx, l, no)
	}
	e := queue.JobError{Message: no.Message, Detail: no.Detail, Timeout: no.Timeout}
	stopped := context.Cause(ctx) == context.Canceled // which spends no attempt
	if (stopped || l.Attempt < d.route.Retry.MaxAttempts) && (no.Unsent || d.repeatable(m)) {
		s := d.route.Retry.again(l, e.Message, 0)
		s.Error = &e
		return s
	}
	return d.failed(l, e)
}

// answered ends an attempt that got an answer.
func (d *forwarder) answered(l *queue.Lease, m httpmsg.Request, resp *http.Response, body []byte, cut bool) queue.Settlement {
	cost := d.costIn(l, resp, body) // of every attempt, also of one that fails
	s := d.settlement(l, m, resp, body, cut)
	s.ActualCost = cost
	return s
}

// costIn returns the actual cost that an answer reports.
func (d *forwarder) costIn(l *queue.Lease, resp *http.Response, body []byte) *int64 {
	if d.hasEvents(resp) {
		events := newEventCost(d.route.CostFrom)
		events.Write(body)
		return d.costs.ofEvents(d.route, l, resp.StatusCode, events)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return d.costs.of(d.route, l, resp)
}

// settlement decides what an answer means.
func (d *forwarder) settlement(
	l *queue.Lease, m httpmsg.Request, resp *http.Response, body []byte, cut bool,
) queue.Settlement {
	status := resp.StatusCode
	if s, is := d.refusal(l, m, resp); is {
		return s
	}
	if cut && d.route.Forward.FailLarge {
		return d.tooLarge(l, status)
	}
	answer := httpmsg.Answer{Status: status, Header: httpmsg.ToClient(resp.Header), Body: body, Truncated: cut}
	if length := resp.Header["Content-Length"]; length != nil && (m.Method == http.MethodHead || status == http.StatusNotModified) {
		answer.Header["Content-Length"] = length
	}
	return queue.Settlement{
		LeaseRef: l.LeaseRef, Event: shaper.Succeed, MaxAttempts: d.route.Retry.MaxAttempts,
		Response: &queue.Response{Status: status}, Answer: answer.Encode(),
		Retention: d.route.Forward.Retention,
	}
}

// refusal decides whether the head of an answer means that the request is sent again, or has
// failed.
func (d *forwarder) refusal(l *queue.Lease, m httpmsg.Request, resp *http.Response) (s queue.Settlement, isRefusal bool) {
	status, again, last := resp.StatusCode, l.Attempt < d.route.Retry.MaxAttempts, d.route.lastHold(l)
	if status < http.StatusOK {
		return d.failed(l, queue.JobError{Message: "the upstream changed the protocol", Status: status}), true
	}
	overload := status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable
	if hold, given := parseRetryAfter(
		strings.Join(resp.Header["Retry-After"], ","), clockOf(resp.Header, time.Now()),
	); overload && given && !last {
		s := d.route.Retry.again(l, refused(status), status)
		s.Event, s.Cause = shaper.Hold, queue.HoldCause{By: queue.HeldByRetryAfter, Status: status}
		if s.Delay = hold; hold <= 0 { // at once it would be refused again
			s.Delay = min(d.route.Retry.MinBackoff, maxHold)
		}
		return s, true
	}
	if again && slices.Contains(d.route.Forward.RetryOn, status) && d.repeatable(m) {
		s := d.route.Retry.again(l, refused(status), status)
		s.Overload = overload
		return s, true
	}
	return s, false
}

// tooLarge ends a request whose answer is larger than it may be.
func (d *forwarder) tooLarge(l *queue.Lease, status int) queue.Settlement {
	return d.failed(l, queue.JobError{
		Message: fmt.Sprintf("the answer has more than %d bytes", d.route.Forward.MaxAnswer), Status: status,
	})
}

func (d *forwarder) failed(l *queue.Lease, e queue.JobError) queue.Settlement {
	return d.route.unanswered(l, e)
}

// forwardHolds is how often a forwarded request is held before it ends, because its client waits.
// Ends of leases count with them.
const forwardHolds = 10

// lastHold reports whether a request must end instead of being held once more.
func (r Route) lastHold(l *queue.Lease) bool { return r.Forward != nil && l.FreeLeases >= forwardHolds }

// unanswered ends a forwarded request that got no answer. Its client gets the failure, so it is no
// dead letter.
func (r Route) unanswered(l *queue.Lease, e queue.JobError) queue.Settlement {
	return queue.Settlement{
		LeaseRef: l.LeaseRef, Event: shaper.Die, Final: true, MaxAttempts: r.Retry.MaxAttempts, Error: &e,
		Retention: r.Forward.Retention,
	}
}

// notSent ends a request that cannot be sent.
func (d *forwarder) notSent(l *queue.Lease, e queue.JobError) queue.Settlement {
	s := d.failed(l, e)
	s.NotSent = true
	return s
}

// repeatable reports whether the request may be sent again although the upstream may have served it
// (RFC 9110, section 9.2.2).
func (d *forwarder) repeatable(m httpmsg.Request) bool {
	switch m.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodPut, http.MethodDelete:
		return true
	}
	return d.route.Forward.RetryUnsafe || m.Header["Idempotency-Key"] != nil
}

// request is the request to the upstream. Its path is sent as the client encoded it.
func (d *forwarder) request(ctx context.Context, m httpmsg.Request, l *queue.Lease) (*http.Request, error) {
	if rule := httpmsg.CheckMethod(m.Method); rule != "" {
		return nil, fmt.Errorf("the method %s", rule)
	}
	target, rule := httpmsg.Target(d.path, m.Target)
	if rule != "" {
		return nil, fmt.Errorf("the path %s", rule)
	}
	req, err := http.NewRequestWithContext(ctx, m.Method, d.base.String(), nil)
	if err != nil {
		return nil, err
	}
	path, query, asked := strings.Cut(target, "?")
	req.URL = &url.URL{Scheme: d.base.Scheme, Host: d.base.Host, Opaque: d.path + path, RawQuery: query, ForceQuery: asked}
	if req.URL.Opaque == "" {
		req.URL.Opaque = "/"
	}
	h := httpmsg.ToUpstream(m.Header)
	if strings.HasPrefix(d.route.CostFrom, "/") {
		h["Accept-Encoding"] = []string{"identity"} // or the client decides whether the cost can be read
	}
	if h["User-Agent"] == nil {
		h["User-Agent"] = []string{""} // none
	}
	if u := d.base.User; u != nil && h["Authorization"] == nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
		h["Authorization"] = req.Header["Authorization"]
	}
	h.Set("Sluice-Job", l.ID)
	h.Set("Sluice-Attempt", strconv.Itoa(l.Attempt))
	h.Set("Sluice-Tenant", percentEncode(l.Tenant))
	if l.TraceParent != "" {
		h.Set("traceparent", l.TraceParent)
	}
	req.Header = h
	return req, nil
}
