package engine

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/internal/store"
)

// Advise wraps a mistake of the operator in ErrNoEngine, with the text of what to do. It returns
// any other error as it is.
func (e *Engine) Advise(err error) error {
	if err == nil || e.scheme == "" {
		return err
	}
	_, kind, _ := strings.Cut(e.scheme, "+")
	if advice := store.Advice(cmp.Or(kind, "plain"), err); advice != "" {
		return fmt.Errorf("%w at %s: %s (%s)", ErrNoEngine, e.address, advice, err.Error()) // it may wrap ErrUnavailable
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

// supported refuses a version that lacks what the scripts need.
func supported(version string) error {
	if slices.Compare(numbersOf(version), leastRedis) < 0 { // no number: 0, which is too old
		return fmt.Errorf("%w: version %s is too old, %d.%d or newer is needed",
			ErrUnsafe, version, leastRedis[0], leastRedis[1])
	}
	return nil
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
	if err := supported(version); err != nil {
		return version, err
	}
	for _, mode := range []string{"redis_mode:cluster", "redis_mode:sentinel", "role:slave"} {
		if !strings.Contains(e.scheme, "+") && strings.Contains(info, mode) {
			return version, fmt.Errorf("INFO reports %s", mode) // one of the mistakes
		}
	}
	e.Version = version
	if err := e.checkRights(ctx); err != nil {
		return version, err
	}
	e.warnOfCoverage(ctx, o)
	e.unsafe, err = e.findUnsafe(ctx, o)
	switch {
	case err != nil:
		return version, store.Unavailable(err)
	case e.unsafe == "":
		return version, store.Unavailable(e.CheckReplicas(ctx))
	case o.AllowUnsafe:
		o.Logger.Warn("this redis may lose jobs", "problems", e.unsafe)
		return version, nil
	}
	return version, fmt.Errorf("%w: %s (or accept the loss: redis.allow_unsafe, in Go AllowUnsafe)", ErrUnsafe, e.unsafe)
}

// warnOfCoverage warns of a cluster in which one dead master stops the tenants of all. Where
// CONFIG is denied, it does not know.
func (e *Engine) warnOfCoverage(ctx context.Context, o Options) {
	if !strings.HasSuffix(e.scheme, "+cluster") {
		return
	}
	const setting = "cluster-require-full-coverage"
	var required atomic.Bool
	_ = store.EachMaster(ctx, e.Patient, func(ctx context.Context, c scripts.Client) error {
		settings, err := c.(interface {
			ConfigGet(context.Context, string) *redis.MapStringStringCmd
		}).ConfigGet(ctx, setting).Result()
		if err == nil && settings[setting] == "yes" {
			required.Store(true)
		}
		return nil
	})
	if required.Load() {
		o.Logger.Warn("a master that is down stops the tenants of all masters until a replica takes over: set "+
			setting+" no on each node", setting, "yes")
	}
}

// findUnsafe returns why a master may lose jobs and what to set, empty where none does.
func (e *Engine) findUnsafe(ctx context.Context, o Options) (string, error) {
	var mu sync.Mutex
	var problems []string
	err := store.EachMaster(ctx, e.Patient, func(ctx context.Context, c scripts.Client) error {
		node, subject := c.(*redis.Client), "it"
		if e.Patient != redis.UniversalClient(node) {
			subject = "master " + node.Options().Addr
		}
		info, err := node.Info(ctx).Result()
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		problems = append(problems, unsafe(subject, infoFields(info))...)
		return nil
	})
	if err == nil && e.Durability.On() {
		var more []string
		more, err = e.checkDurable(ctx, o)
		problems = append(problems, more...)
	}
	slices.Sort(problems)
	return strings.Join(problems, "; "), err
}

// unsafe returns why a master may lose jobs, by its answer to INFO. While it loads its append-only
// file, that is said to be off.
func unsafe(subject string, fields map[string]string) (problems []string) {
	if policy := fields["maxmemory_policy"]; policy != "noeviction" && policy != "" {
		problems = append(problems, fmt.Sprintf(
			"%s evicts keys when memory is full (maxmemory-policy %s): set maxmemory-policy noeviction", subject, policy))
	}
	if fields["aof_enabled"] != "1" && fields["loading"] != "1" {
		problems = append(problems, subject+" has no append-only file, so a restart loses jobs: set appendonly yes")
	}
	return problems
}

// recheckEvery is how often the settings of the masters are read. Another may have taken over.
const recheckEvery = 5 * time.Second

// recheck reads the settings of the masters now and then, until ctx ends. It logs what has become
// unsafe. Nothing can be refused then: the jobs are there.
func (e *Engine) recheck(ctx context.Context, o Options) {
	log := o.Logger
	o.Logger = slog.New(slog.DiscardHandler) // of what the start has logged
	for known := e.unsafe; sleep(ctx, recheckEvery) == nil; {
		found, err := e.findUnsafe(ctx, o)
		if err != nil {
			continue // others report that Redis is away
		}
		if found != "" && found != known {
			log.Error("redis has changed and may lose jobs", "problems", found)
		}
		known = found
	}
}
