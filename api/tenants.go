package api

import (
	"context"
	"encoding/base64"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// Bounds of a page of tenants.
const (
	defaultPage = 50
	maxPage     = 200
)

// pathTenant is the tenant named in the path, percent-decoded exactly once.
func pathTenant(c *call) (string, error) {
	name := c.param("tenant")
	return name, tenantRule("path.tenant", name)
}

// getTenant is GET /v1/tenants/{tenant}.
func (s *Server) getTenant(c *call) (*answer, error) {
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	t, err := s.backend.Tenant(c.r.Context(), name)
	if err != nil {
		return nil, err
	}
	return tenantAnswer(t), nil
}

// putTenant is PUT /v1/tenants/{tenant}: what the body does not name is not overridden any more.
func (s *Server) putTenant(c *call) (*answer, error) {
	patch, err := s.decodeSettings(c.body)
	if err != nil {
		return nil, err
	}
	if patch.partial {
		return nil, invalid("rate", "object", "must have limit and period_ms, or be a text such as 10/s")
	}
	return s.tune(c, patch.reason, func(o shaper.Overrides) (shaper.Overrides, error) {
		return patch.apply(shaper.Overrides{Draining: o.Draining}, func(string) shaper.Rate { return shaper.Rate{} }) // a drain is no setting: resume ends it
	})
}

// patchTenant is PATCH /v1/tenants/{tenant}.
func (s *Server) patchTenant(c *call) (*answer, error) {
	patch, err := s.decodeSettings(c.body)
	if err != nil {
		return nil, err
	}
	var inForce queue.Tenant
	if patch.partial {
		name, err := pathTenant(c)
		if err != nil {
			return nil, err
		}
		if inForce, err = s.backend.Tenant(c.r.Context(), name); err != nil {
			return nil, err
		}
	}
	return s.tune(c, patch.reason, patch.over(inForce))
}

// deleteTenant is DELETE /v1/tenants/{tenant}: the overrides go, the tenant's jobs stay.
func (s *Server) deleteTenant(c *call) (*answer, error) {
	if _, err := s.tune(c, "", func(shaper.Overrides) (shaper.Overrides, error) { return shaper.Overrides{}, nil }); err != nil {
		return nil, err
	}
	return &answer{status: http.StatusNoContent}, nil
}

// pauseTenant is POST /v1/tenants/{tenant}/pause.
func (s *Server) pauseTenant(c *call) (*answer, error) {
	return s.switchTenant(c, func(o *shaper.Overrides) { o.Paused = new(true) })
}

// drainTenant is POST /v1/tenants/{tenant}/drain.
func (s *Server) drainTenant(c *call) (*answer, error) {
	return s.switchTenant(c, func(o *shaper.Overrides) { o.Draining = new(true) })
}

// resumeTenant is POST /v1/tenants/{tenant}/resume. It overrides a pause in the file too.
func (s *Server) resumeTenant(c *call) (*answer, error) {
	return s.switchTenant(c, func(o *shaper.Overrides) { o.Paused, o.Draining = new(false), nil })
}

// unholdTenant is POST /v1/tenants/{tenant}/unhold. It changes no setting.
func (s *Server) unholdTenant(c *call) (*answer, error) {
	reason, err := decodeReason(c.body)
	if err != nil {
		return nil, err
	}
	return s.change(c, queue.Change{Edit: func(o shaper.Overrides) (shaper.Overrides, error) { return o, nil }, Reason: reason, EndHolds: true})
}

// switchTenant changes the tenant for the reason in the body.
func (s *Server) switchTenant(c *call, edit func(*shaper.Overrides)) (*answer, error) {
	reason, err := decodeReason(c.body)
	if err != nil {
		return nil, err
	}
	return s.tune(c, reason, func(o shaper.Overrides) (shaper.Overrides, error) {
		edit(&o)
		return o, nil
	})
}

// tune changes the settings of the tenant in the path.
func (s *Server) tune(c *call, reason string, edit func(shaper.Overrides) (shaper.Overrides, error)) (*answer, error) {
	return s.change(c, queue.Change{Edit: edit, Reason: reason})
}

// change changes the tenant in the path under the condition in If-Match.
func (s *Server) change(c *call, change queue.Change) (*answer, error) {
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	match, err := ifMatchOf(c.r.Header)
	if err != nil {
		return nil, err
	}
	change.Actor = actor(c.r)
	if change.DryRun, err = dryRun(c.r.URL.Query()); err != nil {
		return nil, err
	}
	if err := s.mayCreate(c, name); err != nil {
		return nil, err
	}
	if change.IfRevision, err = s.expected(c.r.Context(), name, match); err != nil {
		return nil, err
	}
	t, err := s.backend.Tune(c.r.Context(), name, change)
	if err != nil {
		return nil, err
	}
	return tenantAnswer(t), nil
}

// mayCreate refuses the change of a tenant that nobody has heard of where create is false: its name
// is misspelt.
func (s *Server) mayCreate(c *call, name string) error {
	create, err := truthParam(c.r.URL.Query(), "create", true)
	if err != nil || create {
		return err
	}
	return s.mustKnow(c.r.Context(), name)
}

// mustKnow is unknown-tenant for a tenant that nobody has heard of.
func (s *Server) mustKnow(ctx context.Context, name string) error {
	t, err := s.backend.Tenant(ctx, name)
	if err == nil && !t.Known {
		err = unknownTenant.with("nothing was said of a tenant of this name, and it has sent no jobs lately")
	}
	return err
}

// dryRun reads the parameter of that name, which only some changes take.
func dryRun(query url.Values) (bool, error) { return truthParam(query, "dry_run", false) }

func truthParam(query url.Values, name string, otherwise bool) (bool, error) {
	switch query.Get(name) {
	case "true":
		return true, nil
	case "false":
		return false, nil
	}
	if query.Has(name) {
		return false, invalid("query."+name, "string", "must be true or false")
	}
	return otherwise, nil
}

// expected is the revision that the change is bound to, nil for any. Of several listed ones it is
// the current one.
func (s *Server) expected(ctx context.Context, name string, match ifMatch) (*int64, error) {
	switch {
	case !match.listed:
		return nil, nil
	case len(match.revisions) == 1:
		return &match.revisions[0], nil
	case len(match.revisions) == 0:
		return nil, queue.ErrRevision
	}
	t, err := s.backend.Tenant(ctx, name)
	if err != nil {
		return nil, err
	}
	if !slices.Contains(match.revisions, t.Revision) {
		return nil, queue.ErrRevision
	}
	return &t.Revision, nil
}

// actor is who asked, for the history: the API, from this address.
func actor(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return "api"
	}
	return "api from " + host
}

// listTenants is GET /v1/tenants.
func (s *Server) listTenants(c *call) (*answer, error) {
	query := c.r.URL.Query()
	limit, err := pageLimit(query, defaultPage, maxPage)
	if err != nil {
		return nil, err
	}
	cursor, err := openCursor(query.Get("cursor"))
	if err != nil || (query.Has("cursor") && cursor == "") {
		return nil, badCursor()
	}
	names, next, err := s.backend.Tenants(c.r.Context(), cursor, limit)
	if errors.Is(err, queue.ErrCursor) {
		return nil, badCursor()
	}
	if err != nil {
		return nil, err
	}
	list := wire.TenantList{Items: make([]wire.Tenant, 0, len(names)), NextCursor: sealCursor(next)}
	for _, name := range names {
		t, err := s.backend.Tenant(c.r.Context(), name)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, tenantOut(t))
	}
	return ok(list), nil
}

const cursorRule = "must be a next_cursor of an earlier page"

func badCursor() error { return invalid("query.cursor", "string", cursorRule) }

// sealCursor makes the queue's cursor opaque and safe in a query; the empty one stays empty.
func sealCursor(cursor string) string { return base64.RawURLEncoding.EncodeToString([]byte(cursor)) }

func openCursor(sealed string) (string, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err == nil && sealCursor(string(raw)) != sealed { // the decoder skips line ends
		err = base64.CorruptInputError(0)
	}
	return string(raw), err
}

func tenantAnswer(t queue.Tenant) *answer {
	return ok(tenantOut(t)).set("Etag", etag(t.Revision))
}

// tenantOut is the tenant in its JSON form.
func tenantOut(t queue.Tenant) wire.Tenant {
	out := wire.Tenant{
		Tenant: t.Name, Tier: t.Tier, Policy: policyOut(t.Policy, t.Sources), Draining: t.Policy.Draining, Reason: t.Reason, Revision: t.Revision,
		Figures: figuresOut(t.Figures), StoredBytes: t.Stored, DeadBytes: t.DeadBytes,
	}
	if !t.API.Empty() {
		out.Overrides = new(wire.OverridesOf(t.API))
	}
	for route, f := range t.Routes {
		if out.Routes == nil {
			out.Routes = map[string]wire.Flow{}
		}
		out.Routes[route] = wire.Flow{Policy: policyOut(f.Policy, f.Sources), Figures: figuresOut(f.Figures)}
	}
	return out
}

func policyOut(p shaper.Policy, sources map[string]string) wire.Policy {
	out := wire.Policy{
		Rate: wire.RateOf(p.Rate), Rates: wire.PacesOf(p.Rates), Burst: p.Burst, Capacity: p.Capacity, CapacityBytes: p.CapacityBytes, Concurrency: p.Concurrency, MaxWaitMS: p.MaxWait.Milliseconds(),
		Paused: p.Paused, Sources: sources,
	}
	if out.Sources == nil {
		out.Sources = map[string]string{}
	}
	return out
}

// heldUntil is when the hold ends, zero where there is none.
func heldUntil(f queue.Figures) time.Time {
	if f.HeldUntil.IsZero() {
		return time.Time{}
	}
	return f.HeldUntil.UTC()
}

func figuresOut(f queue.Figures) wire.Figures {
	return wire.Figures{
		Depth: f.Depth, Bytes: f.Bytes, Running: f.Running, LimitedBy: f.LimitedBy, EffectiveRate: f.EffectiveRate, OldestWaitMS: f.OldestWait.Milliseconds(),
		Admitted: f.Admitted, Rejected: f.Rejected, Departed: f.Departed, Succeeded: f.Succeeded, DeadLetters: f.Dead, Dead: f.DeadTotal,
		HeldUntil: heldUntil(f), HeldBy: f.HeldBy.By, HeldStatus: f.HeldBy.Status,
	}
}
