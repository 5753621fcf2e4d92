package queue_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/limitertest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// oneByOne lets no other command in between the two sendings of twice.
type oneByOne struct {
	twice
	mu *sync.Mutex
}

func (o oneByOne) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	both := o.twice.ProcessHook(next)
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() != "evalsha" {
			return next(ctx, cmd) // that of a new connection comes in between
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		return both(ctx, cmd)
	}
}

func TestLimitsConformance(t *testing.T) {
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			limitertest.Run(t, func(t *testing.T) limiter.Store {
				return open(t, options(t), defaults).Limits()
			})
		})
	}
}

// TestLimitsConformanceSentTwice runs the suite where every script is sent twice: nothing is
// counted twice.
func TestLimitsConformanceSentTwice(t *testing.T) {
	limitertest.Run(t, func(t *testing.T) limiter.Store {
		return open(t, lent(t), defaults, oneByOne{mu: new(sync.Mutex)}).Limits()
	})
}

// TestLimitsForget: all that is kept of a key has a time to live, and nothing of its text is in the
// name of a Redis key.
func TestLimitsForget(t *testing.T) {
	options := lent(t)
	l := open(t, options, defaults).Limits()
	e, err := queue.OpenEngine(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = e.Close() }()
	for _, a := range limiter.Algorithms() {
		r := limiter.Rule{
			Name:   "a rule}",
			Policy: limiter.Policy{Algorithm: a, Rate: shaper.Rate{Limit: 2, Period: time.Minute}},
		}
		if a == limiter.SlidingLog {
			r.Policy.Block = time.Minute
		}
		for range 3 {
			if _, err := l.Take(t.Context(), r, "tenant text", 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	keys, err := e.Client().Keys(t.Context(), "sluice:*limit*").Result()
	if err != nil {
		t.Fatal(err)
	}
	lists, err := e.Client().Keys(t.Context(), "sluice:*blocked*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) != len(limiter.Algorithms())+1 || len(lists) != 1 {
		t.Errorf("%q and %q", keys, lists)
	}
	for _, key := range slices.Concat(keys, lists) {
		left, err := e.Client().PTTL(t.Context(), key).Result()
		if err != nil || left <= 0 || left > 2*time.Minute+11*time.Second {
			t.Errorf("%s lives for %v (%v)", key, left, err)
		}
		if strings.Contains(key, "tenant") || strings.Contains(key, "rule") {
			t.Errorf("text in a key: %s", key)
		}
	}
}

// TestLimitsWithoutRedis: every error tells that the store is away.
func TestLimitsWithoutRedis(t *testing.T) {
	server := redistest.Start(t)
	l := open(t, queue.EngineOptions{URL: server.URL()}, defaults).Limits()
	server.Kill()
	r := limiter.Rule{
		Name: "r",
		Policy: limiter.Policy{
			Algorithm: limiter.TokenBucket, Rate: shaper.Rate{Limit: 2, Period: time.Minute},
		},
	}
	_, taken := l.Take(t.Context(), r, "k", 1)
	_, cleared := l.Clear(t.Context(), r, "k")
	_, listed := l.Blocked(t.Context(), r, 1)
	for what, err := range map[string]error{"Take": taken, "Clear": cleared, "Blocked": listed} {
		if !errors.Is(err, queue.ErrUnavailable) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
