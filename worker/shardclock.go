package worker

import (
	"context"
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
)

// The clock of a shard from which jobs leave is sampled by extra calls where the polls do not give
// it to exactness, at most readMost times in readEvery: the fastest answer counts.
const (
	exactness = 100 * time.Microsecond
	readEvery = 5 * time.Second
	readMost  = 8
)

// shardClock is what the loop of a shard, which alone uses it, knows of the shard's clock and of
// the way to it.
type shardClock struct {
	placer
	shard    *shard
	distance distance
	readAt   moment // of the first extra call in the last readEvery
	readings int    // since then
}

// way returns how far Redis is: what polls of this shard took, and at least what heartbeats took.
func (c *shardClock) way(now moment) roundTrip {
	polls := c.distance.estimate(now)
	beats, _ := c.shard.d.ofBeats(now)
	return roundTrip{now, max(polls.whole, beats.whole), max(polls.back, beats.back)}
}

// observe takes the answer of a poll into account.
func (c *shardClock) observe(t queue.Tick) {
	d := c.shard.d
	now := d.watch.now()
	_, beats := d.ofBeats(now)
	c.learn(now, func(known *relation) {
		known.observe(t.Now, d.watch.at(t.Sent), d.watch.at(t.Received), ofPoll)
		known.adopt(beats, now)
	})
	if len(t.Leases) == 0 {
		return
	}
	// Polls that lease nothing write nothing, and so wait for no disk.
	answered := d.watch.at(t.Received)
	c.distance.observe(roundTrip{answered, t.Received.Sub(t.Sent), answered.since(c.known.moment(t.Now))})
	first := t.Leases[0].Stamp
	for _, l := range t.Leases {
		first = min(first, l.Stamp)
	}
	c.read(c.known.moment(first))
}

// read samples the shard's clock if it is known poorly and there is ample time before the moment:
// best before the jobs of a poll are placed on this process's clock, else before the next poll.
func (c *shardClock) read(before moment) {
	d := c.shard.d
	now, known := d.watch.now(), c.known
	if known.wrong(now) <= exactness || d.stop.Err() != nil {
		return
	}
	room := min(before.since(now)-d.options.Horizon/8, pollPatience)
	// A reading that is cut off costs its connection: twice the error is more than the round trip
	// that it comes from, and what polls take now has to fit, too.
	if room < max(2*known.err, c.way(now).whole*5/4) {
		return
	}
	if now.since(c.readAt) >= readEvery {
		c.readAt, c.readings = now, 0
	}
	if c.readings == readMost {
		return
	}
	c.readings++
	ctx, cancel := context.WithTimeout(d.work, room)
	defer cancel()
	r, err := c.shard.consumer.Clock(ctx)
	if err != nil {
		return // the next poll will report it
	}
	c.learn(d.watch.now(), func(known *relation) {
		known.observe(r.Now, d.watch.at(r.Sent), d.watch.at(r.Received), ofReading)
	})
}

// Bounds of the measurements that a distance keeps.
const (
	distanceKept = 16               // measurements
	distanceAge  = 10 * time.Second // after which one is dropped
	distanceRank = 3                // the longest of them that is believed: two stalls change nothing
)

// distance estimates how long a poll of one shard takes, there and back, so that a job's stamp lies
// ahead of the poll's answer: Redis may be in another region, or its disk slow.
type distance struct {
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
	if len(d.kept) == distanceKept {
		d.kept = slices.Delete(d.kept, 0, 1)
	}
	d.kept = append(d.kept, t)
}

// estimate returns the third longest whole and back of the measurements, the shortest where there
// are fewer than three, and zero where there are none.
func (d *distance) estimate(now moment) roundTrip {
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

// reach returns how far ahead of its stamp a job is leased, and the lead of its stamp on the
// script's clock. The horizon grows where Redis is far: half of it is the time from a poll to the
// next stamp, and the answer is to arrive a quarter of the base before that. limit bounds both: a
// lease must outlast the horizon.
func (t roundTrip) reach(base, limit time.Duration) (horizon, lead time.Duration) {
	horizon = min(max(base, 2*(t.whole+base/4)), limit)
	if t.back > base/4 {
		lead = min(t.back, horizon/2)
	}
	return horizon, lead
}
