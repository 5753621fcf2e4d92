package worker

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// liveUpstream is how a route's upstream is called now. A delivery uses one value to its end.
type liveUpstream struct {
	atomic.Pointer[outbound.Upstream]
}

func newLiveUpstream(r Route) *liveUpstream {
	u := &liveUpstream{}
	u.Store(outbound.NewUpstream(r.upstream(), nil))
	return u
}

// upstream returns the settings by which the route's upstream is called.
func (r Route) upstream() outbound.UpstreamOptions {
	o := outbound.UpstreamOptions{
		Options: outbound.Options{
			Timeout: r.Timeout, Connections: r.Connections, IdleTimeout: r.IdleTimeout, MaxAge: r.ConnectionMaxAge,
			Secrets: r.Secrets, TLS: r.TLS, Proxy: r.Proxy, HTTP2: !r.HTTP1, Egress: r.Egress,
		},
		Method: r.Method, Headers: r.Headers,
	}
	if r.OAuth2 != nil {
		o.OAuth2 = new(outbound.OAuth2(*r.OAuth2))
	}
	return o
}

// SetUpstream changes how the upstream of a route is called: Secrets, Method, Headers, OAuth2, TLS,
// Proxy, HTTP1 and Egress of r. Deliveries under way end as they began. Its error is that no
// upstream has the name, or wraps shaper.Problems; then nothing changes. One goroutine calls it at
// a time.
func (w *Worker) SetUpstream(name string, r Route) error {
	load, route := w.loads[name], w.cfg.Routes[name]
	if load == nil || load.upstream == nil {
		return fmt.Errorf("worker: no upstream of a route %q", name)
	}
	route.Secrets, route.Method, route.Headers, route.OAuth2 = r.Secrets, r.Method, r.Headers, r.OAuth2
	route.TLS, route.Proxy, route.HTTP1, route.Egress = r.TLS, r.Proxy, r.HTTP1, r.Egress
	if err := w.cfg.problems(name, route).Err(); err != nil {
		return fmt.Errorf("worker: %w", err)
	}
	before := load.upstream.Load()
	after := outbound.NewUpstream(route.upstream(), before)
	load.upstream.Store(after)
	if after.Client != before.Client {
		before.Close()
	}
	return nil
}

// tokenState returns what is reported of the route's token: why there is none, and when it ends, in
// seconds since 1970.
func (u *liveUpstream) tokenState() (problem string, until int64) {
	state := u.Load().TokenState()
	if !state.Until.IsZero() {
		until = state.Until.Unix()
	}
	return state.Problem, until
}

// methods are those of deliveries.
var methods = []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodGet}

// checkUpstream checks how the route's upstream is called. It shows no value that may be a secret.
func (r Route) checkUpstream(check func(ok bool, field string, value any, rule string)) {
	check(r.Method == "" || slices.Contains(methods, r.Method), "method", fmt.Sprintf("%q", r.Method),
		"must be one of "+strings.Join(methods, ", "))
	check(r.Method == "" || r.URL != "", "method", r.Method, "is of deliveries to a url only")
	set := len(r.Headers) > 0 || r.OAuth2 != nil || r.TLS != nil || r.Proxy != ""
	check(!set || r.calls(), "headers, oauth2, tls, proxy", "set", "concern a url or forward only")
	for name, value := range r.Headers {
		at := fmt.Sprintf("headers[%q]", name)
		rule := httpmsg.CheckSettable(name)
		check(rule == "", at, "the name", rule)
		rule = httpmsg.CheckValue(value)
		check(rule == "", at, "(hidden)", rule)
		check(r.OAuth2 == nil || !httpmsg.Is(name, "Authorization"), at, "set", "must not be set together with oauth2, which sets it")
	}
	if o := r.OAuth2; o != nil {
		u, err := url.Parse(o.TokenURL)
		usable := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.Fragment == ""
		check(usable, "oauth2.token_url", "(hidden)", "must be an absolute http:// or https:// URL without a fragment")
		check(o.ClientID != "", "oauth2.client_id", "nothing", "must be set")
	}
	check(r.TLS == nil || !r.TLS.InsecureSkipVerify, "tls", "InsecureSkipVerify", "must verify the upstream")
	_, err := outbound.ParseProxy(r.Proxy)
	check(err == nil, "proxy", "(hidden)", fmt.Sprint(err))
}

// noToken is what clients see of a job that waits for a token.
const noToken = "the upstream's token could not be had"

// lacksToken holds the flow of a job until the next try to get a token. The job spends no attempt.
func lacksToken(l *queue.Lease, r Route, no outbound.NoToken) queue.Settlement {
	wait := max(no.Retry, 100*time.Millisecond)
	return queue.Settlement{
		LeaseRef: l.LeaseRef, Event: shaper.Hold, NotSent: true, MaxAttempts: r.Retry.MaxAttempts,
		Delay: wait + rand.N(wait/10+1), // spreads flows that were held together
		Cause: queue.HoldCause{By: queue.HeldByAuth},
		Error: &queue.JobError{Message: noToken, Detail: no.Error()},
	}
}
