package api

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// States that a filter may name.
var (
	purgeable  = []queue.ListState{queue.ListQueued, queue.ListScheduled, queue.ListRetrying, queue.ListDead}
	replayable = []queue.ListState{queue.ListDead}
)

// purgeTenant is POST /v1/tenants/{tenant}/purge.
func (s *Server) purgeTenant(c *call) (*answer, error) {
	swept, err := s.sweep(c, purgeable, s.backend.Purge)
	if err != nil {
		return nil, err
	}
	return ok(sweptOut(swept)), nil
}

// replayTenant is POST /v1/tenants/{tenant}/replay. That a job finds no place is no error here:
// others came back before it.
func (s *Server) replayTenant(c *call) (*answer, error) {
	swept, err := s.sweep(c, replayable, func(ctx context.Context, tenant string, f queue.Filter) (queue.Swept, error) {
		return s.backend.ReplayAll(ctx, tenant, f, s.attempts)
	})
	s.metrics.admitted(string(shaper.Admitted), swept.Count) // also of what was done before an error
	if err != nil {
		return nil, err
	}
	if swept.Refusal != nil {
		s.metrics.admission(string(swept.Refusal.Outcome))
	}
	return ok(sweptOut(swept)), nil
}

// sweep reads tenant and filter and hands them to do.
func (s *Server) sweep(c *call, states []queue.ListState, do func(context.Context, string, queue.Filter) (queue.Swept, error)) (queue.Swept, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return queue.Swept{}, err
	}
	f, err := decodeFilter(c.body, states)
	if err != nil {
		return queue.Swept{}, err
	}
	if err := s.mustKnow(c.r.Context(), tenant); err != nil {
		return queue.Swept{}, err
	}
	return do(c.r.Context(), tenant, f)
}

func sweptOut(swept queue.Swept) wire.Swept {
	out := wire.Swept{Count: swept.Count, More: swept.More, CreatedBefore: utc(swept.CreatedBefore)}
	if a := swept.Refusal; a != nil {
		out.Stopped = queueFull.name
		switch a.Outcome {
		case shaper.Draining:
			out.Stopped = tenantDraining.name
		case shaper.FullOfBytes:
			out.Stopped = queueBytesFull.name
		}
		out.RetryAfterMS = wholeMillis(a.RetryAfter)
	}
	return out
}

// decodeFilter reads the optional body of purge and replay. What is given must restrict the choice:
// a list of no ids, or an instant before all jobs, must not come to mean every job.
func decodeFilter(body []byte, states []queue.ListState) (f queue.Filter, err error) {
	return f, decodeOptional(body, func(rd *reader, name, path string, value json.RawMessage) bool {
		switch name {
		case "ids":
			n := rd.array(path, value, func(_ int, path string, value json.RawMessage) {
				var id string
				if kindOf(value) != "string" || json.Unmarshal(value, &id) != nil || !plausibleID(id) {
					rd.wrong(path, value, "must be the id of a job")
				}
				if len(f.IDs) < wire.MaxFilterIDs {
					f.IDs = append(f.IDs, id)
				}
			})
			if n == 0 || n > wire.MaxFilterIDs {
				rd.wrong(path, value, fmt.Sprintf("must have 1 to %d elements", wire.MaxFilterIDs))
			}
		case "state":
			f.State = rd.state(path, value, states)
		case "route":
			f.Route = rd.text(path, value, 1, wire.MaxTypeBytes)
		case "error":
			f.Error = rd.text(path, value, 1, wire.MaxErrorBytes)
		case "created_before":
			f.CreatedBefore = rd.instant(path, value)
		default:
			return false
		}
		return true
	})
}

// state reads one of the states.
func (rd *reader) state(path string, value json.RawMessage, states []queue.ListState) (s queue.ListState) {
	if kindOf(value) != "string" || json.Unmarshal(value, &s) != nil || !slices.Contains(states, s) {
		rd.wrong(path, value, "must be one of "+strings.Join(stateNames(states), ", "))
	}
	return s
}

// instant reads a time of RFC 3339. With an offset, one of the year 9999 may be of the next in UTC,
// which could not be told again.
func (rd *reader) instant(path string, value json.RawMessage) (t time.Time) {
	if kindOf(value) != "string" || json.Unmarshal(value, &t) != nil || !isInstant(t) {
		rd.wrong(path, value, instantRule)
	}
	return t
}

const instantRule = "must be a time after 1970 in RFC 3339, in UTC before the year 10000, such as 2026-01-02T15:04:05Z"

// isInstant reports whether the time is one that a client may give, and can be told again.
func isInstant(t time.Time) bool { return t.Unix() > 0 && !t.After(lastTime) }

// tenantHistory is GET /v1/tenants/{tenant}/history.
func (s *Server) tenantHistory(c *call) (*answer, error) {
	tenant, err := pathTenant(c)
	if err != nil {
		return nil, err
	}
	entries, err := s.backend.History(c.r.Context(), tenant)
	if err != nil {
		return nil, err
	}
	out := wire.History{Items: make([]wire.HistoryEntry, len(entries))}
	for i, e := range entries {
		out.Items[i] = wire.HistoryEntry{
			At: utc(e.At), Revision: e.Revision, Actor: e.Actor, Action: e.Action, Reason: e.Reason, Before: wire.OverridesOf(e.Before), After: wire.OverridesOf(e.After),
		}
	}
	return ok(out), nil
}
