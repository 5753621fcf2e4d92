package shaper_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

// TestAged: while bytes come evenly, what Aged says is left is what was added within the time; and
// never more than twice that time's.
func TestAged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		length := time.Duration(rapid.Int64Range(1, 100).Draw(t, "length")) * time.Second
		step := length / time.Duration(rapid.Int64Range(10, 50).Draw(t, "additions in it"))
		var a shaper.Aged
		now := shaper.Instant(1_000_000_000_000)
		for range rapid.IntRange(60, 200).Draw(t, "additions") {
			a, now = a.Add(now, length, 1000), now.Add(step)
		}
		there := 1000 * int64(length/step)
		if left := a.Left(now, length); left < there*8/10 || left > there*12/10 {
			t.Fatalf("%d left of about %d", left, there)
		}
		if left := a.Left(now.Add(2*length), length); left != 0 {
			t.Fatalf("%d left after twice the time", left)
		}
	})
}

// TestAgedBurst: what came at once is all there until its time is over, and gone after twice the
// time.
func TestAgedBurst(t *testing.T) {
	const length = time.Hour
	start := shaper.Instant(1_000_000_000_000)
	a := shaper.Aged{}.Add(start, length, 500)
	for after, want := range map[time.Duration]int64{
		0: 500, length - time.Microsecond: 500, 3 * length / 2: 250, 2 * length: 0,
	} {
		if left := a.Left(start.Add(after), length); left != want {
			t.Errorf("%d left after %v, want %d", left, after, want)
		}
	}
}
