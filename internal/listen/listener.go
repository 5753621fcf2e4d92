// Package listen bounds the connections of an HTTP server. A full listener closes idle connections
// for new ones and reserves a few connections for probes and operators.
package listen

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/deadline"
)

// Listener bounds the connections that are open at once, in all and by address, and counts them. It
// serves an http.Server; see Attend.
//
// When it is full, or an address has its share, a new connection replaces the one (of that address)
// that has been idle the longest: between two requests, or since its start without a whole header.
// So silent connections keep no client out. If none is idle, the new connection gets one of a few
// reserved slots for probes and operators: see Reserved. If all of these are in use, it is closed
// at once. Left in the kernel's backlog, as netutil.LimitListener does, new connections would hang:
// clients until their timeout, probes until a supervisor kills a healthy process.
type Listener struct {
	net.Listener
	bounds Bounds

	mu        sync.Mutex
	open      int        // without those in reserved slots
	idle      *list.List // of *boundedConn, the one that has been idle the longest first
	reserved  *list.List // of *boundedConn in reserved slots, the oldest first
	addresses map[string]*peers

	secured atomic.Pointer[secured] // nil: plain HTTP
	unpaid  unpaid

	gauge   prometheus.GaugeFunc
	refused prometheus.Counter
	evicted prometheus.Counter
	spare   prometheus.Counter
	expiry  *prometheus.Desc
}

// Bounds are the bounds of a Listener.
type Bounds struct {
	Connections int            // at once, at least 1
	PerAddress  int            // of them by one address, or /48 of IPv6; 0: no bound
	Proxies     []netip.Prefix // addresses without that bound, because many clients share them
	// Failed gets each error of Accept, such as that of a process without free file descriptors.
	// The server goes on. nil: not called.
	Failed func(error)
}

// peers are the connections of one address, without reserved ones.
type peers struct {
	open int
	idle *list.List // as Listener.idle
}

const (
	// sendBuffer bounds the bytes of answers that the kernel buffers for a connection. Its default
	// is some MB for each client that does not read. At a round trip of 100 ms this allows 2.5 MB a
	// second.
	sendBuffer = 256 << 10
	// maxStreams bounds the requests under way of a connection of HTTP/2; maxFrame and
	// receiveBuffer bound, in bytes, what it holds of requests that no handler has read.
	maxStreams, maxFrame, receiveBuffer = 250, 16 << 10, 64 << 10
	// reservedConnections are the connections beyond Bounds.Connections that are for probes and
	// operators.
	reservedConnections = 32
	// reservedFor is how long a reserved slot is safe from new connections: long enough for a
	// probe.
	reservedFor = time.Second
)

// Bound bounds the connections of a listener. name is its label in the metrics, which Listener
// collects.
func Bound(l net.Listener, name string, bounds Bounds) *Listener {
	bounds.Connections = max(1, bounds.Connections)
	if bounds.PerAddress == 0 {
		bounds.PerAddress = bounds.Connections
	}
	labels := prometheus.Labels{"listener": name}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, ConstLabels: labels, Help: help})
	}
	out := &Listener{
		Listener: l, bounds: bounds, idle: list.New(), reserved: list.New(), addresses: map[string]*peers{},
		refused: counter("sluice_connections_refused_total",
			"Connections closed at once because the listener or the client's address had reached its limit."),
		evicted: counter("sluice_connections_evicted_total", "Idle connections closed in favour of new ones."),
		spare: counter("sluice_connections_reserved_total",
			"Connections that took a slot reserved for probes and operators."),
		unpaid: unpaid{
			budget:    rate.NewLimiter(unpaidRate, unpaidRate),
			addresses: map[string]*list.Element{},
			waits: counter("sluice_connections_throttled_total",
				"Waits of connections that have sent many frames or requests that reach no store."),
		},
		expiry: prometheus.NewDesc("sluice_listener_certificate_expiry_timestamp_seconds",
			"When the certificate of a listener ends, in seconds since 1970.", nil, labels),
	}
	out.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_connections", ConstLabels: labels,
		Help: "Open connections, by listener."}, func() float64 { return float64(out.Open()) })
	return out
}

// Describe implements prometheus.Collector.
func (l *Listener) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(l, ch) }

// Collect implements prometheus.Collector.
func (l *Listener) Collect(ch chan<- prometheus.Metric) {
	l.gauge.Collect(ch)
	l.refused.Collect(ch)
	l.evicted.Collect(ch)
	l.spare.Collect(ch)
	l.unpaid.waits.Collect(ch)
	if s := l.secured.Load(); s != nil {
		ch <- prometheus.MustNewConstMetric(l.expiry, prometheus.GaugeValue, float64(s.end.Unix()))
	}
}

// Open returns the number of open connections.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open + l.reserved.Len()
}

// Accept waits for a connection within the bounds.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			if l.bounds.Failed != nil && !errors.Is(err, net.ErrClosed) {
				l.bounds.Failed(err)
			}
			return nil, err
		}
		c := &boundedConn{Conn: conn, of: l, address: l.addressOf(conn), since: time.Now()}
		c.account.open, c.account.close = context.WithCancel(context.Background())
		victim, admitted := l.admit(c)
		if victim != nil {
			l.evicted.Inc()
			victim.account.close()
			_ = victim.Conn.Close() // its server gets an error from the connection
		}
		if admitted {
			if buffered, can := conn.(interface{ SetWriteBuffer(bytes int) error }); can {
				_ = buffered.SetWriteBuffer(sendBuffer) // best effort
			}
			return c, nil
		}
		l.refused.Inc()
		_ = conn.Close() // unused
	}
}

// addressOf returns the address whose share a connection counts in; empty for none.
func (l *Listener) addressOf(conn net.Conn) string {
	if conn.RemoteAddr() == nil {
		return ""
	}
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return ""
	}
	from := at.Addr().Unmap().WithZone("")
	if slices.ContainsFunc(l.bounds.Proxies, func(p netip.Prefix) bool { return p.Contains(from) }) {
		return ""
	}
	return auth.PeerNetwork(conn.RemoteAddr().String())
}

// admit takes a slot: a free one, that of the victim, or a reserved one.
func (l *Listener) admit(c *boundedConn) (victim *boundedConn, admitted bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	idle := l.idle
	mine := l.addresses[c.address]
	full := l.open >= l.bounds.Connections
	if c.address != "" && mine != nil && mine.open >= l.bounds.PerAddress {
		full, idle = true, mine.idle
	}
	if full {
		oldest := idle.Front()
		if oldest == nil {
			return l.reserve(c)
		}
		victim = oldest.Value.(*boundedConn)
		l.remove(victim)
	}
	l.open++
	if c.address != "" {
		if l.addresses[c.address] == nil { // also where the victim was its last one
			l.addresses[c.address] = &peers{idle: list.New()}
		}
		l.addresses[c.address].open++
	}
	return victim, true
}

// reserve takes a reserved slot, if need be that of the oldest. The lock is held.
func (l *Listener) reserve(c *boundedConn) (victim *boundedConn, admitted bool) {
	if l.reserved.Len() >= reservedConnections {
		victim = l.reserved.Front().Value.(*boundedConn)
		if c.since.Sub(victim.since) < reservedFor {
			return nil, false
		}
		l.remove(victim)
	}
	c.reserved = l.reserved.PushBack(c)
	l.spare.Inc()
	return victim, true
}

// remove frees the slot of a connection; only the first call has an effect. The lock is held.
func (l *Listener) remove(c *boundedConn) {
	if c.gone {
		return
	}
	c.gone = true
	if c.reserved != nil {
		l.reserved.Remove(c.reserved)
		return
	}
	l.busy(c)
	l.open--
	if mine := l.addresses[c.address]; mine != nil {
		if mine.open--; mine.open == 0 {
			delete(l.addresses, c.address)
		}
	}
}

// rest puts a connection at the end of the idle ones. The lock is held.
func (l *Listener) rest(c *boundedConn) {
	c.waits = l.idle.PushBack(c)
	if mine := l.addresses[c.address]; mine != nil {
		c.waitsOfMine = mine.idle.PushBack(c)
	}
}

// busy takes a connection out of the idle ones. The lock is held.
func (l *Listener) busy(c *boundedConn) {
	if c.waits == nil {
		return
	}
	l.idle.Remove(c.waits)
	if c.waitsOfMine != nil {
		l.addresses[c.address].idle.Remove(c.waitsOfMine)
	}
	c.waits, c.waitsOfMine = nil, nil
}

// Attend makes the server report which of its connections are idle, so that new ones can replace
// them, which are in reserved slots, and which requests they have sent. Call it before Serve.
func (l *Listener) Attend(s *http.Server) {
	s.Handler = paying(s.Handler)
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		c := below(conn)
		if c == nil {
			return
		}
		idle := state == http.StateIdle || state == http.StateNew
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case c.reserved != nil || c.gone:
		case idle && c.waits == nil:
			l.rest(c)
		case !idle:
			l.busy(c)
		}
	}
	s.ConnContext = func(ctx context.Context, conn net.Conn) context.Context {
		return context.WithValue(ctx, connKey{}, below(conn))
	}
}

// below returns the connection of a server, which may have TLS above it; nil if it is none of a
// Listener.
func below(conn net.Conn) *boundedConn {
	if t, is := conn.(*tls.Conn); is {
		conn = t.NetConn()
	}
	c, _ := conn.(*boundedConn)
	return c
}

// Reserved reports whether the request came over a connection in a reserved slot. Only probes and
// operators with a credential are answered there, and the connection ends with the answer.
func Reserved(ctx context.Context) bool {
	c, _ := ctx.Value(connKey{}).(*boundedConn)
	return c != nil && c.reserved != nil
}

// boundedConn frees its slot when it is closed.
type boundedConn struct {
	net.Conn
	of       *Listener
	address  string // whose share it counts in; empty for none
	since    time.Time
	reserved *list.Element // in Listener.reserved; fixed once the connection is accepted
	account  account

	// Guarded by the listener's lock.
	gone               bool          // the slot is free, or in use by another
	waits, waitsOfMine *list.Element // while it is idle
}

// Close closes the connection; only the first call frees the slot.
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.account.close()
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.remove(c)
	return err
}

// CloseWrite closes the sending side, so that a client can read the last answer.
func (c *boundedConn) CloseWrite() error {
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}

// SetLinger sets what the end of the connection does with data that has not been sent.
func (c *boundedConn) SetLinger(sec int) error {
	if l, can := c.Conn.(interface{ SetLinger(sec int) error }); can {
		return l.SetLinger(sec)
	}
	return nil
}

// Reset ends a connection of HTTP/1 so that its client gets an error (TCP RST, and TLS without its
// end). In HTTP/1.0 the end of the connection is the end of an answer without a length.
func Reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	if t, is := conn.(*tls.Conn); is { // its end would say that the answer is whole
		conn = t.NetConn()
	}
	if l, can := conn.(interface{ SetLinger(sec int) error }); can {
		_ = l.SetLinger(0)
	}
	_ = conn.Close()
}

// Server returns a server with bounds on time and size, so that slow clients cannot block it.
// Errors of connections, as net/http reports them, are logged at debug.
func Server(addr string, h http.Handler, log *slog.Logger) *http.Server {
	if log == nil {
		log = slog.Default()
	}
	return &http.Server{
		Addr:              addr,
		Handler:           h,
		ReadHeaderTimeout: deadline.HeaderTimeout,
		ReadTimeout:       deadline.ReadTimeout,
		WriteTimeout:      deadline.WriteTimeout,
		IdleTimeout:       deadline.IdleTimeout,
		MaxHeaderBytes:    deadline.MaxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// AllowHTTP2 makes the server speak HTTP/2, too: over TLS by ALPN, and without TLS (h2c) to clients
// that begin with it (RFC 9113, section 3.3). Many requests then share a connection, so the buffers
// of a connection are small.
func AllowHTTP2(s *http.Server) {
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	s.HTTP2 = &http.HTTP2Config{
		MaxConcurrentStreams: maxStreams, MaxReadFrameSize: maxFrame,
		MaxReceiveBufferPerConnection: receiveBuffer, MaxReceiveBufferPerStream: receiveBuffer,
	}
}
