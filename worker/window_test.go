package worker

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestWindowShrinksAndGrows: looks that are answered late become fewer and then smaller, and more and larger again when they are not.
func TestWindowShrinksAndGrows(t *testing.T) {
	w := newWindow(10 * time.Millisecond)
	look := func(took time.Duration, leased int) int {
		entry, ok := w.enter(nil)
		if !ok {
			t.Fatal("no look may begin")
		}
		entry.alone = 0 // others were under way
		w.leave(entry, took, leased, false)
		return entry.most
	}
	look(time.Millisecond, 1)
	for range 100 {
		look(11*time.Millisecond, 1)
	}
	if most := look(time.Millisecond, 1); int(w.size) != windowLeast || most != lookMost {
		t.Errorf("after late answers to looks for one job: %.1f looks at once, %d jobs a look", w.size, most)
	}
	for range 100 {
		look(11*time.Millisecond, 100)
	}
	if most := look(time.Millisecond, 100); w.size > 2 || most != leastLook {
		t.Errorf("after late answers: %.1f looks at once, %d jobs a look", w.size, most)
	}
	for range 3000 {
		look(time.Millisecond, 100)
	}
	if most := look(time.Millisecond, 100); w.size != windowMost || most != lookMost {
		t.Errorf("after early answers: %.1f looks at once, %d jobs a look", w.size, most)
	}
}

// TestWindowOnALongWay: where every answer takes long, that is not the fault of the looks.
func TestWindowOnALongWay(t *testing.T) {
	w := newWindow(10 * time.Millisecond)
	for range 3000 {
		entry, _ := w.enter(nil)
		entry.alone = 0
		w.leave(entry, 50*time.Millisecond, 100, false)
	}
	if w.size != windowMost || w.most != lookMost {
		t.Errorf("%.1f looks at once, %d jobs a look", w.size, w.most)
	}
}

// TestWindowFollowsTheWay: when Redis moves away, the polls of a single busy shard, which wait for no others, do not close the
// window for the rest.
func TestWindowFollowsTheWay(t *testing.T) {
	w := newWindow(10 * time.Millisecond)
	look := func(took time.Duration) {
		entry, _ := w.enter(nil)
		w.leave(entry, took, 100, false)
	}
	for range 100 {
		look(time.Millisecond)
	}
	for range 100 {
		look(160 * time.Millisecond)
	}
	if w.size < windowLeast/2 || w.most < lookMost/2 {
		t.Errorf("%.1f looks at once, %d jobs a look", w.size, w.most)
	}
}

// TestWindowKeepsOthersOut: no more looks are under way than the window has room for, in the order in which they came, and who gives up
// takes no room.
func TestWindowKeepsOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWindow(10 * time.Millisecond)
		w.size = 32
		w.enter(nil)
		w.leave(entry{}, time.Millisecond, 1, false) // so it knows what is late
		for range 32 {
			w.enter(nil)
		}
		begun := make(chan int, 3)
		done := make(chan struct{})
		for i := range 3 {
			go func() {
				var until <-chan struct{}
				if i == 1 {
					until = done
				}
				if _, ok := w.enter(until); ok {
					begun <- i
				}
			}()
			synctest.Wait()
		}
		if len(begun) != 0 {
			t.Fatal("a look began although the window is full")
		}
		close(done)
		synctest.Wait()
		w.leave(entry{}, time.Hour, lookLeast, false) // late: the window is smaller than before
		synctest.Wait()
		if len(begun) != 0 {
			t.Fatal("a look began although the window has become smaller")
		}
		for len(begun) == 0 && w.out > 0 {
			w.leave(entry{}, time.Millisecond, 1, false)
			synctest.Wait()
		}
		if len(begun) != 1 || <-begun != 0 {
			t.Fatal("the look that waits longest must begin first")
		}
		w.leave(entry{}, time.Millisecond, 1, false)
		synctest.Wait()
		if len(begun) != 1 || <-begun != 2 || len(w.waiting) != 0 {
			t.Error("the look of which nobody waits any more stands in the way")
		}
	})
}
