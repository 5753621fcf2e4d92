package figures

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// BenchmarkNote is what an arrival costs the intake in the steady state: the histories have their
// room, and the oldest runs go.
func BenchmarkNote(b *testing.B) {
	for _, tenants := range []int{1, 1000, 20_000} {
		for _, gap := range []time.Duration{50 * time.Microsecond, 20 * time.Millisecond} {
			b.Run(fmt.Sprintf("%d tenants, one each %v", tenants, gap), func(b *testing.B) {
				l, names := NewArrivals(), make([]string, tenants)
				for i := range names {
					names[i] = fmt.Sprint("tenant-", i)
				}
				now, i := noon, 0
				note := func() {
					if i++; i >= tenants {
						i = 0
					}
					now += shaper.Instant(gap.Microseconds())
					l.Note(names[i], Arrival{At: now, Cost: 1, Route: "default", Admitted: true})
				}
				for range 1_000_000 {
					note()
				}
				b.ReportAllocs()
				for b.Loop() {
					note()
				}
			})
		}
	}
}

// BenchmarkNoteAtOnce is the same by several callers, of one tenant and of one each.
func BenchmarkNoteAtOnce(b *testing.B) {
	for _, same := range []bool{true, false} {
		b.Run(fmt.Sprintf("of one tenant %v", same), func(b *testing.B) {
			l := NewArrivals()
			var callers, clock atomic.Int64
			clock.Store(int64(noon))
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				name := "acme"
				if n := callers.Add(1); !same {
					name = fmt.Sprint("tenant-", n)
				}
				for pb.Next() {
					l.Note(name, Arrival{At: shaper.Instant(clock.Add(25)), Cost: 1, Route: "default", Admitted: true})
				}
			})
		})
	}
}
