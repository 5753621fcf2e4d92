package worker

import (
	"context"
	"time"

	"github.com/7509e464/sluice/queue"
)

// The clock of a shard from which jobs leave is read for itself where the polls alone do not tell it to exactness, at most
// readMost times in readEvery: some of the answers come fast, and the best one counts.
const (
	exactness = 100 * time.Microsecond
	readEvery = 5 * time.Second
	readMost  = 8
)

// shardClock is what the loop of a shard knows of the shard's clock, and of the way to it. It is used by that loop alone.
type shardClock struct {
	placer
	shard    *shard
	distance distance
	readAt   moment // when the clock was first read for itself in the last readEvery
	readings int    // since then
}

func newShardClock(s *shard) *shardClock { return &shardClock{shard: s, readAt: longAgo} }

// way returns how far Redis is: what polls of this shard took, and at least what heartbeats took.
func (c *shardClock) way(now moment) roundTrip {
	polls, beats := c.distance.estimate(now), c.shard.d.beats.estimate(now)
	return roundTrip{now, max(polls.whole, beats.whole), max(polls.back, beats.back)}
}

// observe takes the answer of a poll into account.
func (c *shardClock) observe(t queue.Tick) {
	d := c.shard.d
	c.learn(d.watch.now(), func(known *relation) {
		known.observe(t.Now, d.watch.at(t.Sent), d.watch.at(t.Received), ofPoll)
		known.adopt(d.clockOfBeats(), d.watch.now())
	})
	if len(t.Leases) == 0 {
		return
	}
	// Only polls that lease tell how far Redis is: others write nothing, and so wait for no disk.
	answered := d.watch.at(t.Received)
	c.distance.observe(roundTrip{answered, t.Received.Sub(t.Sent), answered.since(c.known().moment(t.Now))})
	first := t.Leases[0].Stamp
	for _, l := range t.Leases {
		first = min(first, l.Stamp)
	}
	c.read(c.known().moment(first))
}

// read reads the shard's clock for itself if what is known of it is poor, and there is ample time before the moment: best
// before the jobs of a poll are placed on this process's clock, else before the next poll.
func (c *shardClock) read(before moment) {
	d := c.shard.d
	now, known := d.watch.now(), c.known()
	if known.wrong(now) <= exactness || d.stop.Err() != nil {
		return
	}
	room := min(before.since(now)-d.options.Horizon/8, pollPatience)
	// Twice the error is more than the round trip that it comes from. A reading that is cut off costs its connection,
	// so it also has to fit into what polls take now.
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
		return // the next poll will tell of it
	}
	c.learn(d.watch.now(), func(known *relation) {
		known.observe(r.Now, d.watch.at(r.Sent), d.watch.at(r.Received), ofReading)
	})
}
