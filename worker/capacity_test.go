package worker

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestCapacity(t *testing.T) {
	c := &capacity{limit: 100}
	s := newSeat()
	if n := c.reserve(s, 64, true); n != 64 {
		t.Errorf("reserved %d of 64", n)
	}
	if n := c.reserve(s, 16, false); n != 16 {
		t.Errorf("reserved %d of 16", n)
	}
	if n := c.reserve(s, 64, true); n != 0 {
		t.Errorf("reserved %d for many jobs, 20 are not worth a look", n)
	}
	if n := c.reserve(s, 64, false); n != 20 {
		t.Errorf("reserved %d, only 20 are left", n)
	}
	if n := c.reserve(s, 1, false); n != 0 || c.free() {
		t.Errorf("reserved %d of a full capacity", n)
	}
	c.charge(10)
	c.give(10)
	if c.free() {
		t.Error("what was charged beyond the limit is not free when it is given back")
	}
}

func TestCapacityIsGrantedInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &capacity{limit: 100, used: 100}
		a, b, d := newSeat(), newSeat(), newSeat()
		c.await(a)
		c.await(a) // waits once
		c.await(b)
		c.await(d)
		c.give(1)
		if len(a.room) != 0 {
			t.Fatal("one place is not worth a look yet")
		}
		gathered()
		if len(a.room) != 1 || len(b.room) != 0 {
			t.Fatal("one place must go to the one that waits longest, after a while")
		}
		if n := c.reserve(newSeat(), 64, false); n != 0 {
			t.Fatalf("another one got %d places before its turn", n)
		}
		// The first one goes without looking: its place is the next one's.
		c.forget(a)
		gathered()
		if len(a.room) != 0 || len(b.room) != 1 || len(d.room) != 0 {
			t.Fatal("a place that is not used must be passed on")
		}
		c.await(b) // has its place already
		if n := c.reserve(b, 64, true); n != 1 || len(b.room) != 0 {
			t.Errorf("reserved %d, one was granted", n)
		}
		if n := c.reserve(d, 64, true); n != 0 {
			t.Errorf("reserved %d of a full capacity", n)
		}
		c.give(40)
		if n := c.reserve(d, 64, true); n != 25 {
			t.Errorf("reserved %d, a portion of 25 was granted to the last one waiting", n)
		}
		c.give(5)
		c.await(a)
		gathered()
		if n := c.reserve(a, 64, true); n != 20 || c.taken() != 100 {
			t.Errorf("reserved %d of 20 that are free; %d are taken", n, c.taken())
		}
	})
}

// gathered lets the time of gathering go by.
func gathered() {
	time.Sleep(gatherRoom)
	synctest.Wait()
}

func TestCapacityIsSharedAmongThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &capacity{limit: 200, used: 200}
		seats := []*seat{newSeat(), newSeat(), newSeat(), newSeat()}
		for _, s := range seats {
			c.await(s)
		}
		c.give(70)
		c.give(60)
		gathered()
		for i, want := range []int{50, 50, 30, 0} {
			if n := c.reserve(seats[i], lookMost, true); n != want {
				t.Errorf("seat %d got %d places, want %d", i, n, want)
			}
		}
	})
}
