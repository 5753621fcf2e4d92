package listen

import (
	"container/list"
	"context"
	"io"
	"net"
	"net/http"
	"sync"
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
// One that owes more than unpaidFirst waits for its part of one budget of the listener, which the
// addresses that wait share, and the connections of each.
const (
	unpaidRate  = 512 << 10 // bytes a second, of all connections together
	unpaidFirst = 4 << 10   // bytes of a connection, such as of its TLS handshake
	unpaidStep  = 4 << 10   // bytes for which a connection waits at once
	// unpaidAnswer is what an answer without the store costs, in bytes that are received: about as
	// much processor time.
	unpaidAnswer = 150
	// unpaidText is how many bytes of a body that was read for such an answer cost as much as one
	// of them.
	unpaidText = 16
	// unpaidAhead is how many bytes a connection may have sent of bodies that are still to be read:
	// its receive buffer and a record of TLS.
	unpaidAhead = receiveBuffer + 16<<10
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

	mu        sync.Mutex
	lines     list.List // of *line, in the order of their turns
	addresses map[string]*list.Element
	serving   bool
}

// line are the connections of an address that wait.
type line struct {
	address string
	waiting list.List // of *waiter
}

// waiter is a connection that waits.
type waiter struct {
	address    string
	inLine     bool
	slot, paid chan struct{} // each for one signal
}

// account is that of one connection.
type account struct {
	owed    atomic.Int64 // bytes that no paid request explains
	answers atomic.Int64 // bytes that answers without the store cost; nothing explains them
	waited  atomic.Int64 // bytes of both for which the connection has waited
	bodies  atomic.Int64 // bytes of the bodies of running requests that are still to be read
	held    atomic.Int64 // answers under way
	waiter  atomic.Pointer[waiter]
	open    context.Context
	close   context.CancelFunc
}

// due is for how many bytes the connection has to wait. The last n may still be explained.
func (a *account) due(n int) int64 {
	ahead := min(a.bodies.Load(), unpaidAhead)
	return a.owed.Load() + a.answers.Load() - int64(n) - a.waited.Load() - unpaidFirst - ahead - ahead/8
}

// Read waits after it has read, for what came before: by then a request has explained it.
func (c *boundedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	a := &c.account
	a.owed.Add(int64(n))
	if a.due(n) > 0 && c.address != "" { // else it is of many clients
		c.of.unpaid.waits.Inc()
		if err := c.of.unpaid.wait(c, n); err != nil {
			return 0, err // it was closed meanwhile
		}
	}
	return n, err
}

// wait returns when nothing is due, or the connection has been closed.
func (u *unpaid) wait(c *boundedConn, n int) error {
	a, w := &c.account, &waiter{address: c.address, slot: make(chan struct{}, 1), paid: make(chan struct{}, 1)}
	a.waiter.Store(w)
	defer a.waiter.Store(nil)
	for a.due(n) > 0 {
		leave := u.enter(w)
		select {
		case <-w.slot:
			a.waited.Add(unpaidStep)
		case <-w.paid:
			leave()
		case <-a.open.Done():
			leave()
			return net.ErrClosed
		}
	}
	return nil
}

// enter gives a connection its turn now, or in line; leave takes it out of the line.
func (u *unpaid) enter(w *waiter) (leave func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.serving && u.budget.AllowN(time.Now(), unpaidStep) {
		w.slot <- struct{}{}
		return func() { <-w.slot }
	}
	at := u.addresses[w.address]
	if at == nil {
		at = u.lines.PushBack(&line{address: w.address})
		u.addresses[w.address] = at
	}
	l := at.Value.(*line)
	place := l.waiting.PushBack(w)
	w.inLine = true
	if !u.serving {
		u.serving = true
		go u.serve()
	}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		if !w.inLine {
			<-w.slot // it came meanwhile
			return
		}
		u.remove(at, place)
	}
}

// serve gives turns while connections wait: to one address after the other.
func (u *unpaid) serve() {
	for {
		_ = u.budget.WaitN(context.Background(), unpaidStep) // fails for more than its burst only
		u.mu.Lock()
		at := u.lines.Front()
		if at == nil {
			u.serving = false
			u.mu.Unlock()
			return
		}
		u.lines.MoveToBack(at)
		u.remove(at, at.Value.(*line).waiting.Front()).slot <- struct{}{}
		u.mu.Unlock()
	}
}

// remove takes a connection out of the line of its address. The lock is held.
func (u *unpaid) remove(at, place *list.Element) *waiter {
	l := at.Value.(*line)
	w := l.waiting.Remove(place).(*waiter)
	if w.inLine = false; l.waiting.Len() == 0 {
		u.lines.Remove(at)
		delete(u.addresses, l.address)
	}
	return w
}

// explain takes received bytes off the account: those of a paid request.
func (a *account) explain(n int) {
	if a.owed.Add(int64(-n)) < 0 {
		a.owed.Store(0) // a request is taken for a little more than it was
	}
	a.paid()
}

// paid wakes the connection if it waits, to see whether it still has to.
func (a *account) paid() {
	if w := a.waiter.Load(); w != nil {
		select {
		case w.paid <- struct{}{}:
		default:
		}
	}
}

// mostLines is how many lines of headers a request may have. The server bounds their bytes alone,
// and each line costs as much as a hundred bytes of a body.
const mostLines = 200

func lines(h http.Header) (n int) {
	for _, values := range h {
		n += len(values)
	}
	return n
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
	left    int64 // bytes that are still to be read
	read    int64 // bytes that were read
}

func (b *paidBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.expect(-min(int64(n), b.left))
	b.read += int64(n)
	b.account.explain(n + n/8) // with what frames and records of TLS add
	return n, err
}

// expect changes how many bytes are still to be read.
func (b *paidBody) expect(n int64) {
	b.left += n
	b.account.bodies.Add(n)
}

type connKey struct{}

// paying takes each request for one that pays, until Unpaid says that it does not.
func paying(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c, _ := r.Context().Value(connKey{}).(*boundedConn); c != nil {
			if length := r.ContentLength; length != 0 {
				if length < 0 { // it may be any
					length = unpaidAhead
				}
				b := &paidBody{ReadCloser: r.Body, account: &c.account}
				b.expect(length)
				defer func() { b.expect(-b.left) }()
				r.Body = b
			}
			c.account.explain(sizeOf(r))
			if lines(r.Header) > mostLines {
				Unpaid(w, r, func() {
					http.Error(w, "a request may have 200 lines of headers", http.StatusRequestHeaderFieldsTooLarge)
				})
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Owe counts refused of the parts of a request, such as the invalid jobs of a batch: each is
// answered without the store, and its part of the body was read for that.
func Owe(r *http.Request, refused, parts int) {
	c, _ := r.Context().Value(connKey{}).(*boundedConn)
	if c == nil || refused == 0 {
		return
	}
	if b, has := r.Body.(*paidBody); has {
		c.account.answers.Add(b.read / unpaidText * int64(refused) / int64(parts))
	}
	c.account.answers.Add(int64(refused) * unpaidAnswer)
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
	if b, has := r.Body.(*paidBody); has {
		b.expect(-b.left)
		a.answers.Add(b.read / unpaidText)
	}
	a.answers.Add(int64(sizeOf(r) + unpaidAnswer))
	if r.ProtoMajor < 2 { // whose next request waits for this answer
		if a.due(0) > 0 && c.address != "" { // and may have come with this one, in one segment
			_ = u.wait(c, 0) // it was closed meanwhile
		}
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
