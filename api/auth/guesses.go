package auth

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/golang-lru/v2/simplelru"
	"golang.org/x/time/rate"
)

const (
	// GuessLimit is the number of wrong credentials of one address within guessPeriod that are
	// answered with 401. Further ones are answered with 429.
	GuessLimit  = 10
	guessPeriod = time.Minute
	// guessesHeld bounds the addresses, and the good credentials, in memory.
	guessesHeld = 10_000
	// lookupsPerSecond is how many credentials of addresses beyond their limit are looked up in the
	// store in a second, lookupWait how long a request waits for that.
	lookupsPerSecond = 20
	lookupWait       = 400 * time.Millisecond
)

// Guesses counts the wrong credentials of each address in this process, for all listeners together.
//
// It never refuses a credential that is verified without the store, such as the admin token or a
// signed JWT, nor one that was good before. Other lookups from an address beyond its limit wait for
// one of a few lookups a second. So a flood of guesses costs the store little, and clients with a
// valid credential get in from the same address.
type Guesses struct {
	lookups *rate.Limiter

	mu    sync.Mutex
	wrong *simplelru.LRU[string, tally]    // by address
	good  *simplelru.LRU[string, struct{}] // credentials by a name that is no secret
}

// tally counts the wrong credentials of an address since an instant.
type tally struct {
	since time.Time
	n     int
}

// NewGuesses returns a counter of no addresses.
func NewGuesses() *Guesses {
	wrong, _ := simplelru.NewLRU[string, tally](guessesHeld, nil) // fails only for sizes below 1
	good, _ := simplelru.NewLRU[string, struct{}](guessesHeld, nil)
	return &Guesses{lookups: rate.NewLimiter(lookupsPerSecond, lookupsPerSecond), wrong: wrong, good: good}
}

// TooManyGuesses means that an address has sent too many wrong credentials.
type TooManyGuesses struct {
	Wait time.Duration // until the address may guess again
}

func (e *TooManyGuesses) Error() string {
	return fmt.Sprintf("more than %d credentials of the client's address were wrong within a minute", GuessLimit)
}

// Allow returns nil when the credential of this name may be looked up in the store, else
// *TooManyGuesses. It calls address only if it needs it.
func (g *Guesses) Allow(ctx context.Context, name string, address func() string) error {
	g.mu.Lock()
	if _, good := g.good.Get(name); good {
		g.mu.Unlock()
		return nil
	}
	t, _ := g.wrong.Get(address())
	g.mu.Unlock()
	wait := t.left(time.Now())
	if wait <= 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	if g.lookups.Wait(ctx) != nil {
		return &TooManyGuesses{wait}
	}
	return nil
}

// Wrong counts a wrong credential. Beyond the limit it returns *TooManyGuesses.
func (g *Guesses) Wrong(address string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	t, known := g.wrong.Get(address)
	if !known || now.Sub(t.since) >= guessPeriod {
		t = tally{since: now}
	}
	over := t.left(now)
	t.n++
	g.wrong.Add(address, t)
	if over > 0 {
		return &TooManyGuesses{over}
	}
	return nil
}

// left is the time for which the address stays beyond its limit; 0 if it is below.
func (t tally) left(now time.Time) time.Duration {
	if t.n < GuessLimit {
		return 0
	}
	return max(0, guessPeriod-now.Sub(t.since))
}

// Right stores the name of a good credential.
func (g *Guesses) Right(name string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.good.Add(name, struct{}{})
}
