package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/7509e464/sluice/queue/internal/store"
)

// Advise wraps a mistake of the operator in ErrNoEngine, with the text of what to do. It returns
// any other error as it is.
func (e *Engine) Advise(err error) error {
	if err == nil || e.scheme == "" {
		return err
	}
	_, kind, _ := strings.Cut(e.scheme, "+")
	if advice := store.Advice(cmp.Or(kind, "plain"), err); advice != "" {
		return fmt.Errorf("%w: %s (%s)", ErrNoEngine, advice, err.Error()) // it may wrap ErrUnavailable
	}
	return err
}

// leastRedis is the oldest version that has every command the scripts use (ZADD GT).
var leastRedis = []int{6, 2}

// productOf returns the name and the version of the server that has answered INFO. Valkey names the
// last compatible version of Redis as well.
func productOf(info map[string]string) (name, version string) {
	if version := info["valkey_version"]; version != "" {
		return "valkey", version
	}
	return "redis", info["redis_version"]
}

// check refuses a Redis that would lose jobs, and returns its version. A Redis with a plain URL
// must be neither a node of a cluster nor a replica.
func (e *Engine) check(ctx context.Context, o Options) (version string, err error) {
	info, err := e.Patient.Info(ctx, "everything").Result()
	if err != nil {
		return "", store.Unavailable(err)
	}
	fields := infoFields(info)
	e.product, version = productOf(fields)
	if slices.Compare(numbersOf(version), leastRedis) < 0 { // no number: 0, which is too old
		return version, fmt.Errorf("%w: version %s is too old, %d.%d or newer is needed",
			ErrUnsafe, version, leastRedis[0], leastRedis[1])
	}
	for _, mode := range []string{"redis_mode:cluster", "redis_mode:sentinel", "role:slave"} {
		if !strings.Contains(e.scheme, "+") && strings.Contains(info, mode) {
			return version, fmt.Errorf("INFO reports %s", mode) // one of the mistakes
		}
	}
	var problems []string
	if policy := fields["maxmemory_policy"]; policy != "noeviction" && policy != "" {
		problems = append(problems, fmt.Sprintf(
			"it evicts keys when memory is full (maxmemory-policy %s): set maxmemory-policy noeviction", policy))
	}
	if fields["aof_enabled"] != "1" {
		problems = append(problems, "it has no append-only file, so a restart loses jobs: set appendonly yes")
	}
	if e.Durability.On() {
		e.Version = version
		more, err := e.checkDurable(ctx, o)
		if err == nil && len(more) == 0 {
			err = e.CheckReplicas(ctx)
		}
		if err != nil {
			return version, store.Unavailable(err)
		}
		problems = append(problems, more...)
	}
	if len(problems) == 0 {
		return version, nil
	}
	if o.AllowUnsafe {
		o.Logger.Warn("this redis may lose jobs", "problems", strings.Join(problems, "; "))
		return version, nil
	}
	return version, fmt.Errorf("%w: %s (or accept the loss with redis.allow_unsafe: true)",
		ErrUnsafe, strings.Join(problems, "; "))
}
