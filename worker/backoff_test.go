package worker

import (
	"math"
	"testing"
	"time"
)

func TestBackoff(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	tests := []struct {
		retry     Retry
		attempt   int
		low, high time.Duration
	}{
		{Retry{MinBackoff: s, MaxBackoff: time.Hour}, 1, 800 * ms, 1200 * ms},
		{Retry{MinBackoff: s, MaxBackoff: time.Hour}, 2, 1600 * ms, 2400 * ms},
		{Retry{MinBackoff: s, MaxBackoff: time.Hour}, 5, 12800 * ms, 19200 * ms},
		{Retry{MinBackoff: s, MaxBackoff: time.Hour}, 1000, 48 * time.Minute, time.Hour},
		{Retry{MinBackoff: 200 * ms, MaxBackoff: 400 * ms}, 1, 160 * ms, 240 * ms},
		{Retry{MinBackoff: 200 * ms, MaxBackoff: 400 * ms}, 2, 320 * ms, 400 * ms},
		{Retry{MinBackoff: 200 * ms, MaxBackoff: 400 * ms}, 3, 320 * ms, 400 * ms},
		{Retry{MinBackoff: s, MaxBackoff: s}, 7, 800 * ms, s},
		{Retry{MinBackoff: 1, MaxBackoff: 1}, 1, 1, 1},
		{Retry{MinBackoff: 300 * ms, MaxBackoff: s}, 0, 240 * ms, 360 * ms},
		{Retry{MinBackoff: s, MaxBackoff: math.MaxInt64}, 200, math.MaxInt64 / 5 * 4, math.MaxInt64},
	}
	for _, tt := range tests {
		least, most := time.Duration(math.MaxInt64), time.Duration(0)
		for range 2000 {
			d := tt.retry.backoff(tt.attempt)
			least, most = min(least, d), max(most, d)
		}
		if least < tt.low || most > tt.high {
			t.Errorf("%+v, attempt %d: %v to %v, want within %v to %v", tt.retry, tt.attempt, least, most,
				tt.low, tt.high)
		}
		if span := tt.high - tt.low; most-least < span*3/4 {
			t.Errorf("%+v, attempt %d: %v to %v is hardly spread", tt.retry, tt.attempt, least, most)
		}
	}
}

func TestPauses(t *testing.T) {
	var p pauses
	for _, want := range []time.Duration{25, 50, 100, 200, 400, 500, 500} {
		if got := p.next(); got != want*time.Millisecond {
			t.Errorf("pause %v, want %v", got, want*time.Millisecond)
		}
	}
	p = pauses{}
	if got := p.next(); got != minPause {
		t.Errorf("after a reset the pause is %v", got)
	}
}
