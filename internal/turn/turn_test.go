package turn_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/internal/turn"
)

// TestTurns: senders come one after the other while exchanges are fast, and do not wait longer than
// Patience for a slow one.
func TestTurns(t *testing.T) {
	for _, c := range []struct {
		name          string
		exchange, all time.Duration
	}{
		{"fast", turn.Patience / 2, 4 * turn.Patience / 2},
		{"slow", time.Minute, 3*turn.Patience + time.Minute},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				turns, start := turn.New(), time.Now()
				var senders sync.WaitGroup
				for range 4 {
					senders.Go(func() {
						end, ok := turns.Take(nil)
						if !ok {
							t.Error("no turn")
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

// TestShare: the turn is passed on before its exchange is over, to one more sender at a time.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := turn.New()
		turns.Share() // there is nothing to share
		first, _ := turns.Take(nil)
		taken, waits := make(chan func(), 3), make(chan struct{})
		for range 3 {
			go func() {
				if end, ok := turns.Take(waits); ok {
					taken <- end
				}
			}()
		}
		under := func(want int) {
			t.Helper()
			turns.Share()
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
			t.Fatal("the end of an exchange whose turn was passed on has passed on another's")
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
		turns, done := turn.New(), make(chan struct{})
		end, _ := turns.Take(nil)
		close(done)
		if _, ok := turns.Take(done); ok {
			t.Error("a turn that was taken was given again")
		}
		end()
		if end, ok := turns.Take(nil); !ok {
			t.Error("a turn that was ended is not free")
		} else {
			end()
		}
	})
}
