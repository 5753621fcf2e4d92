package api

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/api/internal/ratelimit"
	"github.com/7509e464/sluice/api/internal/request"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper/limiter"
)

// IntakeGuard is a guard in front of operations of the intake. A request is asked for by every
// guard that covers it, in their order, until one refuses; what it was counted for before that
// stays counted.
//
// A guard with routes or types, or one that counts by them, counts jobs in the place of requests:
// see guardJobs.
type IntakeGuard struct {
	Rule       limiter.Rule
	By         []GuardBy // what requests are counted by, together; at least one
	Endpoints  []string  // ids of operations, see Endpoints and JobEndpoints; none: all
	Routes     []string  // of the jobs that it counts; none: all
	Types      []string  // the same by their types
	FailClosed bool      // refuse with 503 while the store cannot be asked
	Shadow     bool      // let everything pass, and count what would have been refused
}

// GuardBy is something that requests of the intake are counted by.
type GuardBy string

// What requests are counted by. Guards that need a tenant or a guest are asked once it is known
// whose request it is, the others before that, so that they hold up who tries credentials.
const (
	GuardByTenant   GuardBy = "tenant"   // the tenant; of a guest that is its address
	GuardByGuest    GuardBy = "guest"    // the same of guests alone: who shows a credential is not counted
	GuardByEndpoint GuardBy = "endpoint" // the operation
	GuardByAddress  GuardBy = "address"  // the client's address
	GuardByRoute    GuardBy = "route"    // the job's route
	GuardByType     GuardBy = "type"     // the job's type, which clients choose
)

// GuardBys are all of them.
func GuardBys() []GuardBy {
	return []GuardBy{GuardByTenant, GuardByGuest, GuardByEndpoint, GuardByAddress, GuardByRoute, GuardByType}
}

// Endpoints are the ids of the operations that guards may stand before.
func Endpoints() []string {
	var ids []string
	for _, op := range contract.Jobs(0) {
		ids = append(ids, op.Id)
	}
	return ids
}

// intakeGuard is one at work.
type intakeGuard struct {
	*Guard
	of         IntakeGuard
	ofJobs     bool // it counts jobs
	identified bool // it needs to know whose request it is
	guests     bool // there are some; without authentication nobody is known for one
	address    func(*http.Request) (string, bool)
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
	decisions := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_guard_decisions_total", Help: "Requests and jobs that guards decided on, by guard and decision; would_refuse is of guards in the shadow.",
	}, []string{"guard", "decision"})
	var guards []*intakeGuard
	var errs []error
	names := map[string]bool{}
	for _, of := range cfg.Guards {
		name := of.Rule.Name
		if names[name] {
			errs = append(errs, fmt.Errorf("api: guard %q is there twice", name))
		}
		names[name] = true
		counters := map[GuardDecision]prometheus.Counter{}
		for _, d := range guardDecisions {
			counters[d] = decisions.WithLabelValues(name, string(d))
		}
		// The key is made by intakeGuard.key, which knows whose request it is.
		g, err := NewGuard(cfg.Limits, GuardConfig{
			Rule: of.Rule, Key: KeyByPath, FailClosed: of.FailClosed, Shadow: of.Shadow, Headers: cfg.Headers, Logger: cfg.Logger,
			Observe: func(d GuardDecision) { counters[d].Inc() },
		})
		errs = append(errs, err, of.validate(cfg.Routes))
		if slices.Contains(of.By, GuardByGuest) && cfg.Auth != nil && !cfg.Auth.Takes(auth.Guest) {
			errs = append(errs, fmt.Errorf("api: guard %q counts guests, and none are taken", name))
		}
		guards = append(guards, &intakeGuard{
			Guard: g, of: of, address: address, guests: cfg.Auth != nil, ofJobs: of.CountsJobs(), identified: slices.Contains(of.By, GuardByTenant) || slices.Contains(of.By, GuardByGuest),
		})
	}
	if cfg.Registerer != nil && errors.Join(errs...) == nil {
		errs = append(errs, cfg.Registerer.Register(decisions))
	}
	return guards, errors.Join(errs...)
}

func (of IntakeGuard) validate(routes map[string]RouteInfo) error {
	var errs []error
	if len(of.By) == 0 {
		errs = append(errs, fmt.Errorf("api: guard %q: counts by nothing", of.Rule.Name))
	}
	for _, by := range of.By {
		if !slices.Contains(GuardBys(), by) {
			errs = append(errs, fmt.Errorf("api: guard %q: counts by %q, which is nothing", of.Rule.Name, by))
		}
	}
	for _, id := range of.Endpoints {
		switch {
		case !slices.Contains(Endpoints(), id):
			errs = append(errs, fmt.Errorf("api: guard %q: there is no operation %q", of.Rule.Name, id))
		case of.CountsJobs() && !slices.Contains(JobEndpoints(), id):
			errs = append(errs, fmt.Errorf("api: guard %q: counts jobs, and the operation %q brings none", of.Rule.Name, id))
		}
	}
	for _, name := range of.Routes {
		if _, known := routes[name]; !known {
			errs = append(errs, fmt.Errorf("api: guard %q: there is no route %q", of.Rule.Name, name))
		}
	}
	return errors.Join(errs...)
}

func (g *intakeGuard) covers(operation string) bool {
	return len(g.of.Endpoints) == 0 || slices.Contains(g.of.Endpoints, operation)
}

// key is what the request is counted under, or the job that it brings.
func (g *intakeGuard) key(r *http.Request, operation string, who *auth.Principal, job queue.Submission) (key string, counted bool) {
	parts := make([]string, len(g.of.By))
	for i, by := range g.of.By {
		switch by {
		case GuardByEndpoint:
			parts[i] = operation
		case GuardByAddress:
			if parts[i], counted = g.address(r); !counted {
				return "", false
			}
		case GuardByGuest:
			if !g.guests || !auth.IsGuest(*who) {
				return "", false
			}
			parts[i] = who.Tenant
		case GuardByTenant:
			parts[i] = who.Tenant
		case GuardByRoute:
			parts[i] = job.Route
		case GuardByType:
			parts[i] = job.Type
		}
	}
	return joinKeys(parts), true
}

// guard asks the guards that cover the operation: while nobody knows whose request it is those that
// need not, then the others. The error is the refusal.
func (s *Server) guard(r *http.Request, operation string, who *auth.Principal) error {
	for _, g := range s.guards {
		if g.ofJobs || g.identified != (who != nil) || !g.covers(operation) {
			continue
		}
		key, counted := g.key(r, operation, who, queue.Submission{})
		if !counted {
			continue
		}
		if _, p, told := g.decide(r.Context(), key, 1); p != nil {
			maps.Copy(p.Header, told)
			return p
		}
	}
	return nil
}

// guardRefusals are the problems that the operation may be answered with because of guards.
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
			Guard: g.of.Rule.Name, Algorithm: string(p.Algorithm), Rate: wire.RateOf(p.Rate), Limit: p.Limit(), BlockMS: p.Block.Milliseconds(),
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

// guardOf is the guard that the path names.
func (s *Server) guardOf(c *call) (*intakeGuard, error) {
	name := c.param("guard")
	for _, g := range s.guards {
		if g.of.Rule.Name == name {
			return g, nil
		}
	}
	return nil, problem.UnknownGuard.With("see /v1/guards for those there are")
}

// listBlocked is GET /v1/guards/{guard}/blocked.
func (s *Server) listBlocked(c *call) (*answer, error) {
	limit, err := request.PageLimit(c.r.URL.Query(), contract.DefaultPage, contract.MaxPage)
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
		out.Items[i] = wire.BlockedKey{Key: strings.ToValidUTF8(k.Key, "\ufffd"), LeftMS: max(1, ratelimit.Millis(k.Left))}
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
		return nil, problem.UnknownGuard.With("the guard knows nothing of this key")
	}
	return &answer{status: http.StatusNoContent}, nil
}
