package api

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/internal/httpmsg"
	"github.com/7509e464/sluice/internal/numbers"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Headers of a forwarded request that are Sluice's own.
const (
	estimateHeader = "Sluice-Cost-Estimate"
	maxWaitHeader  = "Sluice-Max-Wait-Ms"
	progressHeader = "Sluice-Progress"
	replayedHeader = "Idempotent-Replayed"
)

// forwardPattern labels forwarded requests in metrics, at whatever address they arrive.
const forwardPattern = contract.ForwardPath + "{route}"

// cancelTimeout bounds the cancellation of a request whose client has left.
const cancelTimeout = 5 * time.Second

// forwarding serves forwarded requests, of any method, beside the operations of the intake.
func (s *Server) forwarding(operations http.Handler) http.Handler {
	forward := s.observeAs(forwardPattern, s.survive(reserveConnections(s.keepLocal(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			rest, found := strings.CutPrefix(originForm(r), contract.ForwardPath)
			if !found { // encoded
				s.fail(w, r, problem.NotForwarded.With("the request target must begin with "+contract.ForwardPath))
				return
			}
			end := strings.IndexAny(rest, "/?")
			if end < 0 {
				end = len(rest)
			}
			route, err := url.PathUnescape(rest[:end])
			if err != nil {
				route = rest[:end]
			}
			s.forward(w, r, ingress{route: route, target: rest[end:]})
		})))))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, contract.ForwardPath) {
			forward.ServeHTTP(w, r)
		} else {
			operations.ServeHTTP(w, r)
		}
	})
}

// Forward returns the handler of a listener whose requests all go to one route: path and query are
// those of the upstream.
func (s *Server) Forward(route string) http.Handler {
	return s.observeAs(forwardPattern, s.survive(reserveConnections(s.keepLocal(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) {
			s.forward(w, r, ingress{route, originForm(r), true})
		})))))
}

// ingress is where a request came in.
type ingress struct {
	route, target string
	own           bool // at a listener of the route alone
}

// originForm returns the target of a request in the form in which servers usually get it (RFC 9112,
// section 3.2). Servers of HTTP/1.1 must accept the absolute form, too.
func originForm(r *http.Request) string {
	target := r.RequestURI
	scheme, rest, absolute := strings.Cut(target, "://")
	if !absolute || r.ProtoMajor > 1 || !strings.EqualFold(scheme, "http") && !strings.EqualFold(scheme, "https") {
		return target
	}
	if i := strings.IndexAny(rest, "/?"); i >= 0 {
		return rest[i:]
	}
	return "/"
}

// forward queues a request and answers with what the upstream answers, or with 202.
func (s *Server) forward(w http.ResponseWriter, r *http.Request, at ingress) {
	c := newCall(contract.ForwardEndpoint, queue.ScopeForward, r)
	// Each step returns before the next one: thousands of clients wait in the third, and their
	// stacks are as large as the deepest step.
	f := newAwaited(s)
	f.own, f.since = at.own, time.Now()
	sub, err := s.forwarded(w, c, at, f)
	if c.counted {
		defer s.requests.Give(c.owner, 1)
	}
	if err == nil && sub != nil {
		err = s.admit(c, sub, f)
	}
	// The answer may be there before this admission returns, but who prefers 202 gets that.
	accepts := f.prefer.Async && f.decision.Outcome == shaper.Admitted
	if sub = nil; err == nil && !accepts {
		f.showProgress(w, c)
		err = f.awaitAnswer(c.client)
	}
	s.answered(w, c, f, err)
}

// answered writes the answer to a forwarded request.
func (s *Server) answered(w http.ResponseWriter, c *call, f *awaited, err error) {
	if errors.Is(err, context.Canceled) {
		s.abandon(c.who.Tenant, f.decision.Job, f.key)
	}
	write := (func(http.ResponseWriter))(nil)
	if err == nil {
		write, err = s.answerTo(c, f, func(a *answer) {
			if f.decision.Outcome == shaper.Replayed {
				a.set(replayedHeader, "true")
			}
			if f.decision.Outcome != "" { // else it reads the answer to an earlier request
				s.cfg.Headers.Queue(a.header, f.decision.Admission, 0)
			}
		})
	}
	if f.shown.begun() {
		s.writeEvents(w, c, f, write, err)
		return
	}
	if err != nil {
		s.metrics.refusal(s.fail(w, c.r, hopeless(err)))
		return
	}
	s.errors.worked()
	write(w)
}

// forwarded reads a forwarded request: the submission, and how its client waits. There is no
// submission where the request is for an answer that is stored.
func (s *Server) forwarded(
	w http.ResponseWriter, c *call, at ingress, f *awaited,
) (*queue.Submission, error) {
	if s.isDraining() {
		return nil, drainingProblem()
	}
	upstreams := c.r.Header
	if err := s.enter(c); err != nil {
		return nil, beside(c.r, err)
	}
	if at.own {
		if stored, err := s.storedAnswer(c, at.target, f); stored || err != nil {
			return nil, err
		}
	}
	if err := s.permitRoute(c, at.route); err != nil {
		return nil, err
	}
	route, configured := s.cfg.Routes[at.route]
	info := route.Forward
	switch {
	case !configured:
		return nil, problem.UnknownRoute.With("the path names no configured route that forwards requests")
	case info == nil:
		return nil, problem.UnknownRoute.With("the route forwards no requests: it takes jobs, by POST /v1/jobs")
	}
	if upgrade := c.r.Header.Get("Upgrade"); upgrade != "" && !strings.EqualFold(upgrade, "h2c") {
		// A client that can do HTTP/2 does not need the upgrade.
		return nil, problem.NotForwarded.With("upgrades to another protocol, as WebSocket, " +
			"are not forwarded: call the upstream directly")
	}
	if err := checkMethod(c.r); err != nil {
		return nil, err
	}
	target, rule := httpmsg.Target(info.Path, at.target)
	if rule != "" {
		return nil, problem.Invalid("path", "string", rule)
	}
	key, err := codec.ReadKey(c.r.Header)
	if err != nil {
		return nil, err
	}
	maxWait, err := wholeHeader(c.r.Header, maxWaitHeader, int64(shaper.MaxPeriod/time.Millisecond))
	if err != nil {
		return nil, err
	}
	cost, err := wholeHeader(c.r.Header, estimateHeader, shaper.MaxCost)
	if err != nil {
		return nil, err
	}
	if f.shown, err = readProgress(c.r); err != nil {
		return nil, err
	}
	body, done, err := s.bodies.ReadAny(w, c.r, s.cfg.MaxBody, func() budget.Owner {
		return budget.Owner{Tenant: c.who.Tenant, Address: s.addressOf(c.r)}
	})
	defer done()
	if err != nil {
		return nil, err
	}
	header := s.upstreamHeaders(c, upstreams, info.Forwarded)
	if f.shown.begins() {
		header["Accept-Encoding"] = []string{"identity"} // compressed events cannot follow comments
	}
	m := httpmsg.Request{Method: c.r.Method, Target: target, Header: header, Body: body}
	path, _, _ := strings.Cut(target, "?")
	sub := &queue.Submission{
		Tenant: c.who.Tenant, Tier: c.who.Tier, Guest: c.who.Guest(), Network: c.who.Network(), Vouched: c.who.Vouched,
		Route: at.route, Type: typeOf(m.Method, path),
		Payload: m.Encode(), Same: identityOf(m, key),
		IdempotencyKey: key, Cost: max(1, info.Cost, cost), MaxWait: time.Duration(maxWait) * time.Millisecond,
		Estimated: route.Estimated, MaxAttempts: route.MaxAttempts,
		TraceParent: codec.TraceParent(c.r.Header),
	}
	if err := s.guardJob(c, *sub); err != nil {
		return nil, err
	}
	c.taken = done
	f.atEnd = cmp.Or(info.OnWaitEnd, http.StatusGatewayTimeout)
	f.key, f.prefer, f.wait = key, codec.PreferAnswer(c.r.Header), info.Wait
	if f.prefer.Given {
		f.wait = f.prefer.Wait
	}
	deadline.Within(w, f.wait+deadline.ReadTimeout+deadline.AnswerTimeout)
	return sub, nil
}

// beside says where a credential belongs that was not accepted with a forwarded request.
func beside(r *http.Request, err error) error {
	if p := problem.Of(err); p.Status == http.StatusUnauthorized && r.Header[auth.Header] == nil {
		p.Detail += "; beside an Authorization of the upstream, send Sluice's credential as " + auth.Header
		return p
	}
	return err
}

// storedAnswer reports whether a request to a listener of its own is for the answer to an earlier
// one, and then prepares f: clients resolve the Location of a 202 against that listener. Other ids
// may be those of the upstream.
func (s *Server) storedAnswer(c *call, target string, f *awaited) (bool, error) {
	id, found := strings.CutPrefix(target, "/v1/jobs/")
	id, is := strings.CutSuffix(id, "/response")
	if !found || !is || !codec.IsID(id) || c.r.Method != http.MethodGet && c.r.Method != http.MethodHead {
		return false, nil
	}
	if err := s.reading(c, 1); err != nil {
		return false, err
	}
	job, err := s.queue.Job(c.r.Context(), c.who.Tenant, id)
	if err != nil {
		return false, nil
	}
	if err := s.permitRead(c, job); err != nil {
		return false, err
	}
	return s.expect(c, id, f) == nil, nil
}

// expect prepares f for the answer to an earlier request. An EventSource gives up for good when the
// answer is not one of events, so it waits until there is one.
func (s *Server) expect(c *call, id string, f *awaited) (err error) {
	f.decision.Job.ID, f.decision.Job.Tenant, f.known = id, c.who.Tenant, true
	f.prefer = codec.PreferAnswer(c.r.Header)
	if !f.prefer.Given && c.r.Method == http.MethodGet && codec.OnlyEvents(c.r.Header) {
		f.prefer.Wait = wire.MaxForwardWaitSeconds * time.Second
	}
	f.end = time.Now().Add(f.prefer.Wait)
	if f.prefer.Wait > 0 {
		err = f.watch(c.r.Context(), id)
	}
	return err
}

// wholeHeader reads a header that is one whole number from 1 to most; 0 without one.
func wholeHeader(h http.Header, name string, most int64) (int64, error) {
	values := h[name]
	if len(values) == 0 {
		return 0, nil
	}
	n, ok := numbers.ParseWhole(values[0])
	if !ok || len(values) > 1 || n < 1 || n > most {
		return 0, problem.InvalidValue(name, "string", values[0], "must be one whole number from 1 to "+strconv.FormatInt(most, 10))
	}
	return n, nil
}

// typeOf is the type of the job of a forwarded request: the method and the path, at most 255 bytes.
// The query may hold secrets.
func typeOf(method, path string) string {
	if path == "" {
		path = "/"
	}
	text := method + " " + path
	return strings.ToValidUTF8(text[:min(len(text), wire.MaxTypeBytes)], "")
}

// hopeless makes a 503 of the refusal of a request that cannot leave in time: it is no mistake of
// its client.
func hopeless(err error) error {
	var p *problem.Problem
	if errors.As(err, &p) && p.Type == problem.URN+problem.DeadlineFarAway.Name {
		q := problem.HopelessWait.With(p.Detail)
		q.EstimatedStart, q.EstimatedWaitMS = p.EstimatedStart, p.EstimatedWaitMS
		return q.RetryIn(max(time.Second, time.Duration(p.EstimatedWaitMS)*time.Millisecond))
	}
	return err
}

// forwardOnly is the refusal of a job for a route that forwards requests.
func forwardOnly(route string) *problem.Problem {
	return problem.ForwardOnly.With("send the request itself to " + contract.ForwardPath + url.PathEscape(route) +
		", with any method, path below it, query, headers and body")
}
