package api

import (
	"container/list"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Listener accepts at most so many connections at once, and counts them. It serves an http.Server; see Attend.
//
// When it is full, a new connection takes the place of the one that has been idle the longest: between two requests, or since its start
// without a whole header. Who opens connections and says nothing thus keeps nobody out. Where none is idle, the new one is closed at once. The other way would be to let it wait in the kernel until one ends (netutil.LimitListener), but then whoever holds all places
// makes everybody else hang: clients until their own timeout, probes until a supervisor kills a process that is fine. One that
// is told at once can go to another instance or come back, and an attacker gains no place in a queue.
type Listener struct {
	net.Listener
	most int

	mu   sync.Mutex
	open int
	idle *list.List // of *limitedConn, the one that has been idle the longest first

	gauge   prometheus.GaugeFunc
	refused prometheus.Counter
	evicted prometheus.Counter
}

// sendBuffer is the bytes of answers that the kernel keeps for a connection. By itself it would keep some MB for each client that asks and does
// not read. At a round trip of 100 ms this is 2.5 MB a second.
const sendBuffer = 256 << 10

// Limit bounds the connections of a listener to most, at least 1. name tells it from others in its metrics, which Listener collects.
func Limit(l net.Listener, name string, most int) *Listener {
	labels := prometheus.Labels{"listener": name}
	out := &Listener{
		Listener: l, most: max(1, most), idle: list.New(),
		refused: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_connections_refused_total", ConstLabels: labels,
			Help: "Connections that were closed at once, because a listener had as many as it may."}),
		evicted: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_connections_evicted_total", ConstLabels: labels,
			Help: "Idle connections that were closed to make room for new ones."}),
	}
	out.gauge = prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "sluice_connections", ConstLabels: labels,
		Help: "Connections that are open, by listener."}, func() float64 { return float64(out.Open()) })
	return out
}

// Describe implements prometheus.Collector.
func (l *Listener) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(l, ch) }

// Collect implements prometheus.Collector.
func (l *Listener) Collect(ch chan<- prometheus.Metric) {
	l.gauge.Collect(ch)
	l.refused.Collect(ch)
	l.evicted.Collect(ch)
}

// Open is the number of connections that are open.
func (l *Listener) Open() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.open
}

// Accept waits for a connection that there is a place for.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.admit() {
			if buffered, can := conn.(interface{ SetWriteBuffer(bytes int) error }); can {
				_ = buffered.SetWriteBuffer(sendBuffer) // an optimum, not a need
			}
			return &limitedConn{Conn: conn, of: l}, nil
		}
		l.refused.Inc()
		_ = conn.Close() // nothing was said on it
	}
}

// admit takes a place, if need be that of an idle connection.
func (l *Listener) admit() bool {
	l.mu.Lock()
	if l.open < l.most {
		l.open++
		l.mu.Unlock()
		return true
	}
	oldest := l.idle.Front()
	if oldest == nil {
		l.mu.Unlock()
		return false
	}
	victim := l.idle.Remove(oldest).(*limitedConn)
	victim.waits = nil
	victim.gone.Store(true) // its place is passed on, not freed
	l.mu.Unlock()
	l.evicted.Inc()
	_ = victim.Conn.Close() // its server finds out by itself
	return true
}

// Attend makes the server say which of its connections are idle, so that these can make room. Call it before Serve.
func (l *Listener) Attend(s *http.Server) {
	s.ConnState = func(conn net.Conn, state http.ConnState) {
		c, ours := conn.(*limitedConn)
		if !ours {
			return
		}
		idle := state == http.StateIdle || state == http.StateNew
		l.mu.Lock()
		defer l.mu.Unlock()
		switch {
		case idle && c.waits == nil && !c.gone.Load():
			c.waits = l.idle.PushBack(c)
		case !idle && c.waits != nil:
			l.idle.Remove(c.waits)
			c.waits = nil
		}
	}
}

// limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn
	of    *Listener
	gone  atomic.Bool   // the place is another's
	waits *list.Element // while it is idle; guarded by the listener's lock
}

// Close closes the connection; only the first call frees the place.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	if c.gone.Swap(true) {
		return err
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.open--
	if c.waits != nil {
		c.of.idle.Remove(c.waits)
		c.waits = nil
	}
	return err
}

// CloseWrite ends what is sent, so that a client can read the last answer before the connection is closed.
func (c *limitedConn) CloseWrite() error {
	if half, can := c.Conn.(interface{ CloseWrite() error }); can {
		return half.CloseWrite()
	}
	return nil
}
