// Package turn lets a few senders that gather work send one after the other, so that what comes while one exchange is under way makes the
// next one larger; but none waits long for an exchange that is slow, or once enough is gathered for an exchange of its own.
package turn

import (
	"sync"
	"sync/atomic"
	"time"
)

// Patience is how long an exchange keeps the next sender waiting. On a fast link it is never over.
const Patience = 2 * time.Millisecond

// Turns is whose turn it is. Make it with New.
type Turns struct {
	token chan struct{}
	out   atomic.Int32           // exchanges under way
	pass  atomic.Pointer[func()] // what passes the turn on that was taken last
}

// New returns turns of which the first is free.
func New() *Turns {
	t := &Turns{token: make(chan struct{}, 1)}
	t.token <- struct{}{}
	return t
}

// Take waits for the turn, and returns false if done is closed first. The turn passes on when end is called, when Patience is over, or by
// Share; end must be called.
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

// Share passes the turn on although its exchange is under way, if no other one is: the next is then on its way when this one is over, and
// neither end waits for the other in between.
func (t *Turns) Share() {
	if t.out.Load() != 1 {
		return
	}
	if pass := t.pass.Load(); pass != nil {
		(*pass)()
	}
}
