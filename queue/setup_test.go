package queue_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
)

// TestMistakesEndTheStart: what no further attempt mends is no outage, and the error says what to
// set.
func TestMistakesEndTheStart(t *testing.T) {
	t.Parallel()
	port := func(t *testing.T) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return strings.TrimPrefix(l.Addr().String(), "127.0.0.1:")
	}
	for name, tt := range map[string]struct {
		args  []string
		setUp [][]any
		url   string // with the port for PORT
		want  string
	}{
		"cluster URL":  {nil, nil, "redis+cluster://127.0.0.1:PORT", "use redis:// instead"},
		"sentinel URL": {nil, nil, "redis+sentinel://127.0.0.1:PORT?master_name=m", "use redis:// instead"},
		"no password": {
			[]string{"--requirepass", "secret"}, nil, "redis://127.0.0.1:PORT", "set it in redis.url",
		},
		"wrong password": {
			[]string{"--requirepass", "secret"}, nil, "redis://:hunter2@127.0.0.1:PORT",
			"user or the password",
		},
		"node of a cluster": {
			[]string{"--cluster-enabled", "yes"}, nil, "redis://127.0.0.1:PORT", "redis+cluster://",
		},
		"replica": {
			nil, [][]any{{"replicaof", "127.0.0.1", "1"}}, "redis://127.0.0.1:PORT", "address of the master",
		},
		"no INFO": {
			nil, [][]any{{"acl", "setuser", "u", "on", ">p", "~*", "&*", "+@all", "-info"}},
			"redis://u:p@127.0.0.1:PORT", "lacks a right",
		},
		"no scripts": {
			nil, [][]any{{"acl", "setuser", "u", "on", ">p", "~*", "&*", "+@all", "-script"}},
			"redis://u:p@127.0.0.1:PORT", "lacks a right",
		},
		"no keys": {
			nil, [][]any{{"acl", "setuser", "u", "on", ">p", "~other:*", "&*", "+@all"}},
			"redis://u:p@127.0.0.1:PORT", "lacks a right",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := port(t)
			s := redistest.Start(t, append([]string{"--bind", "127.0.0.1", "--port", p}, tt.args...)...)
			opt, err := redis.ParseURL(s.URL())
			if err != nil {
				t.Fatal(err)
			}
			admin := redis.NewClient(opt)
			defer admin.Close()
			for _, cmd := range tt.setUp {
				if err := admin.Do(t.Context(), cmd...).Err(); err != nil {
					t.Fatal(err)
				}
			}
			e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
				URL: strings.Replace(tt.url, "PORT", p, 1), AllowUnsafe: true, Logger: slog.New(slog.DiscardHandler),
			})
			if err == nil {
				_, err = queue.Open(t.Context(), e, queue.Options{})
				_ = e.Close()
			}
			if err == nil || errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want it to end the start with %q", err, tt.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the error has the password: %v", err)
			}
		})
	}
}

// TestUnknownCAEndsTheStart: so does a certificate that is not trusted.
func TestUnknownCAEndsTheStart(t *testing.T) {
	t.Parallel()
	s := httptest.NewUnstartedServer(nil)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	_, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
		URL: "rediss://" + s.Listener.Addr().String(), Logger: slog.New(slog.DiscardHandler),
	})
	if err == nil || errors.Is(err, queue.ErrUnavailable) || !strings.Contains(err.Error(), "SSL_CERT_FILE") {
		t.Errorf("%v, want it to end the start and name SSL_CERT_FILE", err)
	}
}

// hanging forwards connections to a server, until those that are there hang.
type hanging struct {
	net.Listener
	mu     sync.Mutex
	socket string // of the server
	conns  []*hangingConn
}

// hangingConn discards all writes once stuck is closed.
type hangingConn struct {
	net.Conn
	stuck      chan struct{}
	subscribed atomic.Bool
}

func (c *hangingConn) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("subscribe")) {
		c.subscribed.Store(true)
	}
	select {
	case <-c.stuck:
		return len(p), nil
	default:
		return c.Conn.Write(p)
	}
}

func newHanging(t *testing.T, socket string) *hanging {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hanging{Listener: l, socket: socket}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			h.mu.Lock()
			socket := h.socket
			h.mu.Unlock()
			out, err := net.Dial("unix", socket)
			if err != nil {
				_ = in.Close()
				continue
			}
			c := &hangingConn{Conn: in, stuck: make(chan struct{})}
			h.mu.Lock()
			h.conns = append(h.conns, c)
			h.mu.Unlock()
			running.Go(func() { _, _ = io.Copy(out, in); _ = out.Close() })
			running.Go(func() { _, _ = io.Copy(c, out); _ = in.Close() })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		h.mu.Lock()
		for _, c := range h.conns {
			_ = c.Close()
		}
		h.mu.Unlock()
		running.Wait()
	})
	return h
}

// hang lets all connections that are there hang.
func (h *hanging) hang() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, c := range h.conns {
		close(c.stuck)
	}
	h.conns = nil
}

// move has new connections lead to another server. Those of subscriptions stay and still work, as
// with a former master that is cut off from the rest.
func (h *hanging) move(socket string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.socket = socket
	for _, c := range h.conns {
		if !c.subscribed.Load() {
			_ = c.Close()
		}
	}
}

// TestWakesLeaveAHangingConnection: workers are not deaf for as long as the node hangs that their
// subscription is with.
func TestWakesLeaveAHangingConnection(t *testing.T) {
	t.Parallel()
	wakesAgain(t, func(h *hanging) { h.hang() })
}

// TestWakesLeaveAFormerMaster: nor for as long as a master goes on that was replaced.
func TestWakesLeaveAFormerMaster(t *testing.T) {
	t.Parallel()
	other := redistest.Start(t)
	wakesAgain(t, func(h *hanging) { h.move(strings.TrimPrefix(other.URL(), "unix://")) })
}

// wakesAgain checks that wake-ups come again after something has befallen the connections.
func wakesAgain(t *testing.T, befall func(*hanging)) {
	t.Helper()
	s := redistest.Start(t)
	h := newHanging(t, strings.TrimPrefix(s.URL(), "unix://"))
	e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
		URL: "redis://" + h.Addr().String(), AllowUnsafe: true, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(t.Context(), e, queue.Options{Shards: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = errors.Join(q.Close(), e.Close()) }()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	wakes := q.Broker().Wakes(ctx)
	next := func(what string) queue.Wake {
		t.Helper()
		select {
		case w := <-wakes:
			return w
		case <-time.After(10 * time.Second):
			t.Fatalf("no wake-up %s", what)
			return queue.Wake{}
		}
	}
	if w := next("at the start"); w.Shard != queue.AllShards {
		t.Errorf("the first wake-up is %+v", w)
	}
	befall(h)
	began := time.Now()
	if w := next("after the connections broke"); w.Shard != queue.AllShards {
		t.Errorf("the wake-up after a new subscription is %+v", w)
	}
	t.Logf("workers were deaf for %v", time.Since(began))
	consumer := q.Broker().Consumer("w", 0)
	for w := (queue.Wake{Shard: queue.AllShards}); w.Shard != 0; w = next("by the shard") {
		queuetest.Await(t, "a wake-up is published", func() bool { return consumer.Resign(ctx) == nil })
	}
	cancel()
	for range wakes {
		continue
	}
}

// TestMistakesWhileItRuns: the error says what to set also where a running process loses its
// rights.
func TestMistakesWhileItRuns(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	admin := client(t, s.URL())
	set := func(rights ...any) {
		t.Helper()
		if err := admin.Do(t.Context(), append([]any{"acl", "setuser", "u"}, rights...)...).Err(); err != nil {
			t.Fatal(err)
		}
	}
	set("on", ">p", "~*", "&*", "+@all")
	q := open(t, queue.EngineOptions{URL: strings.Replace(s.URL(), "://", "://u:p@", 1)}, defaults)
	if err := q.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	set("-script", "-evalsha")
	if advice := queue.Advice(q.Ping(t.Context())); !strings.Contains(advice, "lacks a right") {
		t.Errorf("without the right to scripts the advice is %q", advice)
	}
	_, err := q.Submit(t.Context(), work())
	if advice := queue.Advice(err); !errors.Is(err, queue.ErrUnavailable) || !strings.Contains(advice, "lacks a right") {
		t.Errorf("Submit: %v, and the advice is %q", err, advice)
	}
	s.Kill()
	if err := q.Ping(t.Context()); err == nil || queue.Advice(err) != "" {
		t.Errorf("an outage: %v, and the advice is %q", err, queue.Advice(err))
	}
}

// TestSentinelURL: the user and the password before the @ are those of Redis, as in other URLs.
func TestSentinelURL(t *testing.T) {
	t.Parallel()
	_, port := redistest.StartTCP(t, "--requirepass", secret)
	at := redistest.StartSentinel(t, "main", port)
	attempt := func(url string) error {
		e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{URL: url, Logger: slog.New(slog.DiscardHandler)})
		if err == nil {
			err = e.Close()
		}
		return err
	}
	await(t, "the sentinel answers", func() bool { return attempt("redis+sentinel://:"+secret+"@"+at+"?master_name=main") == nil })
	for url, want := range map[string]string{
		"redis+sentinel://" + at + "?master_name=main":                      "it wants a password",
		"redis+sentinel://:wrong@" + at + "?master_name=main":               "refuses the user or the password",
		"redis+sentinel://:" + secret + "@" + at + "?master_name=elsewhere": "?master_name=",
	} {
		if err := attempt(url); !errors.Is(err, queue.ErrNoEngine) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestFullCoverageIsWarnedOf: with the default of Redis, one dead master of a cluster stops the
// tenants of all masters.
func TestFullCoverageIsWarnedOf(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	for _, value := range []string{"yes", "no"} {
		c.ConfigSet(t.Context(), "cluster-require-full-coverage", value)
		var log bytes.Buffer
		e, err := queue.OpenEngine(t.Context(), queue.EngineOptions{
			URL: c.URL(), AllowUnsafe: true, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = e.Close()
		if warned := strings.Contains(log.String(), "set cluster-require-full-coverage no"); warned != (value == "yes") {
			t.Errorf("%s: warned: %v\n%s", value, warned, log.String())
		}
	}
}
