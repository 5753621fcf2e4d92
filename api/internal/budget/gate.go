package budget

import (
	"container/list"
	"context"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
)

// The heavy reads of one process that run at once: of all clients, and the shares of one tenant and
// one address in percent. They are few, so that Redis serves others between them.
const (
	heavyReads           = 8
	heavyTenant  Percent = 25
	heavyAddress Percent = 50
)

// Gate lets few heavy reads of the store run at once: lists, and pieces of large answers. The
// others wait in line. A read whose owner has its share is passed by those of others.
type Gate struct {
	shares Shares

	mu   sync.Mutex
	line *list.List // of *waiter, the first to come first
}

type waiter struct {
	owner Owner
	ready chan struct{} // closed when it may run
}

// NewGate returns a gate without reads.
func NewGate() *Gate {
	return &Gate{shares: NewShares(heavyReads, heavyTenant, heavyAddress), line: list.New()}
}

// Enter returns when a read of the owner may run; the caller must call leave after it. The error is
// that of ctx, or a *problem.Problem after patience.
func (g *Gate) Enter(ctx context.Context, owner Owner, patience time.Duration) (leave func(), err error) {
	leave = func() { g.leave(owner) }
	g.mu.Lock()
	full := g.shares.Take(owner, 1)
	if full == Unbound {
		g.mu.Unlock()
		return leave, nil
	}
	w := &waiter{owner, make(chan struct{})}
	element := g.line.PushBack(w)
	g.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-w.ready:
		return leave, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timer.C:
		err = problem.RateLimited.With(full.Text("concurrent lists and reads of large answers")).
			RetryIn(time.Second)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-w.ready: // meanwhile
		return leave, nil
	default:
	}
	g.line.Remove(element)
	return nil, err
}

// leave ends a read and lets those run that now may.
func (g *Gate) leave(owner Owner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shares.Give(owner, 1)
	for e := g.line.Front(); e != nil && g.shares.Count() < heavyReads; {
		w, next := e.Value.(*waiter), e.Next()
		if g.shares.Take(w.owner, 1) == Unbound {
			g.line.Remove(e)
			close(w.ready)
		}
		e = next
	}
}
