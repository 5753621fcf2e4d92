package budget

import (
	"strconv"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

func TestReadBudget(t *testing.T) {
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for rate, story := range map[string][]struct {
		at     time.Duration
		tenant string
		wait   time.Duration
	}{
		"2/s": {
			{0, "a", 0}, {0, "a", 0}, {0, "a", 500 * time.Millisecond}, {0, "b", 0}, // each has its own
			// A refusal spends nothing.
			{499 * time.Millisecond, "a", time.Millisecond}, {500 * time.Millisecond, "a", 0},
			{500 * time.Millisecond, "a", 500 * time.Millisecond},
			// No more than a second's worth gathers.
			{time.Hour, "a", 0}, {time.Hour, "a", 0}, {time.Hour, "a", 500 * time.Millisecond},
		},
		"5/m": { // less than one a second: one at once
			{0, "a", 0}, {0, "a", 12 * time.Second}, {11 * time.Second, "a", time.Second}, {12 * time.Second, "a", 0},
			// A generation is over, and forgets nothing that matters.
			{13 * time.Second, "b", 0}, {25 * time.Second, "a", 0},
			{25 * time.Second, "b", 0}, {26 * time.Second, "a", 11 * time.Second},
			{36 * time.Second, "b", time.Second},
		},
	} {
		r, err := shaper.ParseRate(rate)
		if err != nil {
			t.Fatal(err)
		}
		b := NewReads(r)
		for i, s := range story {
			if wait := b.Take(s.tenant, start.Add(s.at)); wait.Round(time.Microsecond) != s.wait {
				t.Errorf("%s, step %d: %s at %v waits %v, want %v", rate, i, s.tenant, s.at, wait, s.wait)
			}
		}
	}
}

// A flood of names fills no memory, and does not give back its reads to a tenant that reads on.
func TestFloodOfNames(t *testing.T) {
	b := NewReads(shaper.Rate{Limit: 1, Period: time.Hour})
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	b.Take("busy", now)
	for i := range 5 * maxReaders {
		b.Take(strconv.Itoa(i), now)
		if i%100 == 0 && b.Take("busy", now) == 0 {
			t.Fatalf("after %d names the busy tenant is forgotten", i)
		}
		if n := b.readers.Len(); n > maxReaders {
			t.Fatalf("%d tenants are remembered", n)
		}
	}
}
