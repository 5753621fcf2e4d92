package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/internal/deadline"
	"github.com/7509e464/sluice/internal/listen"
	"github.com/7509e464/sluice/shaper"
)

func TestConfigIsCheckedAsAWhole(t *testing.T) {
	_, err := newServer(newFake().ports(), Config{
		MaxBody: -1, Headers: "all", Routes: map[string]RouteInfo{"r": {MaxAttempts: -1}}, StatusTenants: []string{"\xff"},
		MaxStreams: -1,
	})
	for _, part := range []string{"max body", "headers", "route r", "status tenant", "max streams"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not named: %v", part, err)
		}
	}
	if _, err := New(nil, Config{}); err == nil {
		t.Error("a server without a queue")
	}
}

func TestMaxBodyIsExact(t *testing.T) {
	b := newBench(t, func(c *Config) { c.MaxBody = 100 })
	body := func(n int) string {
		const frame = `{"type":"t","payload":""}`
		return frame[:len(frame)-2] + strings.Repeat("x", n-len(frame)) + `"}`
	}
	if r := b.submit(body(100), nil); r.Code != 202 {
		t.Errorf("%d", r.Code)
	}
	b.intake.do(t, "POST", "/v1/jobs", nil, body(101)).want(t, http.StatusRequestEntityTooLarge, "too-large")
	for n, status := range map[int]int{100: http.StatusAccepted, 101: http.StatusRequestEntityTooLarge} {
		r := httptest.NewRequest("POST", "/v1/jobs", strings.NewReader(body(n)))
		r.ContentLength = -1 // sent in chunks, its length unknown
		r.Header.Set("Content-Type", "application/json")
		b.intake.send(t, r).want(t, status, "")
	}
}

// pipeListener serves connections in memory, so that virtual time passes while they idle.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { close(l.done); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

func (l *pipeListener) dial() net.Conn {
	here, there := net.Pipe()
	l.conns <- there
	return here
}

// serve runs the intake over pipes under HTTPServer's bounds.
func (b *bench) serve() (*pipeListener, func()) { return b.serveAll(b.s.Intake()) }

// serveAll is serve for any handler.
func (b *bench) serveAll(h http.Handler) (*pipeListener, func()) {
	l := newPipeListener()
	srv := listen.Server("", h, slog.New(slog.DiscardHandler))
	ended := make(chan error)
	go func() { ended <- srv.Serve(l) }()
	return l, func() {
		if err := srv.Close(); err != nil {
			b.t.Error(err)
		}
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			b.t.Error(err)
		}
	}
}

// The longest wait is not cut short by the bounds against slow clients, even when the request came
// slowly.
func TestLongestWaitOverAConnection(t *testing.T) {
	if deadline.MaxWait != wire.MaxWaitSeconds*time.Second {
		t.Errorf("connections allow waits of %v, clients %d s", deadline.MaxWait, wire.MaxWaitSeconds)
	}
	for _, method := range []string{http.MethodPost, http.MethodGet} {
		t.Run(method, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				l, stop := b.serve()
				defer stop()
				conn := l.dial()
				defer conn.Close()
				request := fmt.Sprintf("POST /v1/jobs HTTP/1.1\r\nHost: x\r\nPrefer: wait=30\r\n"+
					"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(plainJob))
				body := plainJob
				if method == http.MethodGet {
					request = "GET /v1/jobs/" + b.submit(plainJob, nil).
						job.ID + " HTTP/1.1\r\nHost: x\r\nPrefer: wait=30\r\n\r\n"
					body = ""
				}
				if _, err := io.WriteString(conn, request); err != nil {
					t.Fatal(err)
				}
				if body != "" {
					<-time.After(7 * time.Second) // within the time to read, but then the wait ends after it
					if _, err := io.WriteString(conn, body); err != nil {
						t.Fatal(err)
					}
				}
				start := time.Now()
				go func() {
					<-time.After(29 * time.Second)
					b.queue.Finish(b.queue.IDs()[0], shaper.Succeeded, nil, nil)
				}()
				r, err := http.ReadResponse(bufio.NewReader(conn), nil)
				if err != nil {
					t.Fatalf("after %v: %v", time.Since(start), err)
				}
				text, err := io.ReadAll(r.Body)
				r.Body.Close()
				if err != nil || r.StatusCode != 200 || !strings.Contains(string(text), `"succeeded"`) ||
					time.Since(start) != 29*time.Second {
					t.Errorf("%d after %v: %s %v", r.StatusCode, time.Since(start), text, err)
				}
			})
		})
	}
}

func TestSlowClientsAreCut(t *testing.T) {
	for name, tt := range map[string]struct {
		sent  string
		bound time.Duration
	}{
		"header": {"POST /v1/jobs HTTP/1.1\r\nHost: x\r\n", deadline.HeaderTimeout},
		"body": {
			"POST /v1/jobs HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n" +
				"\r\n{",
			deadline.ReadTimeout,
		},
		"nothing": {"", deadline.IdleTimeout},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				l, stop := b.serve()
				defer stop()
				conn := l.dial()
				defer conn.Close()
				start := time.Now()
				if tt.sent != "" {
					if _, err := io.WriteString(conn, tt.sent); err != nil {
						t.Fatal(err)
					}
				}
				text, _ := io.ReadAll(conn)
				if took := time.Since(start); took > tt.bound+time.Second {
					t.Errorf("cut after %v: %s", took, text)
				}
				if name == "body" && !strings.Contains(string(text), "unreadable-body") {
					t.Errorf("answered %s", text)
				}
			})
		})
	}
}

// A client that closes its connection ends its wait, so that it holds nothing in the server.
func TestClosedConnectionEndsTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		l, stop := b.serve()
		defer stop()
		conn := l.dial()
		id := b.submit(plainJob, nil).job.ID
		_, err := io.WriteString(conn, "GET /v1/jobs/"+id+" HTTP/1.1\r\nHost: x\r\nPrefer: wait=30\r\n\r\n")
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if n := b.queue.Watching(); n != 1 {
			t.Errorf("%d watches", n)
		}
		conn.Close()
		synctest.Wait()
		if n := b.queue.Watching(); n != 0 {
			t.Errorf("%d watches left", n)
		}
	})
}

// Shutdown waits for running requests; Drain sees to it that there are no long ones.
func TestDrainThenShutdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		l := newPipeListener()
		srv := listen.Server("", b.s.Intake(), nil)
		go func() { _ = srv.Serve(l) }()
		conn := l.dial()
		defer conn.Close()
		id := b.submit(plainJob, nil).job.ID
		if _, err := io.WriteString(conn,
			"GET /v1/jobs/"+id+" HTTP/1.1\r\nHost: x\r\nPrefer: wait=30\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		start := time.Now()
		b.s.Drain()
		answered := make(chan int)
		go func() {
			r, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil {
				answered <- 0
				return
			}
			_, _ = io.Copy(io.Discard, r.Body)
			r.Body.Close()
			answered <- r.StatusCode
		}()
		if status := <-answered; status != http.StatusOK {
			t.Errorf("status %d", status)
		}
		if err := srv.Shutdown(context.Background()); err != nil || time.Since(start) > time.Second {
			t.Errorf("%v after %v", err, time.Since(start))
		}
	})
}
