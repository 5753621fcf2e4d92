package worker

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// httpDeliverer sends jobs to one HTTP upstream: exactly one request per attempt. It follows no
// redirect.
type httpDeliverer struct {
	route    Route
	to       *url.URL
	upstream *liveUpstream
	costs    answerCosts
}

func newHTTPDeliverer(r Route, costs answerCosts) *httpDeliverer {
	to, _ := outbound.Target(r.URL) // was validated
	return &httpDeliverer{r, to, newLiveUpstream(r), costs}
}

// shortagePause is how long a job keeps its slot that this worker cannot send.
const shortagePause = time.Second

// lacksMeans gives back a job that this machine could not send.
func lacksMeans(ctx context.Context, l *queue.Lease, no outbound.NoAnswer) queue.Settlement {
	return giveBack(ctx, l, queue.JobError{Message: no.Message, Detail: no.Detail})
}

// giveBack returns a job that this worker cannot send, without an attempt. The pause before bounds
// how often that happens by the slots.
func giveBack(ctx context.Context, l *queue.Lease, e queue.JobError) queue.Settlement {
	pause := time.NewTimer(shortagePause)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
	return queue.Settlement{LeaseRef: l.LeaseRef, Event: shaper.Release, NotSent: true, Error: &e}
}

// Deliver makes one request; see Retry.decide for what the answers mean.
func (d *httpDeliverer) Deliver(ctx context.Context, l *queue.Lease) queue.Settlement {
	s, _ := d.deliver(ctx, l)
	return s
}

// deliver also returns the answer, nil if there was none.
func (d *httpDeliverer) deliver(ctx context.Context, l *queue.Lease) (s queue.Settlement, answer *queue.Response) {
	if l.Path != "" {
		if rule := httpmsg.CheckPath(l.Path); !d.route.Paths || rule != "" {
			return queue.Settlement{
				LeaseRef: l.LeaseRef, Event: shaper.Die, NotSent: true, MaxAttempts: d.route.Retry.MaxAttempts,
				Error: &queue.JobError{Message: "the route allows no such path: " + cmp.Or(rule, "it has paths: false")},
			}, nil
		}
	}
	var cost *int64
	now := time.Now() // that a date in Retry-After refers to
	answer, err := d.upstream.Load().Post(ctx, d.to, l.ID, l.Payload,
		func(req *http.Request) { describe(req, l) }, func(resp *http.Response) {
			if cost = d.costs.of(d.route, l, resp); resp.Header.Get("Retry-After") != "" {
				now = clockOf(resp.Header, now)
			}
		})
	if err != nil {
		if no, is := errors.AsType[outbound.NoToken](err); is {
			return lacksToken(l, d.route, no), nil
		}
		why, _ := errors.AsType[outbound.NoAnswer](err)
		if why.Shortage {
			return lacksMeans(ctx, l, why), nil
		}
		s := d.route.Retry.again(l, why.Message, 0)
		s.Error.Detail = why.Detail
		return s, nil
	}
	s = d.route.Retry.decide(l, answer, answer.Headers["retry-after"], now)
	s.ActualCost = cost
	return s, answer
}

// describe adds the headers of the job, those of the contract with receivers, and the URL's user
// information. Those of the job come first, so that they replace none of the others.
func describe(req *http.Request, l *queue.Lease) {
	h := req.Header
	for name, value := range l.Headers {
		if httpmsg.CheckJobHeader(name) == "" {
			h.Set(name, value)
		}
	}
	if l.ContentType != "" {
		h.Set("Content-Type", l.ContentType)
	}
	if u := *req.URL; l.Path != "" { // sent as the client encoded it
		u.Opaque = strings.TrimRight(u.EscapedPath(), "/") + l.Path
		req.URL = &u
	}
	h.Set("Sluice-Attempt", strconv.Itoa(l.Attempt))
	h.Set("Sluice-Tenant", percentEncode(l.Tenant))
	h.Set("Sluice-Job-Type", percentEncode(l.Type))
	if l.TraceParent != "" {
		h.Set("traceparent", l.TraceParent)
	}
	if u := req.URL.User; u != nil {
		password, _ := u.Password()
		req.SetBasicAuth(u.Username(), password)
	}
}

// percentEncode makes client text fit for a header: every byte outside [A-Za-z0-9._:@-] becomes %
// and two upper-case hex digits. So it is reversible and cannot end the line.
func percentEncode(s string) string {
	escaped := url.QueryEscape(s)
	if !strings.ContainsAny(escaped, "+~%") { // as most are; Replace would copy it
		return escaped
	}
	return unreserved.Replace(escaped)
}

// unreserved turns a query's escapes into those of the contract with receivers.
var unreserved = strings.NewReplacer("+", "%20", "~", "%7E", "%3A", ":", "%40", "@")
