package callback

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/worker/internal/outbound"
)

// Config is the settings of a Service. The zero value of a field means its default.
type Config struct {
	Redis redis.UniversalClient // where asynq keeps the tasks; it stays the caller's to close
	Guard *Guard
	// Secrets are Standard Webhooks secrets, "whsec_" and base64, the newest first. A request is signed
	// with each of them, so that receivers may move from one to the next; without any it is not signed.
	Secrets     []string
	Job         func(queue.Job) ([]byte, error) // the job as JSON, as clients see it
	Timeout     time.Duration                   // of one attempt; default 10s
	MaxAttempts int                             // at least 2, see validate; default 15, which take about a day
	Concurrency int                             // attempts at once; default 64
	Grace       time.Duration                   // how long running attempts may take to end after the stop; default 10s
	Registerer  prometheus.Registerer           // nil: metrics are not registered
	Logger      *slog.Logger                    // default slog.Default()
}

func (c Config) withDefaults() Config {
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.MaxAttempts = cmp.Or(c.MaxAttempts, 15)
	c.Concurrency = cmp.Or(c.Concurrency, 64)
	c.Grace = cmp.Or(c.Grace, 10*time.Second)
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c
}

// validate lists every setting that breaks a rule; the defaults are filled in by then.
func (c Config) validate() error {
	var ps shaper.Problems
	check := func(ok bool, field string, value any, rule string) {
		if !ok {
			ps = append(ps, shaper.Problem{Field: field, Value: fmt.Sprint(value), Rule: rule})
		}
	}
	check(c.Redis != nil, "redis", nil, "must be set")
	check(c.Guard != nil, "guard", nil, "must be set")
	check(c.Job != nil, "job", nil, "must be set")
	for i, secret := range c.Secrets {
		check(outbound.ValidSecret(secret), fmt.Sprintf("secrets[%d]", i), "(hidden)", "must be whsec_ and base64")
	}
	check(c.Timeout > 0, "timeout", c.Timeout, "must be positive")
	// asynq archives a task without retries when its server crashes.
	check(c.MaxAttempts >= 2, "max_attempts", c.MaxAttempts, "must be at least 2")
	check(c.Concurrency > 0, "concurrency", c.Concurrency, "must be positive")
	check(c.Grace > 0, "grace", c.Grace, "must be positive")
	return ps.Err()
}
