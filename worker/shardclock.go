package worker

import (
	"context"
	"slices"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// The clock of a shard from which jobs leave is sampled by extra calls where the polls do not give
// it to exactness, at most readMost times in readEvery: the fastest answer counts.
const (
	exactness = 100 * time.Microsecond
	readEvery = 5 * time.Second
	readMost  = 8
)

// shardClock relates the clock of a shard to this process's, and converts the shard's stamps to
// moments. The relation changes with every better sample. A later stamp still never gets a moment
// before that of an earlier stamp whose job has not left: on a cluster, jobs of one flow would
// overtake each other, by up to 2.5 ms.
type shardClock struct {
	known    relation
	last     shaper.Instant // the latest stamp that was converted by known; 0: none
	before   []placed
	distance distance
	readAt   moment // of the first extra call in the last readEvery
	readings int    // since then
}

// placed is the relation by which stamps up to until were converted.
type placed struct {
	clock relation
	until shaper.Instant
}

// learn changes the relation.
func (c *shardClock) learn(now moment, change func(*relation)) {
	was := c.known
	change(&c.known)
	if c.known != was && c.last != 0 {
		c.before = append(c.before, placed{was, c.last})
		c.last = 0
	}
	haveLeft := func(b placed) bool { return b.clock.moment(b.until) < now }
	c.before = slices.DeleteFunc(c.before, haveLeft)
}

// schedule converts the shard's leases to jobs on the clock of the worker.
func (c *shardClock) schedule(shard int, leases []queue.Lease) []*job {
	jobs := make([]*job, len(leases))
	for i, l := range leases {
		at := c.known.moment(l.Stamp)
		for _, b := range c.before {
			at = max(at, b.clock.moment(min(l.Stamp, b.until)))
		}
		jobs[i] = &job{lease: l, shard: shard, at: at}
		jobs[i].deadline.Store(int64(c.known.moment(l.Deadline)))
		c.last = max(c.last, l.Stamp)
	}
	return jobs
}

// way returns how far Redis is: what polls of this shard took, and at least what heartbeats took.
func (s *shard) way(now moment) roundTrip {
	polls := s.clock.distance.estimate(now)
	beats, _ := s.d.ofBeats(now)
	return roundTrip{now, max(polls.whole, beats.whole), max(polls.back, beats.back)}
}

// keepTime takes the answer of a poll into account.
func (s *shard) keepTime(ctx context.Context, t queue.Tick) {
	c, watch := &s.clock, s.d.watch
	now, answered := watch.now(), watch.at(t.Received)
	_, beats := s.d.ofBeats(now)
	c.learn(now, func(known *relation) {
		known.observe(t.Now, watch.at(t.Sent), answered, ofPoll)
		known.adopt(beats, now)
	})
	if len(t.Leases) == 0 {
		return
	}
	// Polls that lease nothing write nothing, and so wait for no disk.
	c.distance.observe(roundTrip{answered, t.Received.Sub(t.Sent), answered.since(c.known.moment(t.Now))})
	first := t.Leases[0].Stamp
	for _, l := range t.Leases {
		first = min(first, l.Stamp)
	}
	s.read(ctx, c.known.moment(first))
}

// read samples the shard's clock if the relation is inexact and there is ample time before the
// moment: best before the jobs of a poll get their moments, else before the next poll.
func (s *shard) read(ctx context.Context, before moment) {
	c, watch := &s.clock, s.d.watch
	now := watch.now()
	if c.known.wrong(now) <= exactness || s.d.stopping.Load() {
		return
	}
	left := min(before.since(now)-s.d.options.Horizon/8, pollPatience)
	// A reading that is cut off costs its connection: twice the error is more than the round trip
	// that it comes from, and what polls take now has to fit, too.
	if left < max(2*c.known.err, s.way(now).whole*5/4) {
		return
	}
	if now.since(c.readAt) >= readEvery {
		c.readAt, c.readings = now, 0
	}
	if c.readings == readMost {
		return
	}
	c.readings++
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	r, err := s.consumer.Clock(ctx)
	if err != nil {
		return // the next poll will report it
	}
	c.learn(watch.now(), func(known *relation) {
		known.observe(r.Now, watch.at(r.Sent), watch.at(r.Received), ofReading)
	})
}

// Bounds of the measurements that a distance keeps.
const (
	maxDistances = 16               // measurements
	distanceAge  = 10 * time.Second // after which one is dropped
	distanceRank = 3                // the longest of them that is believed: two stalls change nothing
	stallAge     = time.Second      // for how long a single stall counts all the same
)

// distance estimates how long a poll of one shard takes, there and back, so that a job's stamp lies
// ahead of the poll's answer: Redis may be in another region, or its disk slow.
type distance struct {
	trips []roundTrip // in the order in which they were measured
}

// roundTrip is one measured way to Redis.
type roundTrip struct {
	at    moment        // of the answer
	whole time.Duration // from the request to the answer
	back  time.Duration // from the script's reading of the clock to the answer
}

// observe adds a measurement.
func (d *distance) observe(t roundTrip) {
	if len(d.trips) == maxDistances {
		d.trips = slices.Delete(d.trips, 0, 1)
	}
	d.trips = append(d.trips, t)
}

// estimate returns the third longest whole and back of the measurements, the shortest where there
// are fewer than three, and zero where there are none. A single stall counts at once, for a while:
// others often follow it, and to poll early costs little. But it does not count for back, because
// the stamps of jobs are put off by that.
func (d *distance) estimate(now moment) roundTrip {
	d.trips = slices.DeleteFunc(d.trips, func(t roundTrip) bool { return now.since(t.at) > distanceAge })
	n := len(d.trips)
	if n == 0 {
		return roundTrip{}
	}
	var whole, back [maxDistances]time.Duration
	var stall time.Duration
	for i, t := range d.trips {
		whole[i], back[i] = t.whole, t.back
		if now.since(t.at) < stallAge {
			stall = max(stall, t.whole)
		}
	}
	slices.Sort(whole[:n])
	slices.Sort(back[:n])
	i := max(0, n-distanceRank)
	return roundTrip{at: now, whole: max(whole[i], stall), back: back[i]}
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
