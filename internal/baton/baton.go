// Package baton lets a few senders that gather work send one after the other: what arrives during
// one exchange makes the next one larger. No sender waits long for a slow exchange, or once it has
// gathered enough for an exchange of its own.
package baton

import (
	"sync"
	"sync/atomic"
	"time"
)

// Patience is how long an exchange should delay the next sender; exchanges over a fast link are
// shorter.
const Patience = 2 * time.Millisecond

// Baton is held by one sender at a time. Make it with New.
type Baton struct {
	token chan struct{}
	out   atomic.Int32           // exchanges under way
	pass  atomic.Pointer[func()] // passes on what was taken last
}

// New returns a baton that nobody holds.
func New() *Baton {
	b := &Baton{token: make(chan struct{}, 1)}
	b.token <- struct{}{}
	return b
}

// Take waits for the baton, and returns false if done is closed first. The sender must call end
// after its exchange. The next sender gets the baton at end, at Pass, or after patience.
func (b *Baton) Take(done <-chan struct{}, patience time.Duration) (end func(), ok bool) {
	select {
	case <-b.token:
	case <-done:
		return nil, false
	}
	b.out.Add(1)
	pass := sync.OnceFunc(func() { b.token <- struct{}{} })
	b.pass.Store(&pass)
	timer := time.AfterFunc(patience, pass)
	return sync.OnceFunc(func() {
		timer.Stop()
		b.out.Add(-1)
		pass()
	}), true
}

// Pass gives the baton to the next sender during the exchange, if no other exchange is running. The
// next exchange then reaches Redis before this one ends, so neither side idles.
func (b *Baton) Pass() {
	if b.out.Load() != 1 {
		return
	}
	if pass := b.pass.Load(); pass != nil {
		(*pass)()
	}
}
