package api

import (
	"context"
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/api/wire"
)

// pingTimeout is shorter than what probes usually allow.
const pingTimeout = time.Second

// livez is GET /livez: the process runs.
func (s *Server) livez(*call) (*answer, error) { return ok(wire.Health{Status: "ok"}), nil }

// readyz is GET /readyz: the server accepts work.
func (s *Server) readyz(c *call) (*answer, error) {
	if s.isDraining() {
		return nil, problem.ShuttingDown.With("no new work is accepted").Retry(1)
	}
	ctx, cancel := context.WithTimeout(c.r.Context(), pingTimeout)
	defer cancel()
	if err := s.backend.Ping(ctx); err != nil {
		p := problem.StorageUnavailable.With("the store does not answer, or its scripts are not loaded").Retry(1)
		s.log.Debug("not ready", "error", err)
		return nil, p
	}
	h := wire.Health{Status: "ok"}
	if !s.backend.Agreement().InForce {
		h.Detail = "the policies of this process's configuration file are not in force: another process " +
			"has since applied others"
	}
	return ok(h), nil
}

// version is GET /version.
func (s *Server) version(*call) (*answer, error) {
	v := s.cfg.Version
	return ok(wire.Version{Version: v.Version, Commit: v.Commit, Go: v.Go}), nil
}
