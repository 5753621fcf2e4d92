package live

import (
	"errors"
	"testing"
	"time"
)

// What is read of all tenants together while nobody watches is little, and nothing of single ones.
func TestRememberingIsCheap(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		pass(10*time.Minute + time.Second)
		if s.count("totals") != 60 || s.count("census") != 0 || s.count("health") != 60 {
			t.Errorf("read %v", s.asked)
		}
		if past := h.Past(); len(past) != 30 || past[1].At.Sub(past[0].At) != idleEvery || time.Since(past[29].At) != time.Second {
			t.Errorf("%d moments: %+v", len(past), past)
		}
	})
}

func TestThePastIsFinerWhileSomebodyWatches(t *testing.T) {
	s := newSource()
	story(t, s, 10, func(t *testing.T, h *Hub) {
		h.Remember()
		w := begin(t, h, View{})
		pass(10*time.Second + time.Millisecond)
		if past := h.Past(); len(past) != 11 || s.count("totals") > 42 {
			t.Errorf("%d moments of %d readings", len(past), s.count("totals"))
		}
		w.Close()
		s.fail(errors.New("away"))
		pass(time.Minute)
		if past := h.Past(); len(past) != 11 {
			t.Errorf("%d moments, of when the store was away", len(past))
		}
		pass(pastKept)
		if past := h.Past(); len(past) != 0 {
			t.Errorf("%d moments are too old", len(past))
		}
	})
}
