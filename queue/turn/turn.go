// Package turn lets a few senders that gather work send one after the other, so that what comes while one exchange is under way makes the
// next one larger; but none waits long for an exchange that is slow.
package turn

import (
	"sync"
	"time"
)

// Patience is how long an exchange keeps the next sender waiting. On a fast link it is never over.
const Patience = 2 * time.Millisecond

// Turns is whose turn it is. Make it with New.
type Turns struct{ token chan struct{} }

// New returns turns of which the first is free.
func New() *Turns {
	t := &Turns{token: make(chan struct{}, 1)}
	t.token <- struct{}{}
	return t
}

// Take waits for the turn, and returns false if done is closed first. The turn passes on when end is called, or when Patience is over;
// end must be called.
func (t *Turns) Take(done <-chan struct{}) (end func(), ok bool) {
	select {
	case <-t.token:
	case <-done:
		return nil, false
	}
	var once sync.Once
	pass := func() { once.Do(func() { t.token <- struct{}{} }) }
	timer := time.AfterFunc(Patience, pass)
	return func() {
		timer.Stop()
		pass()
	}, true
}
