// Package turn lets a few senders that gather work send one after the other: what arrives during
// one exchange makes the next one larger. No sender waits long for a slow exchange, or once it has
// gathered enough for an exchange of its own.
package turn

import (
	"sync"
	"sync/atomic"
	"time"
)

// Patience is how long an exchange may delay the next sender; exchanges over a fast link are
// shorter.
const Patience = 2 * time.Millisecond

// Turns gives the turn to one sender at a time. Make it with New.
type Turns struct {
	token chan struct{}
	out   atomic.Int32           // exchanges under way
	pass  atomic.Pointer[func()] // what passes the turn on that was taken last
}

// New returns Turns whose first turn is free.
func New() *Turns {
	t := &Turns{token: make(chan struct{}, 1)}
	t.token <- struct{}{}
	return t
}

// Take waits for the turn, and returns false if done is closed first. The sender must call end
// after its exchange. The next sender gets the turn at end, at Share, or after Patience.
func (t *Turns) Take(done <-chan struct{}) (end func(), ok bool) {
	select {
	case <-t.token:
	case <-done:
		return nil, false
	}
	t.out.Add(1)
	pass := sync.OnceFunc(func() { t.token <- struct{}{} })
	t.pass.Store(&pass)
	timer := time.AfterFunc(Patience, pass)
	return sync.OnceFunc(func() {
		timer.Stop()
		t.out.Add(-1)
		pass()
	}), true
}

// Share gives the turn to the next sender during the exchange, if no other exchange is running. The
// next exchange then reaches Redis before this one ends, so neither side idles.
func (t *Turns) Share() {
	if t.out.Load() != 1 {
		return
	}
	if pass := t.pass.Load(); pass != nil {
		(*pass)()
	}
}
