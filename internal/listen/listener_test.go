package listen

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// limited is a server on loopback with a bound on its connections. A request to /hold is answered
// when release is closed.
type limited struct {
	t       *testing.T
	l       *Listener
	release chan struct{}
	held    chan struct{} // one element for each request to /hold
}

// with are an Identity, for TLS, and functions that change the server.
func newLimited(t *testing.T, bounds Bounds, with ...any) *limited {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &limited{
		t: t, l: Bound(socket, "api", bounds), release: make(chan struct{}), held: make(chan struct{}, 100),
	}
	srv := Server("", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if Reserved(r.Context()) {
			w.Header().Set("Connection", "close")
			if r.URL.Path != "/livez" && r.URL.Path != "/readyz" {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
		}
		if r.URL.Path == "/hold" {
			s.held <- struct{}{}
			<-s.release
		}
	}), nil)
	s.l.Attend(srv)
	for _, one := range with {
		switch one := one.(type) {
		case Identity:
			AllowHTTP2(srv)
			if _, err := s.l.Secure(one); err != nil {
				t.Fatal(err)
			}
		case func(*http.Server):
			one(srv)
		}
	}
	ended := make(chan error)
	go func() { ended <- s.l.Serve(srv) }()
	t.Cleanup(func() {
		_ = srv.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
		for s.l.Open() > 0 { // the goroutines of connections end by themselves
			<-time.After(time.Millisecond)
		}
	})
	return s
}

// dialFrom is dial from another address of this machine.
func (s *limited) dialFrom(address string, paths ...string) net.Conn {
	s.t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	conn, err := dialer.Dial("tcp", s.l.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	for _, path := range paths {
		s.ask(conn, path)
	}
	return conn
}

// dial opens a connection and sends a request for each path. It reads no answer.
func (s *limited) dial(paths ...string) net.Conn {
	s.t.Helper()
	return s.dialFrom("127.0.0.1", paths...)
}

func (s *limited) ask(conn net.Conn, path string) {
	s.t.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		s.t.Fatal(err)
	}
}

// answered reads one answer and reports whether it is a 200.
func (s *limited) answered(conn net.Conn) bool { return s.status(conn) == http.StatusOK }

// status reads one answer; 0 if there is none.
func (s *limited) status(conn net.Conn) int {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || r.Body.Close() != nil {
		return 0
	}
	return r.StatusCode
}

// closed reports whether the connection ends without a byte.
func closed(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	n, err := conn.Read(make([]byte, 1))
	var timeout net.Error
	return n == 0 && !(errors.As(err, &timeout) && timeout.Timeout())
}

// figures are connections, refused and evicted.
func (s *limited) want(figures ...float64) {
	s.t.Helper()
	for i, c := range []prometheus.Collector{s.l.gauge, s.l.refused, s.l.evicted} {
		end := time.Now().Add(10 * time.Second)
		for ; testutil.ToFloat64(c) != figures[i]; <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				s.t.Errorf("figure %d is %v, want %v", i, testutil.ToFloat64(c), figures[i])
				return
			}
		}
	}
}

// waitIdle waits until n connections are idle. The server reports that a moment after the answer.
func (s *limited) waitIdle(n int) {
	s.t.Helper()
	for end := time.Now().Add(10 * time.Second); ; <-time.After(time.Millisecond) {
		s.l.mu.Lock()
		got := s.l.idle.Len()
		s.l.mu.Unlock()
		if got == n {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d connections are idle, want %d", got, n)
		}
	}
}

// When all connections are busy, probes are still answered and other requests get 503.
func TestBusyListenerReservesSlotsForProbes(t *testing.T) {
	s := newLimited(t, Bounds{Connections: 2})
	one, two := s.dial("/hold"), s.dial("/hold")
	<-s.held
	<-s.held
	if status := s.status(s.dial("/")); status != http.StatusServiceUnavailable {
		t.Errorf("answered %d although there is no place", status)
	}
	for _, path := range []string{"/livez", "/readyz"} {
		if conn := s.dial(path); !s.answered(conn) || !closed(conn) {
			t.Errorf("%s is not answered, or the connection stays", path)
		}
	}
	s.want(2, 0, 0)
	close(s.release)
	if !s.answered(one) || !s.answered(two) {
		t.Error("those that were there are not answered")
	}
	s.waitIdle(2)
	if !s.answered(s.dial("/")) { // in the place of an idle one
		t.Error("not taken although a connection is idle")
	}
	s.want(2, 0, 1)
}

// One address does not take the connections of all; what it has beyond its share makes room for
// itself alone.
func TestAddressesShareConnections(t *testing.T) {
	s := newLimited(t, Bounds{
		Connections: 4, PerAddress: 2, Proxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.9/32")},
	})
	quiet := s.dialFrom("127.0.0.2", "/")
	if !s.answered(quiet) {
		t.Fatal("not answered")
	}
	s.waitIdle(1)
	s.dial("/hold")
	s.dial("/hold")
	<-s.held
	<-s.held
	if status := s.status(s.dial("/")); status != http.StatusServiceUnavailable {
		t.Errorf("beyond its share: %d", status)
	}
	s.want(3, 0, 0)
	if s.ask(quiet, "/"); !s.answered(quiet) {
		t.Error("the idle connection of another address made room")
	}
	s.waitIdle(1)
	for range 3 { // clients behind one proxy
		if !s.answered(s.dialFrom("127.0.0.9", "/")) {
			t.Error("a proxy's connection is not answered")
		}
	}
	close(s.release)
}

// Connections that say nothing hold the reserved places for a second at most.
func TestReservedSlotsAreReused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Bound(nil, "api", Bounds{Connections: 1})
		next := func() (admitted bool, victim *boundedConn) {
			victim, admitted = l.admit(&boundedConn{of: l, since: time.Now()})
			return admitted, victim
		}
		for range 1 + reservedConnections {
			if admitted, victim := next(); !admitted || victim != nil {
				t.Fatal("not admitted")
			}
		}
		if admitted, _ := next(); admitted {
			t.Error("a place of less than a second was taken")
		}
		<-time.After(reservedFor)
		for range reservedConnections {
			if admitted, victim := next(); !admitted || victim == nil || !victim.gone {
				t.Error("an old connection kept its reserved place")
			}
		}
		if admitted, _ := next(); admitted || l.Open() != 1+reservedConnections {
			t.Errorf("admitted %v, open %d", admitted, l.Open())
		}
	})
}

func TestIdleConnectionsMakeRoom(t *testing.T) {
	s := newLimited(t, Bounds{Connections: 3})
	silent, idle := s.dial(), s.dial("/")
	if !s.answered(idle) {
		t.Fatal("not answered")
	}
	s.waitIdle(2)
	busy := s.dial("/hold")
	<-s.held
	s.want(3, 0, 0)
	// One after the other, the one that has waited longest first; the busy one never.
	if !s.answered(s.dial("/")) || !closed(silent) {
		t.Error("the connection that never said anything has kept its place")
	}
	if !s.answered(s.dial("/")) || !closed(idle) {
		t.Error("the idle connection has kept its place")
	}
	s.want(3, 0, 2)
	close(s.release)
	if !s.answered(busy) {
		t.Error("the busy connection was closed")
	}
}

func TestSlotsAreFreed(t *testing.T) {
	s := newLimited(t, Bounds{Connections: 2})
	for range 20 {
		conn := s.dial("/")
		if !s.answered(conn) {
			t.Fatal("not answered")
		}
		_ = conn.Close()
	}
	s.want(0, testutil.ToFloat64(s.l.refused), testutil.ToFloat64(s.l.evicted))
}

func TestListenersShareARegistry(t *testing.T) {
	registry := prometheus.NewRegistry()
	for _, name := range []string{"api", "admin"} {
		if err := registry.Register(Bound(nil, name, Bounds{Connections: 1})); err != nil {
			t.Fatal(err)
		}
	}
	const want = `# HELP sluice_connections Open connections, by listener.
# TYPE sluice_connections gauge
sluice_connections{listener="admin"} 0
sluice_connections{listener="api"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sluice_connections"); err != nil {
		t.Error(err)
	}
}
