package api

import (
	"context"
	"maps"
	"slices"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper"
)

// This file refuses names of routes, tiers and pools that are misspelt. Only operators get the list
// of the known names.

// routeRule is the rule for the name of a route; empty for a configured one.
func (s *Server) routeRule(name string) string {
	if _, known := s.cfg.Routes[name]; known {
		return ""
	}
	return shaper.OneOf("the routes: ", name, slices.Sorted(maps.Keys(s.cfg.Routes)))
}

// tierRule is the rule for the name of a tier; empty for one of the file in force.
func (s *Server) tierRule(name string) string {
	tiers := s.queue.Tiers()
	if slices.Contains(tiers, name) {
		return ""
	}
	return shaper.OneOf("the tiers: ", name, tiers)
}

// ofPool serves an operation on the pool in the path.
func (s *Server) ofPool(handle handler) handler {
	return func(c *call) (*answer, error) {
		name, pools := c.param("pool"), s.queue.Pools()
		if !slices.Contains(pools, name) {
			return nil, problem.UnknownPool.With(shaper.OneOf("the pools of the configuration file: ", name, pools))
		}
		return handle(c)
	}
}

// mustHave refuses a route by which jobs of a tenant are selected, unless it is configured or the
// tenant has something of it: a route that was removed may still have jobs.
func (s *Server) mustHave(ctx context.Context, tenant, field, route string) error {
	rule := s.routeRule(route)
	if route == "" || rule == "" {
		return nil
	}
	t, err := s.queue.Tenant(ctx, tenant)
	if _, has := t.Routes[route]; err != nil || has {
		return err
	}
	return problem.UnknownRouteAt(field, route, rule+"; the tenant has no jobs of a removed route of this name")
}
