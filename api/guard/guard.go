// Package guard refuses requests that exceed a limit, before a handler sees them. A Guard counts
// requests by a key in a limiter.Store, which processes may share. Put it in front of any
// http.Handler with Handler, or call Take yourself.
//
// Package api puts guards in front of its intake, see Intake. Anybody may import this package.
package guard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/shaper/limiter"
)

// Guard lets a limiter decide on requests before a handler sees them. It refuses what exceeds the
// limit, where a queue would delay it. Use it for requests that need an answer at once, such as a
// login. Make one with New; it is safe for concurrent use.
type Guard struct {
	store limiter.Store
	cfg   Config
}

// Config is the settings of a Guard. The zero value of a field means its default.
type Config struct {
	// Rule is the limiter. Its name is shown in headers, problems and metrics: 1 to 64 of the
	// characters A-Z a-z 0-9 . _ -
	Rule limiter.Rule
	Key  KeyFunc // returns the key of a request; required, see the functions KeyBy…

	FailClosed bool       // refuse with 503 while the store fails; by default requests pass
	Shadow     bool       // refuse nothing; Observe gets WouldRefuse instead
	Headers    HeaderMode // rate limit headers; default HeadersBoth

	Observe func(Decision) // called with every decision; must be fast and safe for concurrent use
	Logger  *slog.Logger   // logs failures of the store at debug; default slog.Default()
}

// HeaderMode selects the rate limit headers.
type HeaderMode = problem.HeaderMode

// The header modes.
const (
	HeadersIETF   = problem.IETF   // RateLimit-Policy and RateLimit (draft-ietf-httpapi-ratelimit-headers-11)
	HeadersLegacy = problem.Legacy // X-RateLimit-Limit, -Remaining, -Retry-After
	HeadersBoth   = problem.Both   // the default
	HeadersNone   = problem.None
)

// Decision is what a guard decided on a request.
type Decision string

// The decisions.
const (
	Allowed      Decision = "allowed"       // passed, within the limit
	Refused      Decision = "refused"       // answered with 429
	WouldRefuse  Decision = "would_refuse"  // passed, in shadow mode
	FailedOpen   Decision = "failed_open"   // passed, the store failed
	FailedClosed Decision = "failed_closed" // answered with 503, the store failed
)

// Decisions returns all decisions.
func Decisions() []Decision {
	return []Decision{Allowed, Refused, WouldRefuse, FailedOpen, FailedClosed}
}

// Result is the answer of a guard to one or more requests.
type Result struct {
	Decision Decision    // empty if the client was gone before the store answered: the request passes
	Header   http.Header // rate limit headers for the answer, refused or not; may be nil
	// Refusal is nil if the request passes. Otherwise it is the error that the handlers of package
	// api answer as a problem (RFC 9457), with 429 or 503.
	Refusal error
}

// guardPatience bounds the time that a guard waits for its store.
const guardPatience = time.Second

// New makes a guard over a store. It returns an error for invalid settings; those of the policy
// are shaper.Problems.
func New(store limiter.Store, cfg Config) (*Guard, error) {
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
		return nil, fmt.Errorf("guard %q: %w", cfg.Rule.Name, err)
	}
	if cfg.Headers == "" {
		cfg.Headers = problem.Both
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Decision) {}
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Guard{store, cfg}, nil
}

// guardName reports whether a name needs no quoting in a header, a metric and a URL.
func guardName(name string) bool {
	for _, c := range []byte(name) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return false
		}
	}
	return name != "" && len(name) <= 64
}

// Handler puts the guard in front of a handler; it works with net/http and with Use and With of
// chi. A request without a key passes uncounted. A refused request is answered with 429,
// Retry-After and a problem (RFC 9457). Both have rate limit headers.
func (g *Guard) Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key, counted := g.cfg.Key(r); counted {
			result := g.Take(r.Context(), key, 1)
			maps.Copy(w.Header(), result.Header)
			if result.Refusal != nil {
				problem.Of(result.Refusal).Write(w, r)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Take counts n requests of the key at once, n at least 1: all pass or none. It calls Observe once
// for each of them.
func (g *Guard) Take(ctx context.Context, key string, n int) Result {
	result := g.decide(ctx, key, int64(n))
	g.observe(result.Decision, n)
	return result
}

// TakeEach counts n requests of the key as if they came one after the other, with fewer calls of
// the store: the free slots at once, then one more request, which is refused and starts a block if
// the policy has one. passed is how many pass; the result is that of the requests after them.
func (g *Guard) TakeEach(ctx context.Context, key string, n int) (passed int, result Result) {
	for passed < n {
		next := n - passed
		if next > 1 {
			if d, err := g.Ask(ctx, key, 0); err == nil {
				next = int(min(max(d.Remaining, 1), int64(next)))
			}
		}
		result = g.decide(ctx, key, int64(next))
		if result.Decision == Allowed {
			g.observe(Allowed, next)
			passed += next
			continue
		}
		g.observe(result.Decision, n-passed)
		if result.Refusal == nil { // in shadow mode, or the store failed
			return n, result
		}
		return passed, result
	}
	return passed, result
}

// decide asks the store. If the client is gone, nothing was decided.
func (g *Guard) decide(ctx context.Context, key string, cost int64) Result {
	d, err := g.Ask(ctx, key, cost)
	switch {
	case err != nil && ctx.Err() != nil: // the client is gone; the store may be fine
		return Result{}
	case err != nil:
		g.cfg.Logger.Debug("the store of a guard fails", "guard", g.cfg.Rule.Name, "error", err)
		if g.cfg.Shadow || !g.cfg.FailClosed {
			return Result{Decision: FailedOpen}
		}
		p := problem.StorageUnavailable.With("the limit cannot be checked; send the same request again").
			RetryIn(time.Second)
		return Result{Decision: FailedClosed, Refusal: p}
	case d.Allowed:
		return Result{Decision: Allowed, Header: g.headers(d, 0)}
	case g.cfg.Shadow:
		return Result{Decision: WouldRefuse}
	}
	p := problem.RateLimited.With(fmt.Sprintf("%s allows %s", g.cfg.Rule.Name, g.cfg.Rule.Policy.Rate))
	p.Guard = g.cfg.Rule.Name
	seconds := int64(0)
	if cost > d.Limit {
		p.Detail += fmt.Sprintf("; %d at once exceed the limit at any time", cost)
	} else {
		p.RetryAfterMS = max(1, problem.Millis(d.RetryAfter))
		seconds = problem.RetryAfter(d.RetryAfter)
		p.Retry(seconds)
	}
	return Result{Decision: Refused, Header: g.headers(d, seconds), Refusal: p}
}

// Ask counts cost requests of the key and returns the decision of the limiter as it is, without an
// observation. Cost 0 counts nothing. The error is that of the store.
func (g *Guard) Ask(ctx context.Context, key string, cost int64) (limiter.Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, guardPatience)
	defer cancel()
	return g.store.Take(ctx, g.cfg.Rule, key, cost)
}

// observe reports the decision on n requests.
func (g *Guard) observe(d Decision, n int) {
	if d == "" {
		return
	}
	for range n {
		g.cfg.Observe(d)
	}
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
	g.cfg.Headers.Limiter(h, problem.LimiterState{
		Name: g.cfg.Rule.Name, Rate: g.cfg.Rule.Policy.Rate, Limit: d.Limit, Remaining: d.Remaining,
		Next: next, RetryAfter: retryAfter,
	})
	return h
}

// Clear deletes what is counted under a key of the guard, including a block. known reports whether
// anything was counted.
func (g *Guard) Clear(ctx context.Context, key string) (known bool, err error) {
	return g.store.Clear(ctx, g.cfg.Rule, key)
}

// Blocked returns at most limit keys of the guard that are blocked after an overflow, those that
// are free soonest first.
func (g *Guard) Blocked(ctx context.Context, limit int) ([]limiter.Blocked, error) {
	return g.store.Blocked(ctx, g.cfg.Rule, limit)
}
