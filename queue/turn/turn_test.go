package turn_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/queue/turn"
)

// TestTurns: senders come one after the other while exchanges are fast, and do not wait longer than Patience for a slow one.
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

// TestTakeEnds: who waits for a turn stops when it is told to.
func TestTakeEnds(t *testing.T) {
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
