package api

import (
	"context"
	"log/slog"

	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// sweeper changes many jobs of a tenant: those of a filter, a bounded number in one call.
type sweeper interface {
	Purge(ctx context.Context, tenant string, f queue.Filter) (queue.Swept, error)
	ReplayAll(ctx context.Context, tenant string, f queue.Filter, attempts func(queue.Job) int) (queue.Swept, error)
	Note(ctx context.Context, tenant string, entry queue.HistoryEntry) error
	Erase(ctx context.Context, tenant, cursor string) (queue.Erased, error)
}

// purgeTenant is POST /v1/tenants/{tenant}/purge.
func (s *Server) purgeTenant(c *call) (*answer, error) {
	swept, err := s.sweep(c, queue.ActionPurge, codec.Purgeable, s.queue.Purge)
	if err != nil {
		return nil, err
	}
	return ok(codec.Swept(swept)), nil
}

// replayTenant is POST /v1/tenants/{tenant}/replay. A full queue is no error here: some jobs were
// queued before.
func (s *Server) replayTenant(c *call) (*answer, error) {
	swept, err := s.sweep(c, queue.ActionReplay, codec.Replayable,
		func(ctx context.Context, tenant string, f queue.Filter) (queue.Swept, error) {
			return s.queue.ReplayAll(ctx, tenant, f, s.attempts)
		})
	s.metrics.admitted(string(shaper.Admitted), swept.Count) // also those before an error
	if err != nil {
		return nil, err
	}
	if swept.Refusal != nil {
		s.metrics.admission(string(swept.Refusal.Outcome))
	}
	return ok(codec.Swept(swept)), nil
}

// sweep reads tenant and filter and calls do with them. History and log get what it did, also
// before an error.
func (s *Server) sweep(
	c *call, action string, states []queue.ListState,
	do func(context.Context, string, queue.Filter) (queue.Swept, error),
) (queue.Swept, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return queue.Swept{}, err
	}
	f, err := codec.DecodeFilter(c.body, states)
	if err != nil {
		return queue.Swept{}, err
	}
	if err := s.mustKnow(c.r.Context(), tenant); err != nil {
		return queue.Swept{}, err
	}
	if err := s.mustHave(c.r.Context(), tenant, "route", f.Route); err != nil {
		return queue.Swept{}, err
	}
	swept, err := do(c.client, tenant, f)
	f.CreatedBefore = swept.CreatedBefore
	c.note("filter", notedFilter(f))
	c.note("count", swept.Count)
	if len(f.IDs) > queue.NotedIDs {
		c.note("ids", len(f.IDs))
	}
	s.noteSwept(c, tenant, queue.HistoryEntry{Action: action, Filter: &f, Count: swept.Count})
	return swept, err
}

// noted is how the log says what was done to many jobs.
var noted = map[string]string{queue.ActionPurge: "jobs were purged", queue.ActionReplay: "dead jobs were replayed"}

// noteSwept puts a change of many jobs of a tenant into its history and into the log. What was done
// is done, so a history that cannot be written is no error of the request.
func (s *Server) noteSwept(c *call, tenant string, entry queue.HistoryEntry) {
	entry.Actor = changer(c.r)
	f := entry.Filter
	attrs := []slog.Attr{slog.String("tenant", store.EncodeName(tenant)), slog.Int64("count", entry.Count)}
	for _, part := range [][2]string{{"state", string(f.State)}, {"route", f.Route}, {"error", f.Error}} {
		if part[1] != "" {
			attrs = append(attrs, slog.String(part[0], part[1]))
		}
	}
	if len(f.IDs) > 0 {
		attrs = append(attrs, slog.Int("ids", len(f.IDs)))
	}
	attrs = append(attrs, slog.Time("created_before", f.CreatedBefore), slog.String("actor", entry.Actor))
	s.log.LogAttrs(c.r.Context(), slog.LevelInfo, noted[entry.Action], attrs...)
	if entry.Count == 0 {
		return
	}
	if err := s.queue.Note(c.r.Context(), tenant, entry); err != nil {
		s.log.Warn("a purge or replay is missing in the history", "tenant", store.EncodeName(tenant), "error", err)
	}
}

// tenantHistory is GET /v1/tenants/{tenant}/history.
func (s *Server) tenantHistory(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	entries, err := s.queue.History(c.r.Context(), tenant)
	if err != nil {
		return nil, err
	}
	return ok(codec.Changes(entries)), nil
}
