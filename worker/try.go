package worker

import (
	"cmp"
	"context"
	"crypto/tls"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Trial is one request to the upstream of a route, and its end.
type Trial struct {
	Sent   http.Header  // as it was sent, with its secrets; nil: nothing was sent
	Event  shaper.Event // what the end would mean for a job
	Status int          // of the answer; 0 without one
	Answer []byte       // the first 4 KiB of its body
	// Problem is why the delivery failed, empty if it did not; Detail has names of hosts, addresses
	// and certificates.
	Problem, Detail string
	// Phases are how long the parts of the request took; 0 for those that were not needed. Token is
	// the time before the first connection was asked for, Answer that from the end of the request
	// to the first byte of the answer.
	Phases struct{ Token, Resolve, Connect, TLS, Answer, Total time.Duration }
}

// TrialRequest is the request of a trial. The zero value is valid.
type TrialRequest struct {
	Method  string // of a forwarded request; default GET
	Path    string // below the URL of the upstream; with a URL, Route.Paths must allow it
	Headers map[string]string
	Payload []byte
}

// Try makes one request to the upstream of the route, a URL or Forward, as a worker would for a job
// of the tenant "sluice-test". The request is real: an upstream that stores orders stores one. The
// error is of type shaper.Problems and has the settings of the route that break a rule.
func (r Route) Try(ctx context.Context, of TrialRequest) (Trial, error) {
	r = r.withDefaults()
	problems := (Config{}).withDefaults().problems("test", r)
	if !r.calls() && len(problems) == 0 {
		problems = append(problems, shaper.Problem{Field: "routes.test", Value: "no upstream", Rule: "must have a url or forward"})
	}
	if err := problems.Err(); err != nil {
		return Trial{}, err
	}
	l := &queue.Lease{
		LeaseRef: queue.LeaseRef{ID: "sluice-test"}, Tenant: "sluice-test", Type: "sluice.test", Route: "test",
		Payload: of.Payload, Path: of.Path, Headers: of.Headers, Attempt: 1, MaxAttempts: r.Retry.MaxAttempts,
	}
	costs := answerCosts{pooled: func() bool { return true }, ignored: func(*queue.Lease, error) {}}
	p := &phases{begin: time.Now()}
	ctx = httptrace.WithClientTrace(ctx, p.trace())
	var end queue.Settlement
	if r.Forward != nil {
		m := httpmsg.Request{Method: cmp.Or(of.Method, http.MethodGet), Target: cmp.Or(of.Path, "/"), Header: http.Header{}, Body: of.Payload}
		for name, value := range of.Headers {
			m.Header.Set(name, value)
		}
		l.Payload, l.Path = m.Encode(), ""
		f := newForwarder(r, costs)
		defer f.upstream.Load().Close()
		end = f.Deliver(ctx, l)
	} else {
		h := newHTTPDeliverer(r, costs)
		defer h.upstream.Load().Close()
		var answer *queue.Response
		end, answer = h.deliver(ctx, l)
		end.Response = answer
	}
	t := p.end()
	t.Event = end.Event
	if end.Response != nil {
		t.Status, t.Answer = end.Response.Status, end.Response.Body
	}
	if a, err := httpmsg.DecodeAnswer(end.Answer); len(end.Answer) > 0 && err == nil {
		t.Status, t.Answer = a.Status, a.Body[:min(len(a.Body), outbound.MaxBody)]
	}
	if end.Error != nil {
		t.Status, t.Problem, t.Detail = cmp.Or(t.Status, end.Error.Status), end.Error.Message, end.Error.Detail
	}
	return t, nil
}

// phases notes when the parts of a request begin and end. A connection is made beside the request.
type phases struct {
	begin time.Time

	mu                      sync.Mutex
	trial                   Trial
	asked, resolve, connect time.Time
	secure, written         time.Time
}

// note runs f alone.
func (p *phases) note(f func(now time.Time)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(time.Now())
}

func (p *phases) trace() *httptrace.ClientTrace {
	took := &p.trial.Phases
	return &httptrace.ClientTrace{
		GetConn: func(string) {
			p.note(func(now time.Time) {
				if p.asked.IsZero() {
					p.asked, took.Token = now, now.Sub(p.begin)
				}
			})
		},
		DNSStart:          func(httptrace.DNSStartInfo) { p.note(func(now time.Time) { p.resolve = now }) },
		DNSDone:           func(httptrace.DNSDoneInfo) { p.note(func(now time.Time) { took.Resolve = now.Sub(p.resolve) }) },
		ConnectStart:      func(string, string) { p.note(func(now time.Time) { p.connect = now }) },
		ConnectDone:       func(string, string, error) { p.note(func(now time.Time) { took.Connect = now.Sub(p.connect) }) },
		TLSHandshakeStart: func() { p.note(func(now time.Time) { p.secure = now }) },
		TLSHandshakeDone: func(tls.ConnectionState, error) {
			p.note(func(now time.Time) { took.TLS += now.Sub(p.secure) })
		},
		WroteHeaderField: func(name string, values []string) {
			p.note(func(time.Time) {
				if p.trial.Sent == nil {
					p.trial.Sent = http.Header{}
				}
				if !strings.HasPrefix(name, ":") { // of HTTP/2
					p.trial.Sent[http.CanonicalHeaderKey(name)] = values
				}
			})
		},
		WroteRequest:         func(httptrace.WroteRequestInfo) { p.note(func(now time.Time) { p.written = now }) },
		GotFirstResponseByte: func() { p.note(func(now time.Time) { took.Answer = now.Sub(p.written) }) },
	}
}

// end returns what was noted.
func (p *phases) end() (t Trial) {
	p.note(func(now time.Time) {
		p.trial.Phases.Total = now.Sub(p.begin)
		t = p.trial
	})
	return t
}
