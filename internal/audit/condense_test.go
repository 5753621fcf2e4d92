package audit

import (
	"encoding/json"
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// gather returns a log whose entries stay in memory, as while another call is sent.
func gather(t *testing.T) *Log {
	t.Helper()
	l, err := New(nil, Options{MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	l.sending, l.failing = make(chan struct{}), true
	return l
}

func refused(address string) Entry {
	return Entry{Address: address, Action: Refused, Outcome: "unauthorized"}
}

// sum is how many entries stand for how many events.
func sum(t *testing.T, l *Log) (entries, events int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.waiting {
		var detail struct {
			Count  int
			Counts map[string]int
		}
		if err := json.Unmarshal([]byte(p.details), &detail); err != nil {
			t.Fatal(err)
		}
		n := detail.Count
		for _, c := range detail.Counts {
			n += c
		}
		events += max(n, 1)
	}
	return len(l.waiting), events
}

// TestGuesses: wrong credentials make one entry a minute and address, however many there are; all
// are counted.
func TestGuesses(t *testing.T) {
	for name, c := range map[string]struct {
		address func(n int) string
		most    int
	}{
		"one address":         {func(int) string { return "192.0.2.1" }, 6},
		"one /64":             {func(n int) string { return fmt.Sprintf("2001:db8::%x", n) }, 6},
		"thousands of /64":    {func(n int) string { return fmt.Sprintf("2001:db8:0:%x::1", n) }, 6 * (maxAddresses + 1)},
		"one after the other": {func(n int) string { return fmt.Sprintf("2001:db8:0:%x::1", n/100) }, 6 * (maxAddresses + 1)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := gather(t)
				for n := range 3000 {
					l.Record(t.Context(), refused(c.address(n)))
					time.Sleep(100 * time.Millisecond) // five minutes
				}
				time.Sleep(3 * time.Minute)
				synctest.Wait()
				entries, events := sum(t, l)
				if entries > c.most || events != 3000 {
					t.Errorf("%d entries of %d events, want at most %d of 3000", entries, events, c.most)
				}
				if l.timer != nil || len(l.windows) > 0 {
					t.Errorf("%d windows are left", len(l.windows))
				}
			})
		})
	}
}

// TestReads: reads have entries of their own up to a bound, then a count with subjects. Changes
// always have their own.
func TestReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := gather(t)
		for n := range 1000 {
			l.Record(t.Context(), Entry{Actor: "olaf", Action: JobRead, Subject: fmt.Sprint(n), Outcome: OK})
		}
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		if entries, events := sum(t, l); entries != alone+1 || events != 1000 {
			t.Errorf("%d entries of %d reads", entries, events)
		}
		for range 1000 {
			l.Record(t.Context(), Entry{Actor: "olaf", Action: "tenant.patch", Outcome: OK})
		}
		if entries, _ := sum(t, l); entries != alone+1001 {
			t.Errorf("%d entries after 1000 changes", entries)
		}
	})
}

// TestRefreshedRead: a page that reads one job once a second makes one entry a minute.
func TestRefreshedRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := gather(t)
		for range 300 {
			l.Record(t.Context(), Entry{Actor: "olaf", Action: JobRead, Subject: "J", Outcome: OK})
			time.Sleep(time.Second)
		}
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		if entries, events := sum(t, l); entries > 7 || events != 300 {
			t.Errorf("%d entries of %d reads", entries, events)
		}
	})
}

// TestShare: a class that has used its share gets one entry an hour. The others go on.
func TestShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := gather(t)
		l.head.Refusals = 1 << 20 * share / 100
		for n := range 1000 {
			l.Record(t.Context(), refused(fmt.Sprintf("192.0.2.%d", n%200)))
			l.Record(t.Context(), Entry{Actor: "vera", Action: "tenant.patch", Outcome: "forbidden"})
		}
		l.Record(t.Context(), Entry{Actor: "olaf", Action: JobRead, Outcome: OK})
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if entries, events := sum(t, l); entries != 2 || events != 2001 {
			t.Errorf("%d entries of %d events", entries, events)
		}
	})
}

// TestMemory: what waits for Redis is bounded, and what finds no room is counted.
func TestMemory(t *testing.T) {
	l := gather(t)
	for range heldEntries + 7 {
		l.Record(t.Context(), Entry{Action: "tenant.patch", Outcome: OK})
	}
	if len(l.waiting) != heldEntries || l.dropped != 7 {
		t.Errorf("%d entries wait, %d are dropped", len(l.waiting), l.dropped)
	}
}
