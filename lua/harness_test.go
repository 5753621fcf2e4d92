package lua_test

import (
	"context"
	"flag"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"go.uber.org/goleak"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/internal/store"
)

// TestMain fixes the seed of the random histories, so that a run tells of the change it tests and
// not of its luck. `make soak` and SLUICE_PARITY_STEPS look further, with a seed of their own.
// SLUICE_TEST_HISTORIES is how many histories each search draws, 100 where it is not set.
func TestMain(m *testing.M) {
	flag.Parse()
	seed := flag.Lookup("rapid.seed")
	if seed.Value.String() == "0" && os.Getenv("SLUICE_PARITY_STEPS") == "" {
		if err := seed.Value.Set("3"); err != nil {
			panic(err)
		}
	}
	if n := os.Getenv("SLUICE_TEST_HISTORIES"); n != "" {
		if err := flag.Set("rapid.checks", n); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

// engine is a Redis that belongs to one test.
type engine struct {
	*redis.Client
	keys store.Keyspace
}

// shards is how many independent places an engine has; every history takes one of its own and
// leaves it empty.
const shards = 1024

func connect(t *testing.T, opt *redis.Options) engine {
	opt.DisableIdentity = true
	opt.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	opt.ReadTimeout, opt.WriteTimeout = 20*time.Second, 20*time.Second
	opt.MaxRetries = -1 // a history decides itself what is sent again
	e := engine{redis.NewClient(opt), store.NewKeyspace(shards)}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("close the client: %v", err)
		}
	})
	return e
}

// realEngine starts a redis-server without a log on disk, which no test of this package needs.
func realEngine(t *testing.T, args ...string) engine {
	server := redistest.Start(t, append([]string{"--appendonly", "no"}, args...)...)
	return connect(t, &redis.Options{Network: "unix", Addr: strings.TrimPrefix(server.URL(), "unix://")})
}

// embeddedEngine starts the engine inside this process.
func embeddedEngine(t *testing.T) engine {
	m := miniredis.NewMiniRedis()
	t.Cleanup(m.Close)
	return connect(t, &redis.Options{Dialer: func(context.Context, string, string) (net.Conn, error) {
		c, err := m.Dial()
		if err != nil {
			return nil, err
		}
		return newEager(c), nil
	}})
}

// eager is a connection whose writes do not wait for the other side to read. The embedded engine's
// pipes hold nothing: with the engine answering the start of a pipeline and the client still
// writing the rest of it, each would wait for the other for ever.
type eager struct {
	net.Conn
	mu      sync.Mutex
	changed *sync.Cond
	waiting []byte
	err     error // set once writes fail
}

func newEager(c net.Conn) *eager {
	e := &eager{Conn: c}
	e.changed = sync.NewCond(&e.mu)
	go e.pump()
	return e
}

// pump writes what waits, until the connection is closed.
func (e *eager) pump() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.err == nil {
		if len(e.waiting) == 0 {
			e.changed.Wait()
			continue
		}
		some := e.waiting
		e.waiting = nil
		e.mu.Unlock()
		_, err := e.Conn.Write(some)
		e.mu.Lock()
		if e.err == nil {
			e.err = err
		}
	}
}

func (e *eager) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil {
		return 0, e.err
	}
	e.waiting = append(e.waiting, b...)
	e.changed.Signal()
	return len(b), nil
}

func (e *eager) Close() error {
	e.mu.Lock()
	if e.err == nil {
		e.err = net.ErrClosed
	}
	e.changed.Signal()
	e.mu.Unlock()
	return e.Conn.Close()
}

// engines are the two kinds of Redis that every script must serve.
var engines = []struct {
	name  string
	start func(*testing.T) engine
}{
	{"redis", func(t *testing.T) engine { return realEngine(t) }},
	{"embedded", embeddedEngine},
}
