package auth

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGuesses()
		here := func() string { return "192.0.2.1" }
		var many *TooManyGuesses
		for n := range GuessLimit {
			if err := errors.Join(g.Wrong(here()), g.Allow(t.Context(), "elsewhere", func() string {
				return "192.0.2.2"
			})); err != nil {
				t.Fatalf("guess %d: %v", n, err)
			}
		}
		if err := g.Wrong(here()); !errors.As(err, &many) || many.Wait != guessPeriod {
			t.Errorf("one too many: %v", err)
		}
		if err := g.Wrong("192.0.2.2"); err != nil {
			t.Errorf("another address: %v", err)
		}
		// A flood: few are looked up, and known good ones always pass.
		g.Right("good")
		var looked atomic.Int64
		var all sync.WaitGroup
		start := time.Now()
		for n := range 1000 {
			all.Go(func() {
				if g.Allow(t.Context(), fmt.Sprint(n), here) == nil {
					looked.Add(1)
				}
			})
		}
		all.Wait()
		most := int64(lookupsPerSecond + lookupsPerSecond*lookupWait/time.Second + 1)
		if n := looked.Load(); n > most || time.Since(start) > lookupWait {
			t.Errorf("%d are looked up, after %v", n, time.Since(start))
		}
		start = time.Now()
		if err := g.Allow(t.Context(), "good", here); err != nil || time.Since(start) != 0 {
			t.Errorf("a good one: %v after %v", err, time.Since(start))
		}
		// One that was never seen gets its turn once the flood is over.
		if err := g.Allow(t.Context(), "new", here); err != nil {
			t.Errorf("a new one: %v", err)
		}
		time.Sleep(guessPeriod)
		if err := g.Wrong(here()); err != nil {
			t.Errorf("a minute later: %v", err)
		}
	})
}

func TestGuessesAreBounded(t *testing.T) {
	g := NewGuesses()
	for n := range 3 * guessesHeld {
		_ = g.Wrong(fmt.Sprint(n))
		g.Right(fmt.Sprint(n))
	}
	for _, n := range []int{g.wrong.Len(), g.good.Len()} {
		if n > guessesHeld {
			t.Errorf("%d are held", n)
		}
	}
}
