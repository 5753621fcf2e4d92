package budget

import (
	"container/list"
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/internal/problem"
)

// heavyReads are the heavy reads of one process that run at once: lists, and pieces of large
// answers. They are few, so that Redis serves others between them.
const heavyReads = 8

// largeText is from how many bytes on a body waits for its turn to be decoded.
const largeText = 4 << 10

// decodePatience is far beyond the time in which all bodies that a tenant may send at once are
// decoded.
const decodePatience = 30 * time.Second

// Gate lets few calls of one kind run at once. The others wait in line. One whose owner has its
// share is passed by those of others.
type Gate struct {
	shares Shares
	what   string // the plural of the kind, for messages

	mu   sync.Mutex
	line *list.List // of *waiter, the first to come first
}

type waiter struct {
	owner Owner
	ready chan struct{} // closed when it may run
}

// NewHeavyReads returns the gate of the heavy reads of one process.
func NewHeavyReads() *Gate {
	return newGate(heavyReads, 25, 50, "concurrent lists and reads of large answers")
}

// NewDecoders returns the gate of the bodies that one process decodes at once: one for each of its
// processors, and of one tenant on half of them. Without it, each submission waits for a processor
// behind all bodies that have arrived. It buys: beside 48 clients whose bodies of 240 KB are
// refused, half of the other submissions take 3 ms, and not 90.
func NewDecoders() *Gate {
	return newGate(int64(runtime.GOMAXPROCS(0)), 50, 100, "bodies that are decoded at once")
}

// newGate returns a gate for most calls at once. One tenant and one address get these percentages
// of them.
func newGate(most int64, tenant, address Percent, what string) *Gate {
	return &Gate{shares: NewShares(most, tenant, address), what: what, line: list.New()}
}

// Decode calls decode when a body of the owner with this many bytes may be decoded. The error is
// that of Enter or of decode. Small bodies do not wait. The place of a large one rests afterwards
// for as long as decode took.
func (g *Gate) Decode(ctx context.Context, owner Owner, bytes int, decode func() error) error {
	if bytes >= largeText {
		leave, err := g.Enter(ctx, owner, decodePatience)
		if err != nil {
			return err
		}
		began := time.Now()
		defer func() { time.AfterFunc(time.Since(began), leave) }()
	}
	return decode()
}

// Enter returns when a call of the owner may run; the caller must call leave after it. The error is
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
		err = problem.RateLimited.With(full.Text(g.what)).
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

// leave ends a call and lets those run that now may.
func (g *Gate) leave(owner Owner) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shares.Give(owner, 1)
	for e := g.line.Front(); e != nil && g.shares.Count() < g.shares.most; {
		w, next := e.Value.(*waiter), e.Next()
		if g.shares.Take(w.owner, 1) == Unbound {
			g.line.Remove(e)
			close(w.ready)
		}
		e = next
	}
}
