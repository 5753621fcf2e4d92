package shaper

import (
	"math"
	"time"
)

// Aged estimates the bytes in a store that deletes each of them a fixed time after it was added. It
// keeps the sums of the current window, which is as long as that time, and of the window before.
// The zero value is empty.
type Aged struct {
	Sum, Before int64   // bytes of the current window and of the one before
	Since       Instant // beginning of the current window
}

// Add counts bytes in.
func (a Aged) Add(now Instant, length time.Duration, bytes int64) Aged {
	switch {
	case now >= a.Since.Add(2*length):
		a = Aged{Since: now}
	case now >= a.Since.Add(length):
		a = Aged{Before: a.Sum, Since: a.Since.Add(length)}
	}
	a.Sum += bytes
	return a
}

// Left returns the bytes that are still there, if those of the window before came evenly. It
// computes in doubles, as the script does.
func (a Aged) Left(now Instant, length time.Duration) int64 {
	part := func(bytes int64, left time.Duration) int64 {
		return int64(math.Floor(float64(bytes) * (float64(left.Microseconds()) / float64(length.Microseconds()))))
	}
	switch age := now.Sub(a.Since); {
	case age >= 2*length:
		return 0
	case age >= length:
		return part(a.Sum, 2*length-age)
	default:
		return a.Sum + part(a.Before, length-age)
	}
}
