package worker

import "testing"

func TestCapacity(t *testing.T) {
	c := &capacity{limit: 100}
	s := newSeat()
	if n := c.reserve(s, 64); n != 64 {
		t.Errorf("reserved %d of 64", n)
	}
	if n := c.reserve(s, 64); n != 36 {
		t.Errorf("reserved %d, only 36 are left", n)
	}
	if n := c.reserve(s, 1); n != 0 || c.free() {
		t.Errorf("reserved %d of a full capacity", n)
	}
	c.charge(10)
	c.give(10)
	if c.free() {
		t.Error("what was charged beyond the limit is not free when it is given back")
	}
}

func TestCapacityIsGrantedInTurn(t *testing.T) {
	c := &capacity{limit: 100, used: 100}
	a, b, d := newSeat(), newSeat(), newSeat()
	c.await(a)
	c.await(a) // waits once
	c.await(b)
	c.await(d)
	c.give(1)
	if len(a.room) != 1 || len(b.room) != 0 {
		t.Fatal("one place must go to the one that waits longest")
	}
	if n := c.reserve(newSeat(), 64); n != 0 {
		t.Fatalf("another one got %d places before its turn", n)
	}
	// The first one goes without looking: its place is the next one's.
	c.forget(a)
	if len(a.room) != 0 || len(b.room) != 1 || len(d.room) != 0 {
		t.Fatal("a place that is not used must be passed on")
	}
	c.await(b) // has its place already
	if n := c.reserve(b, 64); n != 1 || len(b.room) != 0 {
		t.Errorf("reserved %d, one was granted", n)
	}
	if n := c.reserve(d, 64); n != 0 {
		t.Errorf("reserved %d of a full capacity", n)
	}
	c.give(40)
	if n := c.reserve(d, 64); n != 40 {
		t.Errorf("reserved %d, 40 were granted to the last one waiting", n)
	}
	c.give(5)
	c.await(a)
	if len(a.room) != 1 || c.taken() != 100 {
		t.Errorf("waiting for places that are free must not block; %d are taken", c.taken())
	}
}

func TestCapacityIsSharedAmongThoseWhoWait(t *testing.T) {
	c := &capacity{limit: 200, used: 200}
	seats := []*seat{newSeat(), newSeat(), newSeat(), newSeat()}
	for _, s := range seats {
		c.await(s)
	}
	c.give(100)
	c.give(10)
	for i, want := range []int{25, 25, 25, 25} {
		if n := c.reserve(seats[i], lookMost); n != want {
			t.Errorf("seat %d got %d places, want %d", i, n, want)
		}
	}
	c.used = 200
	for _, s := range seats {
		c.await(s)
	}
	c.give(20)
	for i, want := range []int{leastShare, 20 - leastShare, 0, 0} {
		if n := c.reserve(seats[i], lookMost); n != want {
			t.Errorf("seat %d got %d places of few, want %d", i, n, want)
		}
	}
}
