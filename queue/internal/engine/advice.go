package engine

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/7509e464/sluice/queue/internal/store"
)

// mistakes are errors of the start that a retry does not cure: the text of the error, with
// alternatives, and what to do. The scheme is the part of the URL's behind "+", empty for any.
var mistakes = []struct{ scheme, text, advice string }{
	{"cluster", "cluster support disabled", "it is no cluster: use redis:// instead of redis+cluster://"},
	{"sentinel", "unknown command", "it is no Sentinel: use redis:// instead of redis+sentinel://, or the " +
		"address of a Sentinel"},
	{"sentinel", "No such master", "Sentinel knows no master of that name: set ?master_name= in redis.url"},
	{"plain", "READONLY|role:slave", "it is a replica: use the address of the master, or redis+sentinel://"},
	{"plain", "MOVED |redis_mode:cluster",
		"it is a node of a cluster: use redis+cluster:// instead of redis://"},
	{"plain", "redis_mode:sentinel",
		"it is a Sentinel: use redis+sentinel:// with ?master_name= instead of redis://"},
	{"", "NOAUTH", "it wants a password: set it in redis.url (SLUICE_REDIS_URL), as in " +
		"redis://user:password@host:6379"},
	{"", "WRONGPASS", "it refuses the user or the password in redis.url (SLUICE_REDIS_URL)"},
	{"", "NOPERM|The user executing the script can't|ACL failure in script",
		"its user lacks a right that Sluice needs: give it ~sluice:* ~asynq:* &sluice:* &asynq:* and the commands"},
	{"", "DENIED", "it is in protected mode: give it a password, or bind it to loopback"},
	{"", "x509:", "its certificate is not trusted: add its CA to those of the system (SSL_CERT_FILE), " +
		"and use the name that the certificate is for"},
	{"", "tls:", "the TLS handshake failed: rediss:// needs a port that speaks TLS, " +
		"and a certificate that both sides accept"},
	{"", "unknown command", "it lacks a command that Sluice needs, or has renamed it"},
}

// Advise wraps a mistake of the operator in ErrNoEngine, with the text of what to do. It returns
// any other error as it is.
func (e *Engine) Advise(err error) error {
	if err == nil || e.scheme == "" {
		return err
	}
	_, scheme, _ := strings.Cut(e.scheme, "+")
	scheme = cmp.Or(scheme, "plain")
	text := err.Error()
	for _, m := range mistakes {
		contains := func(part string) bool { return strings.Contains(text, part) }
		if (m.scheme == "" || m.scheme == scheme) && slices.ContainsFunc(strings.Split(m.text, "|"), contains) {
			return fmt.Errorf("%w: %s (%s)", ErrNoEngine, m.advice, text)
		}
	}
	return err
}

// leastRedis is the oldest version that has every command the scripts use (ZADD GT).
var leastRedis = []int{6, 2}

// check refuses a Redis that would lose jobs, and returns its version. A Redis with a plain URL
// must be neither a node of a cluster nor a replica.
func (e *Engine) check(ctx context.Context, o Options) (version string, err error) {
	info, err := e.Patient.Info(ctx, "everything").Result()
	if err != nil {
		return "", store.Unavailable(err)
	}
	fields := infoFields(info)
	version = fields["redis_version"]
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
