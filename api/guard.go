package api

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/api/internal/ratelimit"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Guard lets a limiter decide on requests before a handler sees them. It refuses what is too much,
// where the queue lets it wait: it is for what must answer at once, such as a login. Make one with
// NewGuard; it is safe for concurrent use.
type Guard struct {
	store limiter.Store
	cfg   GuardConfig
}

// GuardConfig is the settings of a Guard. The zero value of a field means its default.
type GuardConfig struct {
	// Rule is counted under its name, which headers, problems and metrics show: 1 to 64 of A-Z a-z
	// 0-9 . _ -
	Rule limiter.Rule
	Key  KeyFunc // whose requests are counted together; see the functions KeyBy…

	FailClosed bool       // refuse with 503 while the store cannot be asked; by default requests pass
	Shadow     bool       // let everything pass: Observe is told what would have been refused
	Headers    HeaderMode // rate limit headers; default HeadersBoth

	Observe func(GuardDecision) // told every decision; must be quick and safe for concurrent use
	Logger  *slog.Logger        // told when the store cannot be asked; default slog.Default()
}

// GuardDecision is what became of a request at a guard.
type GuardDecision string

// The decisions.
const (
	GuardAllowed      GuardDecision = "allowed"
	GuardRefused      GuardDecision = "refused"
	GuardWouldRefuse  GuardDecision = "would_refuse"  // in the shadow: it passed
	GuardFailedOpen   GuardDecision = "failed_open"   // the store could not be asked: it passed
	GuardFailedClosed GuardDecision = "failed_closed" // the store could not be asked: 503
)

// guardDecisions are all of them, for metrics.
var guardDecisions = []GuardDecision{GuardAllowed, GuardRefused, GuardWouldRefuse, GuardFailedOpen, GuardFailedClosed}

// guardPatience bounds the time that a guard waits for its store.
const guardPatience = time.Second

// NewGuard makes a guard over a store. It fails when the settings cannot work; those of the policy
// are of type shaper.Problems.
func NewGuard(store limiter.Store, cfg GuardConfig) (*Guard, error) {
	var errs []error
	if store == nil {
		errs = append(errs, errors.New("no store"))
	}
	if cfg.Key == nil {
		errs = append(errs, errors.New("no key"))
	}
	if !guardName(cfg.Rule.Name) {
		errs = append(errs, errors.New("the name must be 1 to 64 of the characters A-Z a-z 0-9 . _ -"))
	}
	if err := cfg.Rule.Policy.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("api: guard %q: %w", cfg.Rule.Name, err)
	}
	if cfg.Headers == "" {
		cfg.Headers = HeadersBoth
	}
	if cfg.Observe == nil {
		cfg.Observe = func(GuardDecision) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Guard{store, cfg}, nil
}

// guardName reports whether a name is at ease in a header, a metric and a URL.
func guardName(name string) bool {
	for _, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

// Handler is the guard before a handler, for net/http and for chi's Use and With. A request without
// a key passes uncounted. A refused one is answered with 429, Retry-After and a problem (RFC 9457);
// rate limit headers stand on both.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key, counted := g.cfg.Key(r); counted {
			_, p, told := g.decide(r.Context(), key, 1)
			for name, values := range told {
				w.Header()[name] = values
			}
			if p != nil {
				p.Write(w)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// decide asks the store for so many requests of the key at once, at least one, and observes what
// became of each. The problem is nil where they may pass; told are the headers of the answer,
// whichever. Where the client is gone nothing was decided, and they pass.
func (g *Guard) decide(ctx context.Context, key string, cost int64) (decision GuardDecision, refusal *problem.Problem, told http.Header) {
	d, err := g.ask(ctx, key, cost)
	switch {
	case err != nil && ctx.Err() != nil: // which says nothing of the store
		return "", nil, nil
	case err != nil:
		g.cfg.Logger.Debug("a guard cannot ask its store", "guard", g.cfg.Rule.Name, "error", err)
		if g.cfg.Shadow || !g.cfg.FailClosed {
			return g.observe(GuardFailedOpen, cost), nil, nil
		}
		p := problem.StorageUnavailable.With("it cannot be told whether the request may pass; send the same one again").RetryIn(time.Second)
		return g.observe(GuardFailedClosed, cost), p, nil
	case d.Allowed:
		return g.observe(GuardAllowed, cost), nil, g.headers(d, 0)
	case g.cfg.Shadow:
		return g.observe(GuardWouldRefuse, cost), nil, nil
	}
	p := problem.RateLimited.With(fmt.Sprintf("%s lets pass %s", g.cfg.Rule.Name, g.cfg.Rule.Policy.Rate))
	p.Guard = g.cfg.Rule.Name
	if cost > d.Limit {
		p.Detail += fmt.Sprintf("; %d at once can never pass", cost)
		return g.observe(GuardRefused, cost), p, g.headers(d, 0)
	}
	p.RetryAfterMS = max(1, ratelimit.Millis(d.RetryAfter))
	seconds := ratelimit.RetryAfter(d.RetryAfter)
	return g.observe(GuardRefused, cost), p.Retry(seconds), g.headers(d, seconds)
}

// ask asks the store; cost 0 is only a question.
func (g *Guard) ask(ctx context.Context, key string, cost int64) (limiter.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, guardPatience)
	defer cancel()
	return g.store.Take(ctx, g.cfg.Rule, key, cost)
}

// observe tells the decision of each of so many requests.
func (g *Guard) observe(d GuardDecision, times int64) GuardDecision {
	for range times {
		g.cfg.Observe(d)
	}
	return d
}

// headers are the rate limit headers of the answer; none in shadow mode. retryAfter is the
// Retry-After of a refusal in seconds, 0 otherwise.
func (g *Guard) headers(d limiter.Decision, retryAfter int64) http.Header {
	h := http.Header{}
	if g.cfg.Shadow {
		return h
	}
	next := d.Reset
	if d.RetryAfter > 0 { // 0 where it is refused for good
		next = d.RetryAfter
	}
	g.cfg.Headers.Limiter(h, ratelimit.Limit{
		Name: g.cfg.Rule.Name, Rate: g.cfg.Rule.Policy.Rate, Limit: d.Limit, Remaining: d.Remaining, Next: next, RetryAfter: retryAfter,
	})
	return h
}

// Clear forgets a key of the guard, and its block with it; it reports whether anything was known of
// the key.
func (g *Guard) Clear(ctx context.Context, key string) (known bool, err error) {
	return g.store.Clear(ctx, g.cfg.Rule, key)
}

// Blocked lists keys of the guard that are blocked after an overflow, those that are free soonest
// first, at most so many.
func (g *Guard) Blocked(ctx context.Context, most int) ([]limiter.Blocked, error) {
	return g.store.Blocked(ctx, g.cfg.Rule, most)
}
