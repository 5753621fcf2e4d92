package worker

import (
	"slices"
	"sync"
	"time"
)

// Bounds of the measurements that a distance keeps.
const (
	distanceKept = 16               // measurements
	distanceAge  = 10 * time.Second // after which one is dropped
	distanceRank = 3                // the longest of them that is believed: two stalls change nothing
)

// distance estimates how long a poll of one shard takes, there and back, so that a job's stamp lies ahead of the
// poll's answer. A Redis in another region, and a disk that syncs slowly, both make answers late.
// The zero value has measured nothing.
type distance struct {
	mu   sync.Mutex
	kept []roundTrip // in the order in which they were measured
}

// roundTrip is one measured way to Redis.
type roundTrip struct {
	at    moment        // of the answer
	whole time.Duration // from the request to the answer
	back  time.Duration // from the script's reading of the clock to the answer
}

// observe adds a measurement.
func (d *distance) observe(t roundTrip) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.kept) == distanceKept {
		d.kept = slices.Delete(d.kept, 0, 1)
	}
	d.kept = append(d.kept, t)
}

// estimate returns the third longest whole and back of the last measurements, which are at most ten seconds old, or the
// shortest where there are fewer than three. It is zero where there are none.
func (d *distance) estimate(now moment) roundTrip {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.kept = slices.DeleteFunc(d.kept, func(t roundTrip) bool { return now.since(t.at) > distanceAge })
	n := len(d.kept)
	if n == 0 {
		return roundTrip{}
	}
	var whole, back [distanceKept]time.Duration
	for i, t := range d.kept {
		whole[i], back[i] = t.whole, t.back
	}
	slices.Sort(whole[:n])
	slices.Sort(back[:n])
	i := max(0, n-distanceRank)
	return roundTrip{at: now, whole: whole[i], back: back[i]}
}

// reach returns how far ahead of its stamp a job is leased, and the lead of its stamp on the script's clock. The horizon
// grows where Redis is far: half of it is the time from a poll to the next stamp, and the answer is to arrive a quarter of
// the base before that. limit bounds both: a lease must outlast the horizon.
func (t roundTrip) reach(base, limit time.Duration) (horizon, lead time.Duration) {
	horizon = min(max(base, 2*(t.whole+base/4)), limit)
	if t.back > base/4 {
		lead = min(t.back, horizon/2)
	}
	return horizon, lead
}
