package api

import (
	"context"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
	"github.com/7509e464/sluice/queue"
)

// callbacks stores what tenants have of their own for their callbacks.
type callbacks interface {
	CallbacksOf(ctx context.Context, tenant string) (queue.TenantCallbacks, error)
	CreateCallbackSecret(ctx context.Context, tenant string, kind queue.CallbackKind, by string) (queue.CallbackSecret, error)
	RevokeCallbackSecret(ctx context.Context, tenant, id string) (queue.CallbackSecret, error)
	PutCallbackEndpoints(ctx context.Context, tenant string, endpoints []string) (before []string, err error)
}

// callbacksOf returns what the tenant in the path has.
func (s *Server) callbacksOf(c *call) (queue.TenantCallbacks, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return queue.TenantCallbacks{}, err
	}
	return s.queue.CallbacksOf(c.r.Context(), tenant)
}

// createCallbackSecret is POST /v1/tenants/{tenant}/callbacks/secrets. Only this answer has the
// secret.
func (s *Server) createCallbackSecret(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	kind, err := codec.DecodeCallbackSecret(c.body)
	if err != nil {
		return nil, err
	}
	made, err := s.queue.CreateCallbackSecret(c.r.Context(), tenant, kind, operators.Of(c.r.Context()).Name)
	if err != nil {
		return nil, err
	}
	shown := codec.CallbackSecret(made)
	c.changed(nil, shown)
	c.note("secret", made.ID)
	s.log.LogAttrs(c.r.Context(), slog.LevelDebug, "secret of callbacks created", slog.String("secret", made.ID))
	return &answer{status: http.StatusCreated, body: wire.NewCallbackSecret{CallbackSecret: shown, Secret: made.Secret()}}, nil
}

// listCallbackSecrets is GET /v1/tenants/{tenant}/callbacks/secrets.
func (s *Server) listCallbackSecrets(c *call) (*answer, error) {
	of, err := s.callbacksOf(c)
	if err != nil {
		return nil, err
	}
	out := wire.CallbackSecretList{Items: make([]wire.CallbackSecret, len(of.Secrets))}
	for i, secret := range of.Secrets {
		out.Items[i] = codec.CallbackSecret(secret)
	}
	return ok(out), nil
}

// revokeCallbackSecret is DELETE /v1/tenants/{tenant}/callbacks/secrets/{secret}.
func (s *Server) revokeCallbackSecret(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	id := c.param("secret")
	if !codec.IsID(id) {
		return nil, queue.ErrUnknownSecret
	}
	c.note("secret", id)
	gone, err := s.queue.RevokeCallbackSecret(c.r.Context(), tenant, id)
	if err != nil {
		return nil, err
	}
	c.changed(codec.CallbackSecret(gone), nil)
	s.log.LogAttrs(c.r.Context(), slog.LevelDebug, "secret of callbacks revoked", slog.String("secret", id))
	return &answer{status: http.StatusNoContent}, nil
}

// getCallbackEndpoints is GET /v1/tenants/{tenant}/callbacks/endpoints.
func (s *Server) getCallbackEndpoints(c *call) (*answer, error) {
	of, err := s.callbacksOf(c)
	if err != nil {
		return nil, err
	}
	return ok(wire.CallbackEndpoints{Endpoints: append([]string{}, of.Endpoints...)}), nil
}

// putCallbackEndpoints is PUT /v1/tenants/{tenant}/callbacks/endpoints.
func (s *Server) putCallbackEndpoints(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	wanted, err := codec.DecodeCallbackEndpoints(c.body, s.cfg.CheckEndpoint)
	if err != nil {
		return nil, err
	}
	before, err := s.queue.PutCallbackEndpoints(c.r.Context(), tenant, wanted)
	if err != nil {
		return nil, err
	}
	c.changed(originsOf(before), originsOf(wanted))
	return ok(wire.CallbackEndpoints{Endpoints: wanted}), nil
}

// originsOf is what the audit has of endpoints: their paths may hold secrets.
func originsOf(endpoints []string) []string {
	origins := make([]string, len(endpoints))
	for i, raw := range endpoints {
		if u, err := url.Parse(raw); err == nil {
			origins[i] = u.Scheme + "://" + u.Host
		}
	}
	return origins
}

// checkCallback checks the callback URL of a submission; an empty one is none.
func (s *Server) checkCallback(ctx context.Context, tenant, url string) *problem.Problem {
	if url == "" {
		return nil
	}
	if s.cfg.CheckCallback == nil {
		return problem.Invalid("callback_url", "string", "must be absent: callbacks are not configured")
	}
	if s.cfg.CheckCallback(url, nil) == nil {
		return nil
	}
	own, err := s.endpoints.find(ctx, tenant)
	if err != nil {
		return problem.Of(err)
	}
	if err := s.cfg.CheckCallback(url, own); err != nil {
		return problem.Invalid("callback_url", "string", err.Error())
	}
	return nil
}

// endpoints caches the endpoints of tenants, so that a submission with a callback costs no read of
// the store.
type endpoints struct {
	of callbacks

	mu    sync.Mutex
	known map[string]knownEndpoints
}

type knownEndpoints struct {
	read time.Time
	list []string
}

const (
	endpointsFresh = time.Second
	endpointsMost  = 10_000 // tenants
)

// find returns the endpoints of a tenant, of at most a second ago. Errors: queue.ErrUnavailable.
func (e *endpoints) find(ctx context.Context, tenant string) ([]string, error) {
	now := time.Now()
	e.mu.Lock()
	k := e.known[tenant]
	e.mu.Unlock()
	if now.Sub(k.read) < endpointsFresh {
		return k.list, nil
	}
	of, err := e.of.CallbacksOf(ctx, tenant)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.known == nil || len(e.known) >= endpointsMost {
		e.known = map[string]knownEndpoints{}
	}
	e.known[tenant] = knownEndpoints{now, of.Endpoints}
	return of.Endpoints, nil
}
