package api

import (
	"cmp"
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/dashboard"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/audit"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Audit is the settings of the audit.
type Audit struct {
	Retention time.Duration // after which an entry is removed; default 365 days
	MaxBytes  int64         // of all entries in Redis; default 64 MiB
	// Lines gets each entry as one line of JSON, in one Write that may come at any time; nil: none.
	Lines io.Writer
}

// trail is the audit. Tests without one record nothing.
type trail interface {
	Record(ctx context.Context, e audit.Entry)
	Find(ctx context.Context, q audit.Query) (audit.Page, error)
	Start()
	Close(ctx context.Context)
}

// recorded is what a handler says about a call for the audit.
type recorded struct {
	subject       string // empty: the tenant, pool or the like in the path
	before, after any
	detail        map[string]any
	silent        bool // nothing was changed or shown
}

// about names the subject of the call, where the path does not.
func (c *call) about(subject string) { c.recorded.subject = subject }

// changed has what there was before and after the call; nil for nothing. Neither may have secrets.
func (c *call) changed(before, after any) { c.recorded.before, c.recorded.after = before, after }

// note adds to the detail of the entry. A value must not have what a client wrote.
func (c *call) note(name string, value any) {
	if c.recorded.detail == nil {
		c.recorded.detail = map[string]any{}
	}
	c.recorded.detail[name] = value
}

// unrecorded leaves out the entry of a call that succeeds, because it changed and showed nothing.
func (c *call) unrecorded() { c.recorded.silent = true }

// subjects are the parameters of paths that name what an operation is about, the first that is
// there. A job is named by its id, and its tenant is a detail.
var subjects = []string{"id", "tenant", "pool", "operator", "guard", "session"}

// record puts a call into the audit: what it did, or the kind of its refusal.
func (s *Server) record(op contract.Operation, c *call, out *answer, err error) {
	outcome := recordedOutcome(err)
	switch {
	case op.Action == "" || s.queue.trail == nil:
		return
	case outcome == audit.OK && c.recorded.silent:
		return
	case op.Action == audit.JobRead && outcome != audit.OK && outcome != problem.Forbidden.Name:
		return // nothing was shown
	}
	for _, name := range subjects {
		value := c.param(name)
		switch {
		case value == "":
		case c.recorded.subject == "":
			c.recorded.subject = value
		case name == "tenant" && value != c.recorded.subject:
			c.note("tenant", value)
		}
	}
	if key := c.param("key"); key != "" {
		c.note("key", key)
	}
	if key := c.param("blocked"); key != "" {
		c.note("key", key)
	}
	if out != nil {
		if job, is := out.body.(*wire.Job); is && job.ID != c.recorded.subject {
			c.note("job", job.ID)
		}
	}
	e := audit.Entry{
		Action: op.Action, Subject: c.recorded.subject, Before: c.recorded.before, After: c.recorded.after,
		Outcome: outcome,
	}
	if len(c.recorded.detail) > 0 {
		e.Detail = c.recorded.detail
	}
	s.write(c.r, operators.Of(c.r.Context()), e)
}

// recordedOutcome is how the audit names the error of a call.
func recordedOutcome(err error) string {
	if err == nil {
		return audit.OK
	}
	return strings.TrimPrefix(problem.Of(err).Type, problem.URN)
}

// write puts an entry of the actor into the audit.
func (s *Server) write(r *http.Request, a operators.Actor, e audit.Entry) {
	if s.queue.trail == nil {
		return
	}
	e.Actor, e.Role, e.Address = a.Name, string(a.Role), cmp.Or(a.Address, text(s.clientIP(r)))
	s.queue.trail.Record(context.WithoutCancel(r.Context()), e)
}

// recordRefusal records that the credentials of a request to the admin listener were refused. A
// request without any is no guess.
func (s *Server) recordRefusal(r *http.Request, p *problem.Problem) {
	switch {
	case p.Status >= http.StatusInternalServerError:
		return
	case p.Status == http.StatusUnauthorized && r.Header.Get("Authorization") == "" && len(r.Cookies()) == 0:
		return
	}
	s.write(r, operators.Actor{}, audit.Entry{Action: audit.Refused, Outcome: strings.TrimPrefix(p.Type, problem.URN)})
}

// RecordFile records that the settings of a changed configuration file came into force, or why they
// did not. detail must have no secrets.
func (s *Server) RecordFile(ctx context.Context, action, file, outcome string, before, after, detail any) {
	if s.queue.trail != nil {
		s.queue.trail.Record(ctx, audit.Entry{
			Actor: "file", Action: action, Subject: file, Outcome: outcome, Before: before, After: after, Detail: detail,
		})
	}
}

// EndAudit writes what is left of the audit, until ctx ends. Call it after the listeners have shut
// down: later entries are lost.
func (s *Server) EndAudit(ctx context.Context) {
	if s.queue.trail != nil {
		s.queue.trail.Close(ctx)
	}
}

// signingKey is the context key of the *operators.Actor that noteSignIn sets.
type signingKey struct{}

// signing records who signs in and out on the dashboard.
func (s *Server) signing(page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		back := r.URL.Path == dashboard.CallbackPath && s.signOn != nil
		if r.Method != http.MethodPost && !back {
			page.ServeHTTP(w, r)
			return
		}
		own, signed := s.board.CookieSession(r)
		who := operators.Actor{ID: own.Operator, Name: own.Name, Role: own.Role}
		r = r.WithContext(context.WithValue(r.Context(), signingKey{}, &who))
		ww := middleware.NewWrapResponseWriter(w, r.ProtoMajor)
		page.ServeHTTP(ww, r)
		in := r.URL.Path == dashboard.LoginPath || back
		switch status := ww.Status(); {
		case status < http.StatusBadRequest && in && w.Header().Get("Set-Cookie") != "": // a page without a token sets none
			s.write(r, who, audit.Entry{Action: audit.Login, Outcome: audit.OK})
		case status == http.StatusSeeOther && !in && signed:
			s.write(r, who, audit.Entry{Action: audit.Logout, Outcome: audit.OK})
		case status >= http.StatusBadRequest && in:
			kinds := map[int]string{
				http.StatusUnauthorized: problem.Unauthorized.Name, http.StatusForbidden: problem.Forbidden.Name,
				http.StatusTooManyRequests: problem.RateLimited.Name,
			}
			s.write(r, operators.Actor{}, audit.Entry{Action: audit.LoginFailed, Outcome: cmp.Or(kinds[status], "refused")})
		}
	})
}

// pageRead records the use of a further page of the admin listener, such as the profiles.
func (s *Server) pageRead(path string, page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := audit.Entry{Action: audit.PageRead, Subject: path, Outcome: audit.OK}
		if !operators.Of(r.Context()).Role.May(operators.Admin) {
			e.Outcome = problem.Forbidden.Name
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			e.Action, e.Detail = "page.change", map[string]any{"method": r.Method, "path": r.URL.Path}
		}
		s.write(r, operators.Of(r.Context()), e)
		page.ServeHTTP(w, r)
	})
}

// listAudit is GET /v1/audit.
func (s *Server) listAudit(c *call) (*answer, error) {
	query := c.r.URL.Query()
	q := audit.Query{Actor: query.Get("actor"), Action: query.Get("action"), Subject: query.Get("subject")}
	var err error
	if q.Limit, err = codec.PageLimit(query, contract.DefaultEntries, contract.MaxEntries); err != nil {
		return nil, err
	}
	for name, to := range map[string]*time.Time{"since": &q.Since, "until": &q.Until} {
		if *to, err = codec.ReadInstant(query, name); err != nil {
			return nil, err
		}
	}
	if query.Has("cursor") {
		text, err := codec.OpenCursor(query.Get("cursor"))
		if err != nil {
			return nil, codec.BadCursor()
		}
		if q.Before, err = strconv.ParseInt(text, 10, 64); err != nil || q.Before < 1 {
			return nil, codec.BadCursor()
		}
	}
	out := wire.AuditList{Items: []wire.AuditEntry{}}
	if s.queue.trail == nil {
		return ok(out), nil
	}
	page, err := s.queue.trail.Find(c.r.Context(), q)
	if err != nil {
		return nil, err
	}
	for _, i := range page.Items {
		out.Items = append(out.Items, wire.AuditEntry(i))
	}
	if page.Next > 0 {
		out.NextCursor = codec.SealCursor(strconv.FormatInt(page.Next, 10))
	}
	return ok(out), nil
}

// observed lets the audit see the settings before a change: the last ones that the edit is given.
func (c *call) observed(change *queue.Change) {
	edit := change.Edit
	change.Edit = func(o shaper.Overrides) (shaper.Overrides, error) {
		c.recorded.before = copied(o)
		return edit(o)
	}
	for name, value := range map[string]bool{"end_holds": change.EndHolds, "end_charge": change.EndCharge} {
		if value {
			c.note(name, true)
		}
	}
	if change.Reason != "" {
		c.note("reason", change.Reason)
	}
}

// copied returns overrides that edits of the same ones do not change.
func copied(o shaper.Overrides) shaper.Overrides {
	o.Routes = maps.Clone(o.Routes)
	return o
}

// settled completes the entry of a change of settings.
func (c *call) settled(change queue.Change, after shaper.Overrides) {
	c.recorded.after = after
	if change.DryRun {
		c.unrecorded()
	}
}

// notedFilter is the filter of a purge or a replay, with the first of its ids.
func notedFilter(f queue.Filter) queue.Filter {
	f.IDs = slices.Clone(f.IDs[:min(len(f.IDs), queue.NotedIDs)])
	return f
}

// saw notes what an operator sees of a job. A viewer sees nothing that a client wrote.
func (s *Server) saw(c *call, tenant string, out wire.JobDetail) {
	shown := shownOf(out)
	if len(shown) == 0 || !operators.Of(c.r.Context()).Role.May(operators.Operator) {
		c.unrecorded()
		return
	}
	c.note("tenant", tenant)
	c.note("shown", shown)
}

// shownOf lists which parts of a job an answer shows that a client or an upstream wrote.
func shownOf(out wire.JobDetail) (shown []string) {
	for _, part := range []struct {
		name string
		has  bool
	}{
		{"payload", len(out.Payload) > 0}, {"request", out.Request != nil},
		{"request_body", out.Request != nil && out.Request.Body != ""},
		{"headers", len(out.Headers) > 0}, {"response", out.Response != nil},
	} {
		if part.has {
			shown = append(shown, part.name)
		}
	}
	return shown
}
