package listen

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/internal/certtest"
)

// pipes is a listener in memory, for virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

type pipe struct {
	net.Conn
	last byte // of its client's address
}

func (p pipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, p.last), Port: 1} }

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
	p.conns <- pipe{far, 1}
	go func() { _, _ = io.Copy(io.Discard, near) }()
	return near
}

// serveUnpaid serves requests for /paid, and answers others without the store, for the test. Each
// request for /paid is noted in paid.
func serveUnpaid(t *testing.T, paid chan<- time.Time, secured ...Identity) (*Listener, *pipes) {
	p := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	l := Bound(p, "api", Bounds{Connections: 100})
	srv := Server("", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/paid" {
			time.Sleep(50 * time.Millisecond) // as for a credential that is looked up
			n, _ := io.Copy(io.Discard, r.Body)
			if n == r.ContentLength || r.ContentLength < 0 && n == 60_000 {
				paid <- time.Now()
			}
			return
		}
		if r.URL.Path == "/owed" {
			_, _ = io.Copy(io.Discard, r.Body)
			Owe(r, 100, 200)
			return
		}
		if r.URL.Path == "/read" {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		if n := r.Context().Value(connKey{}).(*boundedConn).account.bodies.Load(); n != 0 {
			t.Errorf("%d bytes are expected of requests without a body", n)
		}
		Unpaid(w, r, func() { http.NotFound(w, r) })
	}), nil)
	AllowHTTP2(srv)
	l.Attend(srv)
	var serving sync.WaitGroup
	for _, i := range secured {
		if _, err := l.Secure(i); err != nil {
			t.Fatal(err)
		}
	}
	serving.Go(func() { _ = l.Serve(srv) })
	t.Cleanup(func() {
		_ = srv.Close()
		serving.Wait()
		l.nobodyWaits(t)
	})
	return l, p
}

// nobodyWaits insists that no connection waits for its turn.
func (l *Listener) nobodyWaits(t *testing.T) {
	time.Sleep(time.Second) // in virtual time: the last turn comes within milliseconds
	l.unpaid.mu.Lock()
	defer l.unpaid.mu.Unlock()
	if l.unpaid.serving || len(l.unpaid.addresses) > 0 || l.unpaid.lines.Len() > 0 {
		t.Error("somebody still waits")
	}
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
	for i := range uint32(5_000) {
		resets.WriteString(get(2*i+1) + frame(3, 0, 2*i+1, "\x00\x00\x00\x08"))
	}
	for name, flood := range map[string]string{
		"requests refused": strings.Repeat(refused, 5_000),
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
					if at := <-paid; at.Sub(written) > 50*time.Millisecond {
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

// TestOwed: a body that is read for nothing and the refused parts of a request count like requests
// without the store.
func TestOwed(t *testing.T) {
	for path, owes := range map[string]int{"/owed": 100*unpaidAnswer + 60_000/unpaidText/2, "/read": 60_000 / unpaidText} {
		t.Run(path, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, p := serveUnpaid(t, nil)
				conn, began := p.dial(), time.Now()
				const requests = 400
				for range requests {
					_, err := io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n"+strings.Repeat("x", 60_000))
					if err != nil {
						t.Fatal(err)
					}
				}
				_ = conn.Close()
				least := time.Duration(requests*owes-unpaidRate-unpaidFirst) * time.Second / unpaidRate
				if took := time.Since(began); took < least*9/10 {
					t.Errorf("%d requests took %v, want %v", requests, took, least)
				}
			})
		})
	}
}

// TestRefusalsOfOneSegment: requests that come in one segment are refused no faster than others,
// and many lines of headers are refused.
func TestRefusalsOfOneSegment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, p := serveUnpaid(t, nil)
		began := time.Now()
		var all sync.WaitGroup
		const connections, requests = 100, 140
		for range connections {
			near, far := net.Pipe()
			p.conns <- pipe{far, 1}
			all.Go(func() {
				defer near.Close()
				go func() { _, _ = io.WriteString(near, strings.Repeat(refused, requests)) }()
				answers := bufio.NewReader(near)
				for range requests {
					resp, err := http.ReadResponse(answers, nil)
					if err != nil {
						t.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
				}
			})
		}
		all.Wait()
		least := time.Duration(connections*(requests*unpaidAnswer-unpaidFirst)-unpaidRate) * time.Second / unpaidRate
		if took := time.Since(began); took < least {
			t.Errorf("%d refusals took %v, want %v", connections*requests, took, least)
		}
		near, far := net.Pipe()
		p.conns <- pipe{far, 2}
		go func() {
			_, _ = io.WriteString(near, "GET /paid HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("A: b\r\n", 201)+"\r\n")
		}()
		if resp, err := http.ReadResponse(bufio.NewReader(near), nil); err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("201 lines of headers: %v, %v", resp, err)
		}
		_ = near.Close()
	})
}

// TestPayersBesideACrowd: hundreds of connections wait for what they sent without paying. Requests
// with bodies that come on new connections, in small pieces, and whose handler does not read at
// once, wait for none of them; nor do those of another address that must wait, too.
func TestPayersBesideACrowd(t *testing.T) {
	body := strings.Repeat("x", 60_000)
	h2 := preface + frame(4, 0, 0, "") + frame(1, 4, 1, "\x83\x86\x44\x05/paid\x41\x01a\x0f\x0d\x0560000")
	for at := 0; at < len(body); at += 15_000 {
		h2 += frame(0, byte(at/45_000), 1, body[at:at+15_000])
	}
	ca, trusting := certtest.New(t, "ca"), &tls.Config{InsecureSkipVerify: true}
	for name, pay := range map[string]func(conn net.Conn) (io.Writer, string){
		"HTTP/1": func(conn net.Conn) (io.Writer, string) {
			return conn, "POST /paid HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" + body
		},
		"HTTP/1, chunked": func(conn net.Conn) (io.Writer, string) {
			return conn, "POST /paid HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nea60\r\n" + body + "\r\n0\r\n\r\n"
		},
		"HTTP/2": func(conn net.Conn) (io.Writer, string) { return conn, h2 },
		"TLS": func(conn net.Conn) (io.Writer, string) {
			return tls.Client(conn, trusting),
				"POST /paid HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" + body
		},
		"another address": func(conn net.Conn) (io.Writer, string) {
			return conn, strings.Repeat(refused, 30) + "POST /paid HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" + body
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				paid := make(chan time.Time, 1000)
				var secured []Identity
				if name == "TLS" {
					secured = append(secured, identity(t, ca, certtest.Subject{}))
				}
				_, p := serveUnpaid(t, paid, secured...)
				var crowd []net.Conn
				for range 50 {
					near, far := net.Pipe()
					crowd = append(crowd, near)
					p.conns <- pipe{far, 1}
					conn := net.Conn(near)
					if name == "TLS" {
						conn = tls.Client(near, trusting)
					}
					go func() {
						if secured, is := conn.(*tls.Conn); is {
							_ = secured.Handshake()
						}
						go func() { _, _ = io.Copy(io.Discard, conn) }()
						_, _ = io.WriteString(conn, strings.Repeat(refused, 300))
					}()
				}
				time.Sleep(time.Second) // the budget is used up
				near, far := net.Pipe()
				last := byte(1)
				if name == "another address" {
					last = 2
				}
				p.conns <- pipe{far, last}
				if name != "TLS" {
					go func() { _, _ = io.Copy(io.Discard, near) }()
				}
				began := time.Now()
				to, text := pay(segments{near})
				if _, err := io.WriteString(to, text); err != nil {
					t.Fatal(err)
				}
				if at := <-paid; at.Sub(began) > 300*time.Millisecond {
					t.Errorf("a request that pays took %v", at.Sub(began))
				}
				for _, conn := range append(crowd, near) {
					_ = conn.Close()
				}
			})
		})
	}
}

// segments writes as a network carries it.
type segments struct{ net.Conn }

func (s segments) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, 1400) {
		m, err := s.Conn.Write(part)
		if n += m; err != nil {
			return n, err
		}
	}
	return n, nil
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
		p.conns <- pipe{far, 1}
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
