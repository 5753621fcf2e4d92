package api

import (
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
)

// Bounds of one purge of many tenants.
const (
	purgedTenants = 500             // looked at in one step, selected or not
	purgedJobs    = 10_000          // after which it ends
	purgeTime     = 5 * time.Second // after which it ends, once it has purged some
)

// purgeTenants is POST /v1/purge: one step of the purge of all tenants of a selection.
func (s *Server) purgeTenants(c *call) (*answer, error) {
	of, err := codec.DecodeTenantsPurge(c.body)
	if err != nil {
		return nil, err
	}
	if of.Prefix == "" && of.Tier == "" { // nothing is destroyed by omission
		return nil, problem.Invalid("prefix", "string", "must be present, or tier: a purge of many tenants needs a selection")
	}
	if rule := s.tierRule(of.Tier); of.Tier != "" && rule != "" {
		return nil, problem.InvalidValue("tier", "string", of.Tier, rule+"; tenants of a removed tier are selected by prefix")
	}
	cursor, err := codec.OpenCursor(of.Cursor)
	if err != nil {
		return nil, codec.BadCursor()
	}
	began, filter, out := time.Now(), of.Filter, wire.TenantsPurged{}
	for looked := 0; ; {
		page, next, err := s.queue.Scan(c.r.Context(), cursor, queue.ScanPage)
		if errors.Is(err, queue.ErrCursor) {
			return nil, codec.BadCursor()
		}
		if err != nil {
			return nil, err
		}
		if out.More, err = s.purgePage(c, of, page, &filter, &out); err != nil {
			return nil, err
		}
		if !out.More { // else this page again; those that are done have no jobs left
			cursor = next
		}
		looked += len(page)
		if done := out.More || looked >= purgedTenants || time.Since(began) > purgeTime; done || next == "" {
			out.More = out.More || next != ""
			break
		}
		s.rest(c.r.Context(), queue.ScanCost(page)) // others need Redis, too
	}
	if out.More {
		out.Cursor = codec.SealCursor(cursor)
	}
	if rule := s.routeRule(filter.Route); filter.Route != "" && rule != "" {
		out.Note = "route " + rule + "; only jobs of a removed route of this name are selected"
	}
	out.CreatedBefore = codec.UTC(filter.CreatedBefore)
	c.note("filter", filter)
	for name, value := range map[string]any{
		"prefix": of.Prefix, "tier": of.Tier, "count": out.Count, "tenants": out.Tenants, "more": out.More,
	} {
		c.note(name, value)
	}
	if of.DryRun {
		c.unrecorded()
	}
	if out.Count > 0 {
		s.log.LogAttrs(c.r.Context(), slog.LevelInfo, "purged jobs of many tenants", slog.String("prefix", of.Prefix),
			slog.String("tier", of.Tier), slog.Int64("tenants", out.Tenants), slog.Int64("jobs", out.Count),
			slog.String("actor", changer(c.r)))
	}
	return ok(out), nil
}

// purgePage purges or counts the jobs of the selected tenants of a page. It returns true if it ends
// before the last of them.
func (s *Server) purgePage(
	c *call, of codec.TenantsPurgeOf, page []queue.Brief, filter *queue.Filter, out *wire.TenantsPurged,
) (more bool, err error) {
	began := time.Now()
	for _, t := range page {
		if !strings.HasPrefix(t.Name, of.Prefix) || of.Tier != "" && t.Tier != of.Tier || t.Depth+t.Dead == 0 {
			continue
		}
		if of.DryRun {
			out.Tenants, out.Waiting, out.DeadLetters = out.Tenants+1, out.Waiting+t.Depth, out.DeadLetters+t.Dead
			continue
		}
		swept, err := s.queue.Purge(c.r.Context(), t.Name, *filter)
		if err != nil {
			return false, err
		}
		filter.CreatedBefore = swept.CreatedBefore
		if out.Count += swept.Count; swept.Count > 0 && !swept.More {
			out.Tenants++
		}
		if swept.More || out.Count >= purgedJobs || out.Count > 0 && time.Since(began) > purgeTime {
			return true, nil
		}
	}
	return false, nil
}
