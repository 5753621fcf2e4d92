package api

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/queue"
)

// intakeGuard is a guard in front of the intake.
type intakeGuard struct {
	*guard.Guard
	of         guard.Intake
	ofJobs     bool // counts jobs, not requests
	identified bool // needs the tenant
	guests     bool // there is authentication, so that guests are known
	address    func(*http.Request) (string, bool)
	network    func(*http.Request) (string, bool)
}

// newIntakeGuards makes the guards and registers their metric, if there are any.
func newIntakeGuards(cfg Config) ([]*intakeGuard, error) {
	if len(cfg.Guards) == 0 {
		return nil, nil
	}
	address, err := auth.ClientAddress(cfg.TrustedProxies...)
	if err != nil {
		return nil, err
	}
	network, err := auth.ClientNetwork(cfg.TrustedProxies...)
	if err != nil {
		return nil, err
	}
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_guard_decisions_total",
		Help: "Decisions of guards on requests and jobs, by guard and decision; would_refuse is a refusal " +
			"in shadow mode.",
	}, []string{"guard", "decision"})
	var guards []*intakeGuard
	var errs []error
	names := map[string]bool{}
	for _, of := range cfg.Guards {
		name := of.Rule.Name
		if names[name] {
			errs = append(errs, fmt.Errorf("duplicate guard %q", name))
		}
		names[name] = true
		counters := map[guard.Decision]prometheus.Counter{}
		for _, d := range guard.Decisions() {
			counters[d] = decisions.WithLabelValues(name, string(d))
		}
		// The guard's own key is unused: intakeGuard.key knows the tenant and the job.
		g, err := guard.New(cfg.Limits, guard.Config{
			Rule: of.Rule, Key: guard.KeyByPath, FailClosed: of.FailClosed, Shadow: of.Shadow,
			Headers: cfg.Headers, Logger: cfg.Logger,
			Observe: func(d guard.Decision) { counters[d].Inc() },
		})
		errs = append(errs, err, of.Validate(func(route string) bool {
			_, known := cfg.Routes[route]
			return known
		}))
		if slices.Contains(of.By, guard.ByGuest) && cfg.Auth != nil && !cfg.Auth.Takes(auth.Guest) {
			errs = append(errs, fmt.Errorf("guard %q: counts guests, but authentication accepts none", name))
		}
		guards = append(guards, &intakeGuard{
			Guard: g, of: of, address: address, network: network, guests: cfg.Auth != nil, ofJobs: of.CountsJobs(),
			identified: slices.Contains(of.By, guard.ByTenant) || slices.Contains(of.By, guard.ByGuest),
		})
	}
	if cfg.Registerer != nil && errors.Join(errs...) == nil {
		errs = append(errs, cfg.Registerer.Register(decisions))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("api: %w", err)
	}
	return guards, nil
}

func (g *intakeGuard) covers(operation string) bool {
	return len(g.of.Endpoints) == 0 || slices.Contains(g.of.Endpoints, operation)
}

// key is the key under which the request, or the job in it, is counted.
func (g *intakeGuard) key(
	r *http.Request, operation string, who *auth.Principal, job queue.Submission,
) (key string, counted bool) {
	parts := make([]string, len(g.of.By))
	for i, by := range g.of.By {
		switch by {
		case guard.ByEndpoint:
			parts[i] = operation
		case guard.ByAddress:
			if parts[i], counted = g.address(r); !counted {
				return "", false
			}
		case guard.ByNetwork:
			if parts[i], counted = g.network(r); !counted {
				return "", false
			}
		case guard.ByGuest:
			if !g.guests || !auth.IsGuest(*who) {
				return "", false
			}
			parts[i] = who.Tenant
		case guard.ByTenant:
			parts[i] = who.Tenant
		case guard.ByRoute:
			parts[i] = job.Route
		case guard.ByType:
			parts[i] = job.Type
		}
	}
	return guard.JoinKeys(parts), true
}

// guard returns the refusal of the guards that cover the operation, nil if the request passes. With
// who nil it asks the guards that do not need the tenant, otherwise those that do.
func (s *Server) guard(r *http.Request, operation string, who *auth.Principal) error {
	for _, g := range s.guards {
		if g.ofJobs || g.identified != (who != nil) || !g.covers(operation) {
			continue
		}
		key, counted := g.key(r, operation, who, queue.Submission{})
		if !counted {
			continue
		}
		if result := g.Take(r.Context(), key, 1); result.Refusal != nil {
			return refusedBy(result)
		}
	}
	return nil
}

// refusedBy is the problem of a refusal, with the rate limit headers; nil if there is none.
func refusedBy(result guard.Result) *problem.Problem {
	if result.Refusal == nil {
		return nil
	}
	p := problem.Of(result.Refusal)
	for name, values := range result.Header {
		p.SetHeader(name, values[0])
	}
	return p
}

// guardRefusals are the kinds of problems that guards may answer for the operation.
func (s *Server) guardRefusals(operation string) []problem.Kind {
	if slices.ContainsFunc(s.guards, func(g *intakeGuard) bool { return g.covers(operation) }) {
		return []problem.Kind{problem.RateLimited, problem.StorageUnavailable}
	}
	return nil
}

// listGuards is GET /v1/guards.
func (s *Server) listGuards(*call) (*answer, error) {
	out := wire.GuardList{Items: make([]wire.Guard, len(s.guards))}
	for i, g := range s.guards {
		p := g.of.Rule.Policy
		item := wire.Guard{
			Guard: g.of.Rule.Name, Algorithm: string(p.Algorithm), Rate: p.Rate,
			Limit: p.Limit(), BlockMS: p.Block.Milliseconds(),
			Endpoints: g.of.Endpoints, Routes: g.of.Routes, Types: g.of.Types, OnError: "open", Shadow: g.of.Shadow,
		}
		for _, by := range g.of.By {
			item.By = append(item.By, string(by))
		}
		if g.of.FailClosed {
			item.OnError = "closed"
		}
		out.Items[i] = item
	}
	return ok(out), nil
}

// guardOf is the guard named in the path.
func (s *Server) guardOf(c *call) (*intakeGuard, error) {
	name := c.param("guard")
	for _, g := range s.guards {
		if g.of.Rule.Name == name {
			return g, nil
		}
	}
	return nil, problem.UnknownGuard.With("GET /v1/guards lists the guards")
}

// listBlocked is GET /v1/guards/{guard}/blocked.
func (s *Server) listBlocked(c *call) (*answer, error) {
	limit, err := codec.PageLimit(c.r.URL.Query(), contract.DefaultPage, contract.MaxPage)
	if err != nil {
		return nil, err
	}
	g, err := s.guardOf(c)
	if err != nil {
		return nil, err
	}
	keys, err := g.Blocked(c.r.Context(), limit)
	if err != nil {
		return nil, err
	}
	out := wire.BlockedList{Items: make([]wire.BlockedKey, len(keys))}
	for i, k := range keys {
		out.Items[i] = wire.BlockedKey{
			Key: strings.ToValidUTF8(k.Key, "\ufffd"), LeftMS: max(1, problem.Millis(k.Left)),
		}
	}
	return ok(out), nil
}

// clearBlocked is DELETE /v1/guards/{guard}/blocked/{blocked}.
func (s *Server) clearBlocked(c *call) (*answer, error) {
	g, err := s.guardOf(c)
	if err != nil {
		return nil, err
	}
	key := c.param("blocked")
	if !utf8.ValidString(key) || len(key) > contract.MaxSmallBody {
		return nil, problem.Invalid("path.blocked", "string", "must be UTF-8")
	}
	known, err := g.Clear(c.r.Context(), key)
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, problem.UnknownGuard.With("the guard has counted nothing under this key")
	}
	return &answer{status: http.StatusNoContent}, nil
}
