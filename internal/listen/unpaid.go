package listen

import (
	"context"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/7509e464/sluice/internal/deadline"
)

// Nearly all that a client sends is paid for: a request that reaches the store takes of budgets of
// its tenant and address. Frames of HTTP/2 that are no requests, and requests that are answered
// without the store, are not, and connections that send nothing else could take both cores of a
// small machine (TestUnpaidFrames). So a connection owes the bytes that no paid request explains.
// One that owes more than unpaidFirst waits for its part of one budget of the listener.
const (
	unpaidRate  = 512 << 10 // bytes a second, of all connections together
	unpaidFirst = 4 << 10   // bytes of a connection, such as of its TLS handshake
	unpaidStep  = 4 << 10   // bytes, at least, for which a connection waits at once
	// unpaidAnswer is what an answer without the store costs, in bytes that are received: about as
	// much processor time.
	unpaidAnswer = 150
)

// A client of HTTP/2 that gives no window holds each answer, of 20 KB with its request. Answers
// without the store are in no budget of running requests, so these bound them: what a connection
// may hold depends on how many all hold.
const (
	heldFew, heldMany = 500, 2000
	heldOfOne         = 16 // between both
	heldFor           = 2 * time.Second
)

// unpaid is what the connections of a listener share.
type unpaid struct {
	budget *rate.Limiter
	held   atomic.Int64 // answers under way
	waits  prometheus.Counter
}

// account is that of one connection.
type account struct {
	owed   atomic.Int64 // bytes that no paid request explains
	waited atomic.Int64 // bytes of them for which the connection has waited
	held   atomic.Int64 // answers under way
	open   context.Context
	close  context.CancelFunc
}

// Read waits after it has read, for what came before: by then a request has explained it.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	u, a := &c.of.unpaid, &c.account
	due := a.owed.Add(int64(n)) - int64(n) - a.waited.Load() - unpaidFirst
	if due > 0 && c.address != "" { // else it is of many clients
		due = min(max(due, unpaidStep), unpaidRate)
		u.waits.Inc()
		if err := u.budget.WaitN(a.open, int(due)); err != nil {
			return 0, err // it was closed meanwhile
		}
		a.waited.Add(due)
	}
	return n, err
}

// explain takes received bytes off the account: those of a paid request.
func (a *account) explain(n int) {
	if a.owed.Add(int64(-n)) < 0 {
		a.owed.Store(0) // a request is taken for a little more than it was
	}
}

// sizeOf is at least what the head of a request was on its connection.
func sizeOf(r *http.Request) int {
	size := 64 + len(r.Method) + len(r.RequestURI) + len(r.Host)
	for name, values := range r.Header {
		for _, value := range values {
			size += len(name) + len(value) + 4
		}
	}
	return size
}

// paidBody explains the bytes of a body as they are read: the memory for bodies is bounded.
type paidBody struct {
	io.ReadCloser
	account *account
}

func (b paidBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.account.explain(n + n/8) // with what frames and records of TLS add
	return n, err
}

type connKey struct{}

// paying takes each request for one that pays, until Unpaid says that it does not.
func paying(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _ := r.Context().Value(connKey{}).(*boundedConn); c != nil {
			c.account.explain(sizeOf(r))
			if r.Body != nil && r.Body != http.NoBody {
				r.Body = paidBody{r.Body, &c.account}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Unpaid calls write, which answers a request without the store: no budget of a tenant or an
// address bounds such requests. The client waits before its next ones if it sends many. If it
// holds too many of such answers, this one is cut off (http.ErrAbortHandler).
func Unpaid(w http.ResponseWriter, r *http.Request, write func()) {
	c, _ := r.Context().Value(connKey{}).(*boundedConn)
	if c == nil { // a server without a Listener
		write()
		return
	}
	u, a := &c.of.unpaid, &c.account
	a.owed.Add(int64(sizeOf(r) + unpaidAnswer))
	if r.ProtoMajor < 2 { // whose next request waits for this answer
		write()
		return
	}
	all, mine := u.held.Add(1), a.held.Add(1)
	defer func() { u.held.Add(-1); a.held.Add(-1) }()
	if all > heldFew && mine > heldOfOne || all > heldMany && mine > 1 {
		panic(http.ErrAbortHandler)
	}
	write()
	deadline.Within(w, heldFor)
	_ = http.NewResponseController(w).Flush() // what the server does later would not be counted
}
