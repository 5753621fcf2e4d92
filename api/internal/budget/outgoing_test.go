package budget

import (
	"context"
	"errors"
	"net/http/httptest"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestAnswersShare: a tenant has its share of the memory of answers. An answer that is not taken
// for a second leaves it to others.
func TestAnswersShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewAnswers(25, 50, prometheus.NewCounter(prometheus.CounterOpts{}))
		one := Owner{Tenant: "one", Address: "1"}
		var held []*Outgoing
		for {
			o, err := b.Begin(one, Piece, 1<<20)
			if err != nil {
				break
			}
			o.To(httptest.NewRecorder())
			held = append(held, o)
		}
		if len(held) != MaxAnswers/Piece/4 || b.Count() != int64(len(held)*Piece) {
			t.Fatalf("%d answers of one tenant", len(held))
		}
		if o, err := b.Begin(Owner{Tenant: "two", Address: "1"}, Piece, Piece); err != nil {
			t.Error(err)
		} else {
			o.End()
		}
		if o, err := b.Begin(one, FreeBody, FreeBody); err != nil || o != nil {
			t.Errorf("a small answer: %v", err)
		}
		time.Sleep(BodyYield)
		if !held[0].Step(Piece) {
			t.Error("the first was ended")
		}
		o, err := b.Begin(one, Piece, Piece)
		if err != nil || !held[0].Step(2*Piece) || held[1].Step(Piece) {
			t.Errorf("not the slowest was ended: %v", err)
		}
		o.End()
		for _, o := range held {
			o.End()
			o.End()
		}
		if n := b.Count(); n != 0 {
			t.Errorf("%d bytes are held after the end", n)
		}
	})
}

// TestGate: a tenant has its share of the heavy reads; others pass it in the line.
func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := NewHeavyReads(), context.Background()
		one, two := Owner{Tenant: "one", Address: "1"}, Owner{Tenant: "two", Address: "2"}
		var leaves []func()
		for range heavyReads / 4 {
			leave, err := g.Enter(ctx, one, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			leaves = append(leaves, leave)
		}
		entered := make(chan error, 1)
		go func() {
			leave, err := g.Enter(ctx, one, time.Minute)
			if err == nil {
				defer leave()
			}
			entered <- err
		}()
		synctest.Wait()
		if leave, err := g.Enter(ctx, two, 0); err != nil {
			t.Errorf("another tenant: %v", err)
		} else {
			leave()
		}
		began := time.Now()
		if _, err := g.Enter(ctx, one, time.Second); err == nil || time.Since(began) != time.Second {
			t.Errorf("beyond the share: %v after %v", err, time.Since(began))
		}
		ended, end := context.WithCancel(ctx)
		end()
		if _, err := g.Enter(ended, one, time.Minute); err == nil {
			t.Error("a client that has left reads")
		}
		for _, leave := range leaves {
			leave()
		}
		if err := <-entered; err != nil || g.line.Len() != 0 {
			t.Errorf("%v, %d in line", err, g.line.Len())
		}
		synctest.Wait()
		if g.shares.Count() != 0 {
			t.Errorf("%d run after the last", g.shares.Count())
		}
	})
}

// TestDecoders: of the large bodies of one tenant, half of the processors decode at once, and rest
// after each for as long as it took. Small bodies, and those of others, do not wait for them.
func TestDecoders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, ctx := NewDecoders(), context.Background()
		one, two := Owner{Tenant: "one", Address: "1"}, Owner{Tenant: "two", Address: "1"}
		half := (runtime.GOMAXPROCS(0) + 1) / 2
		var begun atomic.Int64
		var all sync.WaitGroup
		for range 3 * half {
			all.Go(func() {
				err := g.Decode(ctx, one, largeText, func() error { begun.Add(1); time.Sleep(time.Second); return nil })
				if err != nil {
					t.Error(err)
				}
			})
		}
		for second, want := range []int{1, 1, 2, 2, 3} {
			time.Sleep(time.Millisecond) // now it is in the middle of that second
			synctest.Wait()
			if n := begun.Load(); n != int64(want*half) {
				t.Errorf("in second %d of decoding %d bodies of one tenant have begun, want %d", second, n, want*half)
			}
			broken := errors.New("broken")
			if err := g.Decode(ctx, one, largeText-1, func() error { return broken }); err != broken {
				t.Errorf("a small body: %v", err)
			}
			if half < runtime.GOMAXPROCS(0) {
				start := time.Now()
				err := g.Decode(ctx, two, largeText, func() error { return broken })
				if err != broken || time.Since(start) > 0 {
					t.Errorf("another tenant: %v after %v", err, time.Since(start))
				}
			}
			time.Sleep(time.Second - time.Millisecond)
		}
		all.Wait()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := g.shares.Count(); n != 0 {
			t.Errorf("%d are under way after the last", n)
		}
	})
}
