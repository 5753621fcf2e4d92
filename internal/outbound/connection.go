package outbound

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// connection is a connection to a receiver that knows when it must not be used again.
type connection struct {
	net.Conn
	made    time.Time
	written atomic.Int64 // bytes
	idle    atomic.Int64 // how long the receiver keeps it open unused, in ns; 0 is unknown
	bound   atomic.Bool  // it may be signed in as one client, or have bytes that no request asked for

	mu        sync.Mutex
	recording bool          // what is read is stored in head
	head      []byte        // of an answer, with what follows, about maxHeaderBytes at most
	read      int64         // bytes, since the connection got a request
	size      int64         // of the answer, in bytes with its head; -1 is unknown
	ended     error         // the first that Read gave
	end       chan struct{} // closed then
}

func newConnection(c net.Conn) *connection {
	return &connection{Conn: c, made: time.Now(), end: make(chan struct{})}
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	c.read += int64(n)
	if c.ended == nil && err != nil {
		c.ended = err
		close(c.end)
	}
	if c.recording && len(c.head) < maxHeaderBytes {
		c.head = append(c.head, p[:n]...)
	}
	c.mu.Unlock()
	return n, err
}

// begin keeps what is read from now on, of the answer to another request.
func (c *connection) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recording, c.head, c.read, c.size = true, c.head[:0], 0, -1
}

// stop keeps no more.
func (c *connection) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.recording = false
}

// surplus reports whether more bytes have come than the answer has: they would begin the answer to
// another request.
func (c *connection) surplus() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size >= 0 && c.read > c.size
}

// cause returns why a request failed. Of a connection that the receiver has ended, a request that
// is being written may meet a broken or closed connection alone, while what was read has the alert.
func (c *connection) cause(err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	said, _ := ofTLS(c.ended)
	if c.ended == nil || said == nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return c.ended
}

// expect notes how many bytes an answer has whose length is known.
func (c *connection) expect(length int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for rest, at := c.head, 0; length >= 0; {
		end := bytes.Index(rest, []byte("\r\n\r\n"))
		if end < 0 {
			return
		}
		at += end + 4
		if _, status, _ := bytes.Cut(rest, []byte(" ")); !bytes.HasPrefix(status, []byte("1")) {
			c.size = int64(at) + length
			return
		}
		rest = c.head[at:]
	}
}

// options returns the values of Connection in the answer that was read, which net/http removes from
// the headers where they contain close.
func (c *connection) options() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := textproto.NewReader(bufio.NewReader(bytes.NewReader(c.head)))
	for {
		line, err := r.ReadLine()
		if err != nil {
			return nil
		}
		h, err := r.ReadMIMEHeader()
		if _, status, _ := strings.Cut(line, " "); err != nil || !strings.HasPrefix(status, "1") {
			return h["Connection"]
		}
	}
}

func (c *connection) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.written.Add(int64(n))
	if err != nil { // net/http reads all the time, and ends that with the first error of either side
		select {
		case <-c.end:
		case <-time.After(alertWait):
		}
	}
	return n, err
}

// alertWait is how long a write that has failed waits for an alert that the receiver may have sent.
const alertWait = 100 * time.Millisecond

// usable reports whether a connection that was unused for that long may get another request.
func (c *connection) usable(idle, maxAge time.Duration) bool {
	kept := time.Duration(c.idle.Load())
	kept -= min(time.Second, kept/5) // the receiver's time began earlier
	return !c.bound.Load() && !c.surplus() && time.Since(c.made) < maxAge && (kept <= 0 || idle < kept)
}

// dial makes connections for a transport.
func dial(d *net.Dialer) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := d.DialContext(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return newConnection(conn), nil
	}
}

// dialTLS makes connections with TLS for the transport of c, perhaps through a proxy. net/http
// would read below TLS.
func (c *Client) dialTLS(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	conn, err := c.dialThrough(ctx, network, address)
	if err != nil {
		return nil, err
	}
	settings := c.Transport.TLSClientConfig.Clone()
	settings.NextProtos = []string{"http/1.1"}
	if c.Transport.Protocols.HTTP2() {
		settings.NextProtos = []string{"h2", "http/1.1"}
	}
	if settings.ServerName == "" {
		settings.ServerName, _, _ = net.SplitHostPort(address)
	}
	if settings.GetClientCertificate == nil && len(settings.Certificates) == 0 {
		settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c.lacksCertificate.Store(true)
			return new(tls.Certificate), nil
		}
	}
	secured := tls.Client(conn, settings)
	trace := httptrace.ContextClientTrace(ctx)
	if trace != nil && trace.TLSHandshakeStart != nil {
		trace.TLSHandshakeStart()
	}
	err = secured.HandshakeContext(ctx)
	if trace != nil && trace.TLSHandshakeDone != nil {
		trace.TLSHandshakeDone(secured.ConnectionState(), err)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	if secured.ConnectionState().NegotiatedProtocol == "h2" {
		return secured, nil // net/http finds by the type that it speaks HTTP/2
	}
	return newConnection(secured), nil
}

// secure returns the settings of TLS with a least version. o may be nil.
func secure(o *tls.Config) *tls.Config {
	settings := o.Clone()
	if settings == nil {
		settings = &tls.Config{}
	}
	settings.MinVersion = max(settings.MinVersion, tls.VersionTLS12)
	return settings
}

// pingAfter is after how long a connection with HTTP/2 on which nothing is read is tried, and how
// long its answer may take. All requests share it, so one that is dead would fail them all.
const pingAfter = 10 * time.Second

// generation is a transport whose connections are all younger than Client.maxAge.
type generation struct {
	*http.Transport
	began time.Time
}

// transport returns the transport for another request. net/http never gives up a connection with
// HTTP/2 for its age, so another transport takes the place of an old one. The connections of that
// one end when they have no requests.
func (c *Client) transport() *http.Transport {
	g := c.shared.Load()
	if g == nil {
		return c.Transport
	}
	if time.Since(g.began) > c.maxAge {
		next := &generation{c.Transport.Clone(), time.Now()}
		if c.shared.CompareAndSwap(g, next) {
			g.CloseIdleConnections()
		}
		return c.shared.Load().Transport
	}
	return g.Transport
}

// Close closes the connections that are not used. A request that is under way ends well.
func (c *Client) Close() {
	c.Transport.CloseIdleConnections()
	if g := c.shared.Load(); g != nil {
		g.CloseIdleConnections()
	}
}

// sending is one try to send a request.
type sending struct {
	trace  httptrace.ClientTrace
	conn   *connection // that the request got; nil for none, and for one that dial did not make
	got    bool        // the request got a connection
	reused bool
	stale  bool  // conn was closed instead
	from   int64 // what had been written to conn before
}

// sent reports whether the receiver may have seen a part of the request.
func (s *sending) sent() bool { return s.got && (s.conn == nil || s.conn.written.Load() > s.from) }

// gotConn closes a connection that must not be used again. The request then fails unsent.
func (s *sending) gotConn(info httptrace.GotConnInfo, req *http.Request, maxAge time.Duration) {
	s.got, s.reused = true, info.Reused
	if s.conn, _ = info.Conn.(*connection); s.conn == nil {
		return
	}
	if s.reused && !s.conn.usable(info.IdleTime, maxAge) {
		_, s.stale = s.conn.Close(), true
	}
	s.conn.begin()
	// Some upstreams answer HEAD with a body, which would begin the answer to another request.
	if req.Method == http.MethodHead || bindsConnection(req.Header["Authorization"]) {
		s.conn.bound.Store(true)
	}
	s.from = s.conn.written.Load()
}

// roundTrip sends a request with this body, once. A request of which nothing was written, because
// the receiver had closed the connection while it was unused, gets another connection. So does one
// that the receiver has refused with HTTP/2 without looking at it, a few times.
func (c *Client) roundTrip(
	ctx context.Context, req *http.Request, body []byte,
) (resp *http.Response, sent bool, err error) {
	transport := c.transport()
	for refusals := 0; ; {
		var s sending
		s.trace.GotConn = func(info httptrace.GotConnInfo) { s.gotConn(info, req, c.maxAge) }
		one := req.WithContext(httptrace.WithClientTrace(ctx, &s.trace))
		sendOnce(one, body)
		c.viaProxy(one)
		resp, err := transport.RoundTrip(one)
		if s.stale { // an answer would be of bytes that had come before
			if err == nil {
				_ = resp.Body.Close()
			}
			if err := ctx.Err(); err != nil {
				return nil, false, err
			}
			continue
		}
		if err != nil && s.reused && !s.sent() && ctx.Err() == nil {
			continue
		}
		if unprocessed(err) {
			if refusals++; refusals > maxRefusals || !pause(ctx, rand.N(refusalPause<<refusals)) {
				return nil, false, err
			}
			continue
		}
		if c.proxyRefused(one, resp) {
			_ = resp.Body.Close()
			return nil, false, errors.New("the proxy answered 407 Proxy Authentication Required")
		}
		if s.conn != nil {
			s.note(resp)
			err = s.conn.cause(err)
		}
		return resp, s.sent(), err
	}
}

// A request that a receiver refuses with HTTP/2 is sent again maxRefusals times, after random
// pauses whose bound doubles from refusalPause: together about three seconds.
const maxRefusals, refusalPause = 8, 10 * time.Millisecond

// unprocessed reports whether the receiver has refused a request with HTTP/2 before it looked at it
// (RFC 9113, section 8.7), or its connection had no stream left for it. net/http, which would send
// the request again but has no GetBody, says so by its text alone.
func unprocessed(err error) bool {
	if err == nil {
		return false
	}
	text := err.Error()
	return strings.Contains(text, "cannot rewind body after connection loss") || strings.Contains(text, "cannot retry err [") &&
		(strings.Contains(text, "REFUSED_STREAM") || strings.Contains(text, "GOAWAY"))
}

// pause waits, and returns false if ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// note keeps what an answer says about the connection. resp may be nil.
func (s *sending) note(resp *http.Response) {
	if resp == nil {
		return
	}
	s.conn.expect(resp.ContentLength)
	if bindsConnection(resp.Header["Www-Authenticate"]) {
		s.conn.bound.Store(true)
	}
	s.conn.idle.Store(int64(keepAlive(resp.Header["Keep-Alive"])))
	if resp.Close && resp.Header["Connection"] == nil {
		if values := s.conn.options(); values != nil {
			resp.Header["Connection"] = values
		}
	}
	s.conn.stop()
}

// sendOnce gives a request its body so that net/http sends it at most once. By itself net/http
// sends a request again on another connection, after it was written, if it takes it for idempotent:
// one without a body, or with GetBody, that has such a method or one of two headers.
func sendOnce(req *http.Request, body []byte) {
	req.GetBody, req.ContentLength, req.TransferEncoding = nil, int64(len(body)), nil
	switch req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		req.Body = io.NopCloser(bytes.NewReader(body))
		if len(body) == 0 {
			req.TransferEncoding = []string{"identity"} // else net/http waits for the first byte of the body
		}
	default:
		req.Body = http.NoBody // sent as Content-Length: 0
		if len(body) > 0 {
			req.Body = io.NopCloser(bytes.NewReader(body))
		}
	}
	for _, name := range hiddenHeaders {
		if values, is := req.Header[name]; is {
			req.Header = maps.Clone(req.Header)
			req.Header[strings.ToLower(name)] = values
			delete(req.Header, name)
		}
	}
}

// hiddenHeaders are the headers by which net/http takes a request for idempotent. It does not see
// them in lower case, and HTTP does not distinguish cases.
var hiddenHeaders = [...]string{"Idempotency-Key", "X-Idempotency-Key"}

// bindsConnection reports whether one of these values of Authorization or WWW-Authenticate is of a
// scheme that signs the whole connection in (RFC 4559 and MS-NTHT), not one request.
func bindsConnection(values []string) bool {
	for _, value := range values {
		for challenge := range strings.SplitSeq(value, ",") {
			scheme, _, _ := strings.Cut(strings.TrimSpace(challenge), " ")
			for _, binding := range [...]string{"ntlm", "negotiate", "kerberos", "nego2"} {
				if strings.EqualFold(scheme, binding) {
					return true
				}
			}
		}
	}
	return false
}

// keepAlive is how long a server keeps a connection open that is not used, by its header Keep-Alive
// (RFC 2068, section 19.7.1): 0 if it does not say.
func keepAlive(values []string) time.Duration {
	for _, value := range values {
		for parameter := range strings.SplitSeq(value, ",") {
			name, seconds, _ := strings.Cut(strings.TrimSpace(parameter), "=")
			if n, err := strconv.ParseUint(strings.Trim(seconds, `" `), 10, 20); err == nil && strings.EqualFold(name, "timeout") {
				return max(time.Duration(n)*time.Second, time.Nanosecond)
			}
		}
	}
	return 0
}
