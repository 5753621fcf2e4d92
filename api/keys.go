package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/queue"
)

// keyRing creates and revokes API keys. The key of another tenant is queue.ErrUnknownKey.
type keyRing interface {
	CreateKey(ctx context.Context, k queue.Key) (queue.Key, error)
	ListKeys(ctx context.Context, tenant string) ([]queue.Key, error)
	RevokeKey(ctx context.Context, tenant, id string) error
}

// createKey is POST /v1/tenants/{tenant}/keys. Only this answer contains the secret.
func (s *Server) createKey(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	wanted, err := codec.DecodeKey(c.body, s.routeRule, s.cfg.KeyMaxAge)
	if err != nil {
		return nil, err
	}
	secret := auth.NewSecret()
	wanted.Tenant, wanted.Hash = tenant, secret.Hash()
	k, err := s.queue.CreateKey(c.r.Context(), wanted)
	if err != nil {
		return nil, err
	}
	c.changed(nil, codec.Key(k))
	c.note("key", k.ID)
	s.cfg.Guesses.Right(k.ID)
	s.log.LogAttrs(c.r.Context(), slog.LevelDebug, "key created", slog.String("key", k.ID))
	return &answer{status: http.StatusCreated,
		body: wire.NewKey{Key: codec.Key(k), Secret: secret.Key(k.ID)}}, nil
}

// listKeys is GET /v1/tenants/{tenant}/keys.
func (s *Server) listKeys(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	keys, err := s.queue.ListKeys(c.r.Context(), tenant)
	if err != nil {
		return nil, err
	}
	out := wire.KeyList{Items: make([]wire.Key, len(keys))}
	for i, k := range keys {
		out.Items[i] = codec.Key(k)
	}
	return ok(out), nil
}

// revokeKey is DELETE /v1/tenants/{tenant}/keys/{key}.
func (s *Server) revokeKey(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	id := c.param("key")
	if !codec.IsID(id) {
		return nil, queue.ErrUnknownKey
	}
	if err := s.queue.RevokeKey(c.r.Context(), tenant, id); err != nil {
		return nil, err
	}
	s.log.LogAttrs(c.r.Context(), slog.LevelDebug, "key revoked", slog.String("key", id))
	return &answer{status: http.StatusNoContent}, nil
}

// tokenRing revokes tokens.
type tokenRing interface {
	RevokeTokens(ctx context.Context, tenant, subject string, at time.Time) (time.Time, error)
}

// revokeTokens is POST /v1/tenants/{tenant}/tokens/revoke.
func (s *Server) revokeTokens(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	wanted, err := codec.DecodeRevocation(c.body)
	if err != nil {
		return nil, err
	}
	at, err := s.queue.RevokeTokens(c.r.Context(), tenant, wanted.Subject, wanted.NotBefore)
	if err != nil {
		return nil, err
	}
	c.note("subject", wanted.Subject)
	c.note("not_before", at)
	s.log.LogAttrs(c.r.Context(), slog.LevelDebug, "tokens revoked", slog.String("tenant", tenant))
	return ok(wire.Revoked{Tenant: tenant, Subject: wanted.Subject, NotBefore: at}), nil
}
