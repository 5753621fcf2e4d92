package store

import (
	"slices"
	"strings"
)

// mistakes are errors that a retry does not cure: the text of the error, with alternatives, and
// what to do. kind is cluster, sentinel or plain at the start with such a URL, or running, or empty
// for all.
var mistakes = []struct{ kind, text, advice string }{
	{"cluster", "cluster support disabled", "it is no cluster: use redis:// instead of redis+cluster://"},
	{"sentinel", "unknown command", "it is no Sentinel: use redis:// instead of redis+sentinel://, or the " +
		"address of a Sentinel"},
	{"sentinel", "No such master|are unreachable: redis: nil",
		"Sentinel knows no master of that name: set ?master_name= in redis.url"},
	{"sentinel", "are unreachable: WRONGPASS|are unreachable: NOAUTH", "Sentinel refuses the user or the password, " +
		"which are not those of Redis: set ?sentinel_username= and ?sentinel_password= in redis.url"},
	{"plain", "READONLY|role:slave", "it is a replica: use the address of the master, or redis+sentinel://"},
	{"plain", "MOVED |redis_mode:cluster",
		"it is a node of a cluster: use redis+cluster:// instead of redis://"},
	{"plain", "redis_mode:sentinel",
		"it is a Sentinel: use redis+sentinel:// with ?master_name= instead of redis://"},
	{"running", "READONLY", "it is a replica, which is right for the seconds of a failover only: use the address of " +
		"the master, or redis+sentinel://"},
	{"running", "MOVED ", "it has become a node of a cluster: use redis+cluster:// instead of redis://"},
	{"running", "LOADING ", "it reads its data after a start: wait until INFO reports loading:0"},
	{"running", "OOM ", "it has reached its maxmemory: raise that, or purge what is stored"},
	{"running", "MISCONF ", "it cannot write to its disk and so accepts no writes: see its log, and free space there"},
	{"running", "BUSY |UNKILLABLE ", "a script of another program keeps it busy: SCRIPT KILL ends one that has not " +
		"written"},
	{"running", "NOREPLICAS ", "its master has fewer replicas in sync than min-replicas-to-write: connect them, or " +
		"lower that"},
	{"running", "MASTERDOWN ", "it is a replica that has lost its master: use the address of the master"},
	{"running", "CLUSTERDOWN ", "no master that is up has this slot, and the others serve theirs only with " +
		"cluster-require-full-coverage no: see CLUSTER INFO"},
	{"running", "max number of clients", "all of its connections are in use: raise maxclients, or end other clients"},
	{"", "redis: invalid reply|redis: can't parse", "what answers there is not Redis, or speaks TLS: correct the host " +
		"and the port in redis.url, or use rediss://"},
	{"", "NOAUTH|Protocol error: unauthenticated", "it wants a password: set it in redis.url (SLUICE_REDIS_URL), as in " +
		"redis://user:password@host:6379"},
	{"", "WRONGPASS", "it refuses the user or the password in redis.url (SLUICE_REDIS_URL)"},
	{"", "NOPERM|The user executing the script can't|ACL failure in script",
		"its user lacks a right that Sluice needs: give it ~sluice:* ~asynq:* &sluice:* &asynq:* and the commands " +
			"that docs/redis.md lists under Rights"},
	{"", "DENIED", "it is in protected mode: give it a password, or bind it to loopback"},
	{"", "certificate required|remote error: tls: bad cert|remote error: tls: unknown cert|remote error: tls: expired cert",
		"it demands a client certificate that it trusts: set ?tls_cert= and ?tls_key= in redis.url"},
	{"", "x509:", "its certificate is not trusted: set ?tls_ca= in redis.url to the file of its CA, or add the CA " +
		"to those of the system (SSL_CERT_FILE), and use the name that the certificate is for"},
	{"", "tls:", "the TLS handshake failed: rediss:// needs a port that speaks TLS, " +
		"and a certificate that both sides accept"},
	{"", "unknown command|Unknown Redis command", "it lacks a command that Sluice needs, or has renamed it"},
}

// Advice says what to do about a mistake of the operator, and returns "" for any other error. kind
// is that of mistakes.
func Advice(kind string, err error) string {
	text := err.Error()
	for _, m := range mistakes {
		contains := func(part string) bool { return strings.Contains(text, part) }
		if (m.kind == "" || m.kind == kind) && slices.ContainsFunc(strings.Split(m.text, "|"), contains) {
			return m.advice
		}
	}
	return ""
}
