package queue

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// mistakes are errors of the start that a retry does not mend: what the text of the error contains,
// with alternatives, and what to do. The scheme is that of the URL, empty for any.
var mistakes = []struct{ scheme, text, advice string }{
	{"cluster", "cluster support disabled", "it is no cluster: use redis:// instead of redis+cluster://"},
	{"sentinel", "unknown command", "it is no Sentinel: use redis:// instead of redis+sentinel://, or the address of a Sentinel"},
	{"sentinel", "No such master", "Sentinel knows no master of that name: set ?master_name= in redis.url"},
	{"plain", "READONLY|role:slave", "it is a replica: use the address of the master, or redis+sentinel://"},
	{"plain", "MOVED |redis_mode:cluster", "it is a node of a cluster: use redis+cluster:// instead of redis://"},
	{"plain", "redis_mode:sentinel", "it is a Sentinel: use redis+sentinel:// with ?master_name= instead of redis://"},
	{"", "NOAUTH", "it wants a password: set it in redis.url (SLUICE_REDIS_URL), as in redis://user:password@host:6379"},
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

// setup wraps a mistake in ErrNoEngine with what to do, and returns any other error as it is.
func (e *Engine) setup(err error) error {
	if err == nil || e.kind != EngineRedis {
		return err
	}
	_, scheme, _ := strings.Cut(e.scheme, "+")
	scheme = cmp.Or(scheme, "plain")
	text := err.Error()
	for _, m := range mistakes {
		said := func(part string) bool { return strings.Contains(text, part) }
		if (m.scheme == "" || m.scheme == scheme) && slices.ContainsFunc(strings.Split(m.text, "|"), said) {
			return fmt.Errorf("%w: %s (%s)", ErrNoEngine, m.advice, text)
		}
	}
	return err
}
