package listen

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// pipes is a listener in memory, for virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type pipe struct{ net.Conn }

func (pipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 1} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { p.once.Do(func() { close(p.closed) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns a connection, and drops what the server sends on it.
func (p *pipes) dial() net.Conn {
	near, far := net.Pipe()
	p.conns <- pipe{far}
	go func() { _, _ = io.Copy(io.Discard, near) }()
	return near
}

// serveUnpaid serves requests for /paid, and answers others without the store, for the test. Each
// request for /paid is noted in paid.
func serveUnpaid(t *testing.T, paid chan<- time.Time) (*Listener, *pipes) {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	l := Bound(p, "api", Bounds{Connections: 100})
	srv := Server("", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/paid" {
			n, _ := io.Copy(io.Discard, r.Body)
			if n == r.ContentLength {
				paid <- time.Now()
			}
			return
		}
		Unpaid(w, r, func() { http.NotFound(w, r) })
	}), nil)
	AllowHTTP2(srv)
	l.Attend(srv)
	var serving sync.WaitGroup
	serving.Go(func() { _ = srv.Serve(l) })
	t.Cleanup(func() {
		_ = srv.Close()
		serving.Wait()
	})
	return l, p
}

const refused = "GET / HTTP/1.1\r\nHost: a\r\n\r\n"

// frame is one of HTTP/2 (RFC 9113, section 4.1).
func frame(kind, flags byte, stream uint32, payload string) string {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	head = binary.BigEndian.AppendUint32(append(head, flags), stream)
	return string(head) + payload
}

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// TestUnpaidFrames: connections that send what no request pays for share one budget, and others do
// not wait for them.
func TestUnpaidFrames(t *testing.T) {
	get := func(stream uint32) string { return frame(1, 5, stream, "\x82\x86\x84\x41\x01a") }
	var resets bytes.Buffer
	for i := range uint32(10_000) {
		resets.WriteString(get(2*i+1) + frame(3, 0, 2*i+1, "\x00\x00\x00\x08"))
	}
	for name, flood := range map[string]string{
		"requests refused": strings.Repeat(refused, 10_000),
		"pings":            preface + frame(4, 0, 0, "") + strings.Repeat(frame(6, 0, 0, "12345678"), 30_000),
		"settings":         preface + strings.Repeat(frame(4, 0, 0, ""), 30_000),
		"windows":          preface + frame(4, 0, 0, "") + strings.Repeat(frame(8, 0, 0, "\x00\x00\x00\x01"), 30_000),
		"resets":           preface + frame(4, 0, 0, "") + resets.String(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				paid := make(chan time.Time, 1000)
				l, p := serveUnpaid(t, paid)
				began := time.Now()
				var sending sync.WaitGroup
				var sent atomic.Int64
				for range 4 {
					conn := p.dial()
					sending.Go(func() {
						n, _ := io.WriteString(conn, flood) // the server may end the connection
						sent.Add(int64(n))
						_ = conn.Close()
					})
				}
				quiet := p.dial()
				for range 50 {
					if _, err := io.WriteString(quiet, "POST /paid HTTP/1.1\r\nHost: a\r\nContent-Length: 20000\r\n\r\n"+strings.Repeat("x", 20_000)); err != nil {
						t.Fatal(err)
					}
					written := time.Now()
					if at := <-paid; at.Sub(written) > 0 {
						t.Fatalf("a request that pays waited %v", at.Sub(written))
					}
					time.Sleep(10 * time.Millisecond)
				}
				sending.Wait()
				_ = quiet.Close()
				took, beyond := time.Since(began), time.Duration(sent.Load()-unpaidRate)*time.Second/unpaidRate
				if took < beyond*9/10 {
					t.Errorf("%d bytes were read in %v", sent.Load(), took)
				}
				synctest.Wait()
				if held := l.unpaid.held.Load(); held != 0 {
					t.Errorf("%d answers are held at the end", held)
				}
			})
		})
	}
}

// TestHeldAnswers: clients of HTTP/2 that take no byte hold a bounded number of answers, for a
// bounded time, and one that holds none gets its answer.
func TestHeldAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, p := serveUnpaid(t, nil)
		var conns []net.Conn
		for range 20 {
			conn := p.dial()
			conns = append(conns, conn)
			text := preface + frame(4, 0, 0, "\x00\x04\x00\x00\x00\x00") // a window of 0
			for i := range uint32(200) {
				text += frame(1, 5, 2*i+1, "\x82\x86\x84\x41\x01a")
			}
			go func() { _, _ = io.WriteString(conn, text) }()
		}
		synctest.Wait()
		time.Sleep(heldFor / 2)
		if held := l.unpaid.held.Load(); held < heldFew || held > heldFew+20*heldOfOne {
			t.Errorf("%d answers are held", held)
		}
		near, far := net.Pipe()
		p.conns <- pipe{far}
		go func() { _, _ = io.WriteString(near, refused) }()
		answer := make([]byte, len("HTTP/1.1 404"))
		if _, err := io.ReadFull(near, answer); err != nil || string(answer) != "HTTP/1.1 404" {
			t.Errorf("another client gets %q, %v", answer, err)
		}
		_ = near.Close()
		time.Sleep(10 * heldFor)
		if held := l.unpaid.held.Load(); held != 0 {
			t.Errorf("%d answers are still held", held)
		}
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
}
