package api

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// limited is a server on loopback with a bound on its connections. A request to /hold is answered when release is closed.
type limited struct {
	t       *testing.T
	l       *Listener
	release chan struct{}
	held    chan struct{} // one element for each request to /hold
}

func newLimited(t *testing.T, most int) *limited {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &limited{t: t, l: Limit(socket, "api", most), release: make(chan struct{}), held: make(chan struct{}, 100)}
	srv := HTTPServer("", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/hold" {
			s.held <- struct{}{}
			<-s.release
		}
	}), nil)
	s.l.Attend(srv)
	ended := make(chan error)
	go func() { ended <- srv.Serve(s.l) }()
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

// dial opens a connection and sends the requests for the paths, of which none is read.
func (s *limited) dial(paths ...string) net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.l.Addr().String())
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	for _, path := range paths {
		s.ask(conn, path)
	}
	return conn
}

func (s *limited) ask(conn net.Conn, path string) {
	s.t.Helper()
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		s.t.Fatal(err)
	}
}

// answered reads one answer.
func (s *limited) answered(conn net.Conn) bool {
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	return err == nil && r.Body.Close() == nil && r.StatusCode == http.StatusOK
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
		for end := time.Now().Add(10 * time.Second); testutil.ToFloat64(c) != figures[i]; <-time.After(time.Millisecond) {
			if time.Now().After(end) {
				s.t.Errorf("figure %d is %v, want %v", i, testutil.ToFloat64(c), figures[i])
				return
			}
		}
	}
}

// waitIdle waits until so many connections are idle, which the server says a moment after the answer.
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

func TestBusyListenerClosesNewConnections(t *testing.T) {
	s := newLimited(t, 2)
	one, two := s.dial("/hold"), s.dial("/hold")
	<-s.held
	<-s.held
	if !closed(s.dial()) || !closed(s.dial()) {
		t.Error("taken although there is no place")
	}
	s.want(2, 2, 0)
	close(s.release)
	if !s.answered(one) || !s.answered(two) {
		t.Error("those that were there are not answered")
	}
	s.waitIdle(2)
	if !s.answered(s.dial("/")) { // in the place of an idle one
		t.Error("not taken although a connection is idle")
	}
	s.want(2, 2, 1)
}

func TestIdleConnectionsMakeRoom(t *testing.T) {
	s := newLimited(t, 3)
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

func TestPlacesComeBack(t *testing.T) {
	s := newLimited(t, 2)
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
		if err := registry.Register(Limit(nil, name, 1)); err != nil {
			t.Fatal(err)
		}
	}
	const want = `# HELP sluice_connections Connections that are open, by listener.
# TYPE sluice_connections gauge
sluice_connections{listener="admin"} 0
sluice_connections{listener="api"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "sluice_connections"); err != nil {
		t.Error(err)
	}
}
