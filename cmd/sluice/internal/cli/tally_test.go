package cli

import (
	"testing"
	"time"
)

// A percentile is the smallest value that this share of the values does not exceed, 0 without
// values.
func TestPercentile(t *testing.T) {
	var sorted []time.Duration
	if got := Percentile(sorted, 0.99); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
	for i := range 200 {
		sorted = append(sorted, time.Duration(i+1))
	}
	for q, want := range map[float64]time.Duration{0: 1, 0.5: 100, 0.99: 198, 1: 200} {
		if got := Percentile(sorted, q); got != want {
			t.Errorf("percentile %v: %d, want %d", q, got, want)
		}
	}
}
