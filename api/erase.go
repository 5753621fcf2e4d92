package api

import (
	"log/slog"

	"github.com/7509e464/sluice/api/client/wire"
)

// eraseTenant is POST /v1/tenants/{tenant}/erase: one step. Audit and log have what each removed.
func (s *Server) eraseTenant(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	e, err := s.queue.Erase(c.r.Context(), tenant, c.r.URL.Query().Get("cursor"))
	if err != nil {
		return nil, err
	}
	out := wire.Erased{
		Jobs: e.Jobs, Answers: e.Answers, Callbacks: e.Callbacks, IdempotencyKeys: e.IdempotencyKeys, Keys: e.Keys,
		CallbackSecrets: e.CallbackSecrets, Revocations: e.Revocations, Settings: e.Settings, History: e.History, Flows: e.Flows, Running: e.Running, More: e.More, Cursor: e.Cursor,
	}
	if !e.More && s.cfg.EraseTasks != nil {
		if out.Tasks, err = s.cfg.EraseTasks(c.r.Context(), tenant); err != nil {
			return nil, err
		}
	}
	c.note("removed", out)
	s.log.LogAttrs(c.r.Context(), slog.LevelInfo, "a step of the erasure of a tenant", slog.String("tenant", tenant),
		slog.Any("removed", out))
	return ok(out), nil
}
