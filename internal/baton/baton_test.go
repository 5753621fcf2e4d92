package baton_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/internal/baton"
)

// TestSenders: they come one after the other while exchanges are fast, and do not wait longer than
// Patience for a slow one.
func TestSenders(t *testing.T) {
	for _, c := range []struct {
		name          string
		exchange, all time.Duration
	}{
		{"fast", baton.Patience / 2, 4 * baton.Patience / 2},
		{"slow", time.Minute, 3*baton.Patience + time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b, start := baton.New(), time.Now()
				var senders sync.WaitGroup
				for range 4 {
					senders.Go(func() {
						end, ok := b.Take(nil, baton.Patience)
						if !ok {
							t.Error("no baton")
							return
						}
						time.Sleep(c.exchange)
						end()
						end() // does no harm
					})
				}
				senders.Wait()
				if took := time.Since(start); took != c.all {
					t.Errorf("four exchanges of %v took %v, want %v", c.exchange, took, c.all)
				}
			})
		})
	}
}

// TestPass: the baton is passed on before its exchange is over, to one more sender at a time.
func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := baton.New()
		b.Pass() // there is nothing to share
		first, _ := b.Take(nil, baton.Patience)
		taken, waits := make(chan func(), 3), make(chan struct{})
		for range 3 {
			go func() {
				if end, ok := b.Take(waits, baton.Patience); ok {
					taken <- end
				}
			}()
		}
		under := func(want int) {
			t.Helper()
			b.Pass()
			synctest.Wait()
			if len(taken) != want {
				t.Fatalf("%d more exchanges are under way, want %d", len(taken), want)
			}
		}
		under(1)
		under(1) // two are enough
		first()
		synctest.Wait()
		if len(taken) != 1 {
			t.Fatal("the end of an exchange whose baton was passed on has passed on another's")
		}
		under(2)
		(<-taken)()
		(<-taken)()
		synctest.Wait()
		(<-taken)()
		close(waits)
	})
}

// TestTakeEndsWithItsContext: a waiting Take ends with its context.
func TestTakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, done := baton.New(), make(chan struct{})
		end, _ := b.Take(nil, baton.Patience)
		close(done)
		if _, ok := b.Take(done, baton.Patience); ok {
			t.Error("a baton that was taken was given again")
		}
		end()
		if end, ok := b.Take(nil, baton.Patience); !ok {
			t.Error("a baton whose exchange has ended is not free")
		} else {
			end()
		}
	})
}
