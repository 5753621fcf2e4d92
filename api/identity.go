package api

import (
	"cmp"
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"github.com/danielgtaylor/huma/v2"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/budget"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
)

// tenantRefusal is the class, in the metric, of a request that names another tenant than its
// credential's.
const tenantRefusal = "tenant"

// identify finds the principal of a request. Without authentication, a header names the tenant.
// With authentication, a header with another name than the credential's is refused as a mistake.
func (s *Server) identify(r *http.Request) (auth.Principal, error) {
	if s.cfg.Auth == nil {
		tenant, err := codec.ReadTenant(r.Header)
		return auth.Principal{Tenant: tenant}, err
	}
	who, err := s.cfg.Auth.Authenticate(r)
	if err != nil {
		var refusal *auth.Refusal
		if errors.As(err, &refusal) {
			s.metrics.refused(string(refusal.Class))
			if refusal.Shown() {
				if many := s.cfg.Guesses.Wrong(s.addressOf(r)); many != nil {
					return auth.Principal{}, many
				}
			}
		}
		return auth.Principal{}, s.forbidden(err)
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.LogAttrs(r.Context(), slog.LevelDebug, "identified", slog.String("key", who.KeyID))
	}
	switch values := r.Header[codec.TenantHeader]; {
	case len(values) > 1:
		return auth.Principal{}, problem.Invalid(codec.TenantHeader, "array", "must not be repeated")
	case len(values) == 1 && values[0] != who.Tenant:
		s.metrics.refused(tenantRefusal)
		return auth.Principal{}, problem.TenantMismatch.With(codec.TenantHeader + " names another tenant " +
			"than the credential's; leave it out")
	}
	return who, nil
}

// forbiddenRefusal is the class, in the metric, of a request that its credential does not allow.
const forbiddenRefusal = "forbidden"

// forbidden counts an error of package auth that is a *auth.Forbidden, and returns it.
func (s *Server) forbidden(err error) error {
	if _, is := errors.AsType[*auth.Forbidden](err); is {
		s.metrics.refused(forbiddenRefusal)
	}
	return err
}

// permitJob checks that the credential allows the job in the path, before the handler does anything
// with it. Only a credential with routes or types costs a read.
func (s *Server) permitJob(c *call) error {
	if !c.who.Rights.Narrow() {
		return nil
	}
	tenant, id, err := tenantAndID(c)
	if err != nil {
		return err
	}
	if err := s.reading(c, 1); err != nil {
		return err
	}
	job, err := s.queue.Job(c.r.Context(), tenant, id)
	if err != nil {
		return err
	}
	return s.forbidden(c.who.RequireStored(job.Route, job.Type))
}

// permitRead checks that the credential allows to read the job.
func (s *Server) permitRead(c *call, job queue.Job) error {
	if err := c.who.Require(queue.ScopeRead); err != nil {
		return s.forbidden(err)
	}
	return s.forbidden(c.who.RequireStored(job.Route, job.Type))
}

// permitRoute checks that the credential allows the route of a forwarded request or a list.
func (s *Server) permitRoute(c *call, route string) error {
	return s.forbidden(c.who.RequireRoute(route))
}

// addressOf is the client's address as bounds count it, see auth.ClientNetwork; empty if unknown.
func (s *Server) addressOf(r *http.Request) string {
	network, _ := s.clientNetwork(r)
	return network
}

// ownerOf is who uses resources with a request. That of an operator has an address only.
func (s *Server) ownerOf(c *call) budget.Owner {
	if c.counted {
		return c.owner
	}
	return budget.Owner{Address: s.addressOf(c.r)}
}

// stillGood reports whether the request would be accepted again.
func (s *Server) stillGood(r *http.Request) bool { return s.cfg.Auth == nil || s.cfg.Auth.Good(r) }

// Names of the intake's ways to authenticate in the OpenAPI document.
const (
	bearerScheme = "bearer"
	keyScheme    = "apiKey"

	certificateScheme = "certificate"
)

// secure documents how clients of the data plane authenticate, if they must.
func (s *Server) secure(api huma.API) {
	if s.cfg.Auth == nil {
		return
	}
	const kinds = "An API key (sluice_…) or a JSON Web Token of the configured issuer, whichever the " +
		"server accepts."
	schemes := map[string]*huma.SecurityScheme{
		bearerScheme: {Type: "http", Scheme: "bearer", Description: kinds},
		keyScheme:    {Type: "apiKey", In: "header", Name: "X-API-Key", Description: kinds},
	}
	if s.cfg.Auth.Takes(auth.Cert) {
		schemes[certificateScheme] = &huma.SecurityScheme{
			Type: "mutualTLS", Description: "A certificate of the client, which names the tenant.",
		}
	}
	api.OpenAPI().Components.SecuritySchemes = schemes
}

// security is the requirement of an operation of the data plane: one of the two headers, or nothing
// if guests are accepted.
func (s *Server) security() []map[string][]string {
	var ways []map[string][]string
	if s.cfg.Auth.Takes(auth.Keys) || s.cfg.Auth.Takes(auth.JWT) {
		ways = append(ways, map[string][]string{bearerScheme: {}}, map[string][]string{keyScheme: {}})
	}
	if s.cfg.Auth.Takes(auth.Cert) {
		ways = append(ways, map[string][]string{certificateScheme: {}})
	}
	if s.cfg.Auth.Takes(auth.Guest) {
		ways = append(ways, map[string][]string{})
	}
	return ways
}

// guarded returns the operations with authentication: with further refusals and requirements.
func (s *Server) guarded(operations []contract.Operation) []contract.Operation {
	for i := range operations {
		operations[i].Identifies = true
		// A copy, because several operations share theirs.
		refusals := slices.Concat(operations[i].Refusals, []problem.Kind{problem.RateLimited},
			s.guardRefusals(cmp.Or(operations[i].Endpoint, operations[i].ID)))
		if s.cfg.Auth != nil {
			operations[i].Security = s.security()
			refusals = append(refusals, problem.Unauthorized, problem.TenantMismatch, problem.Forbidden)
			if s.cfg.Auth.Takes(auth.JWT) {
				refusals = append(refusals, problem.IssuerUnavailable)
			}
		}
		if s.localOnly() {
			refusals = append(refusals, problem.Forbidden)
		}
		operations[i].Refusals = refusals
	}
	return operations
}
