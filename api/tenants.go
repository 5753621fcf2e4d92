package api

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/figures"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// tenants reads and changes policies. A tenant that was never seen has the defaults.
type tenants interface {
	Tenant(ctx context.Context, tenant string) (queue.Tenant, error)
	Tune(ctx context.Context, tenant string, change queue.Change) (queue.Tenant, error)
	Tenants(ctx context.Context, cursor string, limit int) (names []string, next string, err error)
	Tiers() []string
	History(ctx context.Context, tenant string) ([]queue.HistoryEntry, error)
}

// pathTenant is the tenant named in the path, percent-decoded exactly once.
func pathTenant(c *call) (string, error) {
	name := c.param("tenant")
	return name, codec.CheckTenant("path.tenant", name)
}

// getTenant is GET /v1/tenants/{tenant}.
func (s *Server) getTenant(c *call) (*answer, error) {
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	t, err := s.queue.Tenant(c.r.Context(), name)
	if err != nil {
		return nil, err
	}
	out := codec.Tenant(t)
	out.Unknown = !t.Known
	return ok(out).set("Etag", codec.ETag(t.Revision)), nil
}

// putTenant is PUT /v1/tenants/{tenant}: settings that the body omits lose their overrides.
func (s *Server) putTenant(c *call) (*answer, error) {
	patch, err := s.decodeSettings(c.body)
	if err != nil {
		return nil, err
	}
	if patch.Partial != "" {
		return nil, partialRate(patch.Partial)
	}
	return s.tune(c, patch.Reason, func(o shaper.Overrides) (shaper.Overrides, error) {
		// A drain is no setting: only resume ends it.
		return patch.Apply(shaper.Overrides{Draining: o.Draining}, func(string) shaper.Rate {
			return shaper.Rate{}
		})
	})
}

// partialRate is the answer to a rate at path by halves where there is no other half.
func partialRate(path string) *problem.Problem {
	return problem.Invalid(path, "object", "must have limit and period_ms, or be a text such as 10/s")
}

// patchTenant is PATCH /v1/tenants/{tenant}.
func (s *Server) patchTenant(c *call) (*answer, error) {
	patch, err := s.decodeSettings(c.body)
	if err != nil {
		return nil, err
	}
	var inForce queue.Tenant
	if patch.Partial != "" {
		name, err := pathTenant(c)
		if err != nil {
			return nil, err
		}
		if inForce, err = s.queue.Tenant(c.r.Context(), name); err != nil {
			return nil, err
		}
	}
	return s.tune(c, patch.Reason, patched(patch, inForce))
}

// deleteTenant is DELETE /v1/tenants/{tenant}: the overrides go, the tenant's jobs stay.
func (s *Server) deleteTenant(c *call) (*answer, error) {
	_, err := s.tune(c, "", func(shaper.Overrides) (shaper.Overrides, error) {
		return shaper.Overrides{}, nil
	})
	if err != nil {
		return nil, err
	}
	return &answer{status: http.StatusNoContent}, nil
}

// pauseTenant is POST /v1/tenants/{tenant}/pause.
func (s *Server) pauseTenant(c *call) (*answer, error) {
	return s.switchTenant(c, false, func(o *shaper.Overrides, route string) {
		if route == "" {
			pause(o)
			return
		}
		setRoute(o, route, true)
	})
}

// drainTenant is POST /v1/tenants/{tenant}/drain.
func (s *Server) drainTenant(c *call) (*answer, error) {
	return switched(c, s.change, func(o *shaper.Overrides) { o.Draining = new(true) })
}

// resumeTenant is POST /v1/tenants/{tenant}/resume. It overrides a pause in the file too.
func (s *Server) resumeTenant(c *call) (*answer, error) {
	return s.switchTenant(c, true, func(o *shaper.Overrides, route string) {
		if route == "" {
			resume(o)
			return
		}
		setRoute(o, route, false)
	})
}

// switchTenant pauses or resumes a tenant, or one route of it.
func (s *Server) switchTenant(
	c *call, resumes bool, edit func(o *shaper.Overrides, route string),
) (*answer, error) {
	body, err := codec.DecodeSwitch(c.body, s.routeRule)
	if err != nil {
		return nil, err
	}
	return s.change(c, queue.Change{Reason: body.Reason, Resume: resumes,
		Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
			o.Routes = maps.Clone(o.Routes)
			edit(&o, body.Route)
			return o, nil
		}})
}

// setRoute sets whether a route is paused. The routes must be a clone.
func setRoute(o *shaper.Overrides, name string, paused bool) {
	if o.Routes == nil {
		o.Routes = map[string]shaper.Overrides{}
	}
	r := o.Routes[name]
	r.Paused = &paused
	o.Routes[name] = r
}

// unholdTenant is POST /v1/tenants/{tenant}/unhold. It changes no setting.
func (s *Server) unholdTenant(c *call) (*answer, error) {
	reason, err := codec.DecodeReason(c.body)
	if err != nil {
		return nil, err
	}
	return s.change(c, queue.Change{Edit: keep, Reason: reason, EndHolds: true})
}

func keep(o shaper.Overrides) (shaper.Overrides, error) { return o, nil }

func pause(o *shaper.Overrides)  { o.Paused = new(true) }
func resume(o *shaper.Overrides) { o.Paused, o.Draining = new(false), nil }

// edit returns the new overrides of a tenant or a pool.
type edit = func(shaper.Overrides) (shaper.Overrides, error)

// switched changes a tenant or a pool for the reason in the body.
func switched(
	c *call, change func(*call, queue.Change) (*answer, error), edit func(*shaper.Overrides),
) (*answer, error) {
	reason, err := codec.DecodeReason(c.body)
	if err != nil {
		return nil, err
	}
	return change(c, queue.Change{Reason: reason, Edit: func(o shaper.Overrides) (shaper.Overrides, error) {
		edit(&o)
		return o, nil
	}})
}

// tune changes the settings of the tenant in the path.
func (s *Server) tune(c *call, reason string, edit edit) (*answer, error) {
	return s.change(c, queue.Change{Edit: edit, Reason: reason})
}

// change changes the tenant in the path under the condition in If-Match.
func (s *Server) change(c *call, change queue.Change) (*answer, error) {
	name, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	match, err := conditions(c, &change)
	if err != nil {
		return nil, err
	}
	if err := s.mayCreate(c, name); err != nil {
		return nil, err
	}
	change.IfRevision, err = expected(match, func() (int64, error) {
		t, err := s.queue.Tenant(c.r.Context(), name)
		return t.Revision, err
	})
	if err != nil {
		return nil, err
	}
	c.observed(&change)
	t, err := s.queue.Tune(c.r.Context(), name, change)
	if err != nil {
		return nil, err
	}
	c.settled(change, t.API)
	return tenantAnswer(t), nil
}

// conditions completes a change with its author and dry_run, and returns what If-Match lists.
func conditions(c *call, change *queue.Change) (match codec.Revisions, err error) {
	if match, err = codec.IfMatch(c.r.Header); err != nil {
		return match, err
	}
	change.Actor = changer(c.r)
	change.DryRun, err = codec.ReadBool(c.r.URL.Query(), "dry_run", false) // only some changes take it
	return match, err
}

// mayCreate refuses the change of an unknown tenant unless create is true: its name may be
// misspelt. Only settings create a tenant by default.
func (s *Server) mayCreate(c *call, name string) error {
	settings := c.op == "put-tenant" || c.op == "patch-tenant"
	create, err := codec.ReadBool(c.r.URL.Query(), "create", settings)
	if err != nil || create {
		return err
	}
	return s.mustKnow(c.r.Context(), name)
}

// suggested is how many tenants a misspelt name is compared with.
const suggested = 1000

// mustKnow is the problem unknown-tenant for an unknown tenant. It names a tenant with a similar
// name.
func (s *Server) mustKnow(ctx context.Context, name string) error {
	t, err := s.queue.Tenant(ctx, name)
	if err != nil || t.Known {
		return err
	}
	detail := "no setting names this tenant, and it has sent no jobs recently"
	if names, _, err := s.queue.Tenants(ctx, "", suggested); err == nil {
		names = slices.DeleteFunc(names, func(n string) bool { return n == name })
		if near := shaper.Nearest(name, names); near != "" {
			detail += "; is " + near + " meant?"
		}
	}
	return problem.UnknownTenant.With(detail)
}

// expected is the revision in If-Match, nil for any. If it lists several, it is the current one of
// them, which current reads.
func expected(match codec.Revisions, current func() (int64, error)) (*int64, error) {
	switch {
	case !match.Listed:
		return nil, nil
	case len(match.Revisions) == 1:
		return &match.Revisions[0], nil
	case len(match.Revisions) == 0:
		return nil, queue.ErrRevision
	}
	revision, err := current()
	if err != nil {
		return nil, err
	}
	if !slices.Contains(match.Revisions, revision) {
		return nil, queue.ErrRevision
	}
	return &revision, nil
}

// changer names the operator of a request in the history, with the address.
func changer(r *http.Request) string {
	actor := operators.Of(r.Context())
	if actor.Address == "" {
		return actor.Name
	}
	return actor.Name + " from " + actor.Address
}

// listTenants is GET /v1/tenants.
func (s *Server) listTenants(c *call) (*answer, error) {
	query := c.r.URL.Query()
	limit, err := codec.PageLimit(query, contract.DefaultPage, contract.MaxPage)
	if err != nil {
		return nil, err
	}
	cursor, err := codec.OpenCursor(query.Get("cursor"))
	if err != nil || (query.Has("cursor") && cursor == "") {
		return nil, codec.BadCursor()
	}
	names, next, err := s.queue.Tenants(c.r.Context(), cursor, limit)
	if errors.Is(err, queue.ErrCursor) {
		return nil, codec.BadCursor()
	}
	if err != nil {
		return nil, err
	}
	list := wire.TenantList{Items: make([]wire.Tenant, 0, len(names)), NextCursor: codec.SealCursor(next)}
	for _, name := range names {
		t, err := s.queue.Tenant(c.r.Context(), name)
		if err != nil {
			return nil, err
		}
		list.Items = append(list.Items, codec.Tenant(t))
	}
	return ok(list), nil
}

func tenantAnswer(t queue.Tenant) *answer {
	return ok(codec.Tenant(t)).set("Etag", codec.ETag(t.Revision))
}

// decodeSettings reads a body with settings of a tenant.
func (s *Server) decodeSettings(body []byte) (codec.SettingsPatch, error) {
	return codec.DecodeSettings(body, s.routeRule)
}

// patched applies the patch to the overrides of a tenant. A rate with one half takes the other half
// from the rate in force.
func patched(p codec.SettingsPatch, inForce queue.Tenant) func(shaper.Overrides) (shaper.Overrides, error) {
	return func(o shaper.Overrides) (shaper.Overrides, error) {
		return p.Apply(o, func(route string) shaper.Rate { return figures.PolicyOn(inForce, route).Rate })
	}
}
