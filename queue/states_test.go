package queue_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// outage is a queue of one shard that a test takes through states in which Redis cannot serve.
type outage struct {
	*testing.T
	*queue.Queue
	metrics  *prometheus.Registry
	log      *bytes.Buffer
	consumer *queue.Consumer
}

func newOutage(t *testing.T, url string) *outage {
	t.Helper()
	o := &outage{T: t, metrics: prometheus.NewRegistry(), log: &bytes.Buffer{}}
	logger := slog.New(slog.NewTextHandler(o.log, nil))
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: url, AllowUnsafe: true, Logger: logger})
	if err != nil {
		t.Fatal(err)
	}
	o.Queue, err = queue.Open(t.Context(), e, queue.Options{
		Shards: 1, Defaults: perSecond(1000), Registerer: o.metrics, Logger: logger,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(o.Close(), e.Close()) })
	o.consumer = o.Broker().Consumer("w", 0)
	return o
}

// pass leases a job, begins the state, and checks that nothing that fails then is called damage.
// After the end of the state, the lease is still current. advice is a part of what the log says.
func (o *outage) pass(begin, end func(), want, advice string) {
	o.Helper()
	admit(o.T, o.Queue)
	leases := leaseAll(o.T, o.consumer)
	ends := make([]queue.Settlement, len(leases))
	refs := make([]queue.LeaseRef, len(leases))
	for i, l := range leases {
		refs[i], ends[i] = l.LeaseRef, queue.Settlement{LeaseRef: l.LeaseRef, MaxAttempts: 3, Event: shaper.Succeed}
	}
	begin()
	no := func(call string, err error) {
		o.Helper()
		if err != nil && !errors.Is(err, queue.ErrUnavailable) {
			o.Errorf("%s: %v, want ErrUnavailable", call, err)
		}
	}
	var err error
	queuetest.Await(o, "a submission to fail: "+want, func() bool {
		_, err = o.Submit(o.Context(), work())
		no("Submit", err)
		return o.Failed() || queue.FaultOf(err) == queue.FaultState
	})
	if err == nil || !errors.Is(err, queue.ErrState) || !strings.Contains(err.Error(), want) {
		o.Errorf("%v, want %q", err, want)
	}
	if got := queue.Advice(err); !strings.Contains(got, advice) || (advice == "") != (got == "") {
		o.Errorf("advice %q on %v, want %q", got, err, advice)
	}
	_, err = o.Broker().Settle(o.Context(), ends)
	no("Settle", err)
	_, err = o.Broker().Extend(o.Context(), refs, time.Minute)
	no("Extend", err)
	_, err = o.consumer.Tick(o.Context(), looking)
	no("Tick", err)
	_, err = o.Tenant(o.Context(), "acme")
	no("Tenant", err)
	end()
	queuetest.Await(o, "a submission after "+want, func() bool {
		_, err := o.Submit(o.Context(), work())
		return err == nil
	})
	results, err := o.Broker().Settle(o.Context(), ends)
	for _, r := range results {
		if err != nil || r != queue.Settled && r != queue.Repeated {
			o.Errorf("after %s: %s, %v", want, r, err)
		}
	}
	for name, n := range scrape(o.T, o.metrics) {
		damage := strings.HasPrefix(name, "sluice_script_errors_total script ")
		if n > 0 && (damage || name == "sluice_script_duration_seconds repair") {
			o.Errorf("%s: %s is %v\n%s", want, name, n, o.log)
		}
	}
}

// TestStatesOfRedis: states of a real server are outages, with advice, and repair nothing.
func TestStatesOfRedis(t *testing.T) {
	t.Parallel()
	type commands = [][]any
	user := func(rules ...any) []any { return append([]any{"acl", "setuser", "u"}, rules...) }
	kill := []any{"client", "kill", "type", "normal"}
	for name, tt := range map[string]struct {
		args         []string
		begin, end   commands
		want, advice string
	}{
		"a password": {
			nil, commands{{"config", "set", "requirepass", "x"}, kill}, commands{{"config", "set", "requirepass", ""}},
			"unauthenticated multibulk length", "wants a password",
		},
		"another password": {
			nil, commands{user("resetpass", ">other"), kill}, commands{user("resetpass", ">p")},
			"WRONGPASS", "refuses the user",
		},
		"no right":        {nil, commands{user("-evalsha")}, commands{user("+evalsha")}, "NOPERM", "lacks a right"},
		"no right within": {nil, commands{user("-hset")}, commands{user("+hset")}, "script", "lacks a right"},
		"a replica":       {nil, commands{{"replicaof", "127.0.0.1", "1"}}, commands{{"replicaof", "no", "one"}}, "READONLY", "a replica"},
		"a lost master": {
			[]string{"--replica-serve-stale-data", "no"}, commands{{"replicaof", "127.0.0.1", "1"}},
			commands{{"replicaof", "no", "one"}}, "MASTERDOWN", "lost its master",
		},
		"too few replicas": {
			nil, commands{{"config", "set", "min-replicas-to-write", 1}},
			commands{{"config", "set", "min-replicas-to-write", 0}}, "NOREPLICAS", "min-replicas-to-write",
		},
		"no memory": {
			nil, commands{{"config", "set", "maxmemory", 1}}, commands{{"config", "set", "maxmemory", 0}}, "OOM", "maxmemory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, tt.args...)
			admin := client(t, s.URL()).Conn()
			do := func(list commands) func() {
				return func() {
					for _, cmd := range list {
						if err := admin.Do(t.Context(), cmd...).Err(); err != nil {
							t.Errorf("%v: %v", cmd, err)
						}
					}
				}
			}
			url := s.URL()
			if strings.Contains(fmt.Sprint(tt.begin), "setuser") {
				do(commands{user("on", ">p", "~*", "&*", "+@all")})()
				url = strings.Replace(url, "unix://", "unix://u:p@", 1)
			}
			newOutage(t, url).pass(do(tt.begin), do(tt.end), tt.want, tt.advice)
		})
	}
	t.Run("a script", func(t *testing.T) {
		t.Parallel()
		s := redistest.Start(t, "--lua-time-limit", "1")
		o, admin, other := newOutage(t, s.URL()), client(t, s.URL()), client(t, s.URL()+"?read_timeout=-1&max_retries=-1")
		var running sync.WaitGroup
		begin := func() {
			running.Go(func() { other.Eval(t.Context(), "while true do end", nil) })
		}
		o.pass(begin, func() { admin.ScriptKill(t.Context()) }, "BUSY", "SCRIPT KILL")
		_ = other.Close()
		running.Wait()
	})
	t.Run("no disk", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "d")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		s := redistest.Start(t, "--dir", dir, "--save", "3600 1", "--appendonly", "no")
		o, admin := newOutage(t, s.URL()), client(t, s.URL())
		begin := func() {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
			queuetest.Await(t, "a copy to fail", func() bool {
				admin.BgSave(t.Context())
				return strings.Contains(admin.Info(t.Context(), "persistence").Val(), "rdb_last_bgsave_status:err")
			})
		}
		o.pass(begin, func() { admin.ConfigSet(t.Context(), "stop-writes-on-bgsave-error", "no") }, "MISCONF", "disk")
	})
}

// TestAnswersOfRedis: so are all other answers that Redis 6.2 to 8, Valkey, and what stands before
// them may give, known or not.
func TestAnswersOfRedis(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	l := newSpeaking(t, strings.TrimPrefix(s.URL(), "unix://"))
	o := newOutage(t, "redis://"+l.Addr().String())
	for text, advice := range map[string]string{
		"NOAUTH Authentication required.":                                                                         "wants a password",
		"ERR Protocol error: unauthenticated bulk length":                                                         "wants a password",
		"WRONGPASS invalid username-password pair or user is disabled.":                                           "refuses the user",
		"LOADING Redis is loading the dataset in memory":                                                          "loading:0",
		"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.":                  "SCRIPT KILL",
		"UNKILLABLE Sorry the script already executed write commands against the dataset.":                        "SCRIPT KILL",
		"MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.":                        "lost its master",
		"MISCONF Errors writing to the AOF file: No space left on device":                                         "disk",
		"CLUSTERDOWN Hash slot not served":                                                                        "CLUSTER INFO",
		"TRYAGAIN Multiple keys request during rehashing of slot":                                                 "",
		"MOVED 3999 127.0.0.1:6381":                                                                               "redis+cluster://",
		"ASK 3999 127.0.0.1:6381":                                                                                 "",
		"CROSSSLOT Keys in request don't hash to the same slot":                                                   "",
		"UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)":            "",
		"NOSCRIPT No matching script. Please use EVAL.":                                                           "",
		"ERR max number of clients reached":                                                                       "maxclients",
		"ERR max number of clients + cluster connections reached":                                                 "maxclients",
		"EXECABORT Transaction discarded because of previous errors.":                                             "",
		"ERR DISABLED by the operator of this service":                                                            "",
		"ERR unknown command 'EVALSHA', with args beginning with: ":                                               "lacks a command",
		"ERR Unknown Redis command called from script script: 2b5c, on @user_script:7.":                           "lacks a command",
		"ERR Error running script (call to f_2b5c): @user_script:7: Unknown Redis command called from Lua script": "lacks a command",
		"NOGOODSLAVE No suitable replica to promote":                                                              "",
		"BUSYKEY Target key name already exists.":                                                                 "",
		"NOQUORUM Not enough good replicas to write":                                                              "",
		"DENIED Redis is running in protected mode":                                                               "protected mode",
		"ERR backend is unavailable":                                                                              "",
		"PROXYERR upstream failure":                                                                               "",
	} {
		o.pass(func() { l.text.Store(&text) }, func() { l.text.Store(nil) }, text, advice)
	}
}

// speaking forwards commands to a server. While its text is set, it answers each with that error.
type speaking struct {
	net.Listener
	text atomic.Pointer[string]
}

func newSpeaking(t *testing.T, socket string) *speaking {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &speaking{Listener: l}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", socket)
			if err != nil {
				_ = in.Close()
				continue
			}
			running.Go(func() { _, _ = io.Copy(in, out); _ = in.Close() })
			running.Go(func() { s.serve(in, out); _ = out.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return s
}

func (s *speaking) serve(in, out net.Conn) {
	for r := bufio.NewReader(in); ; {
		command, err := readCommand(r)
		if err != nil {
			return
		}
		if text := s.text.Load(); text != nil {
			_, err = in.Write([]byte("-" + *text + "\r\n"))
		} else {
			_, err = out.Write(command)
		}
		if err != nil {
			return
		}
	}
}

// readCommand reads one command as it was sent.
func readCommand(r *bufio.Reader) (raw []byte, err error) {
	number := func() int {
		line, failed := r.ReadBytes('\n')
		raw, err = append(raw, line...), errors.Join(err, failed)
		n, _ := strconv.Atoi(strings.TrimSpace(string(line[min(1, len(line)):])))
		return n
	}
	for range number() {
		argument := make([]byte, number()+len("\r\n"))
		if err != nil {
			return nil, err
		}
		_, err = io.ReadFull(r, argument)
		raw = append(raw, argument...)
	}
	return raw, err
}

// TestAnotherServer: what is no Redis ends the start, with its address.
func TestAnotherServer(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.NotFoundHandler())
	defer s.Close()
	address := s.Listener.Addr().String()
	for _, scheme := range []string{"redis", "redis+cluster"} {
		_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
			URL: scheme + "://" + address, Logger: slog.New(slog.DiscardHandler),
		})
		if err == nil || errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "is not Redis") ||
			!strings.Contains(err.Error(), address) {
			t.Errorf("%s: %v, want it to end the start", scheme, err)
		}
	}
}
