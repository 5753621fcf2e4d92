package worker

import (
	"context"
	"math"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// moment is an instant of this process's monotone clock: the time since the worker was made. All
// waiting is done in moments, because a wall clock may step.
type moment time.Duration

// never is later than every moment.
const never = moment(math.MaxInt64)

// longAgo is earlier than every moment by enough that nothing since then is recent.
const longAgo = -moment(time.Hour)

func (m moment) add(d time.Duration) moment { return m + moment(d) }

func (m moment) since(earlier moment) time.Duration { return time.Duration(m - earlier) }

// stopwatch reads moments.
type stopwatch struct{ start time.Time }

func (s stopwatch) now() moment { return moment(time.Since(s.start)) }

func (s stopwatch) at(t time.Time) moment { return moment(t.Sub(s.start)) }

// sleep waits for d, and reports whether it was over before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

const (
	// driftPerSecond is how much two undisturbed clocks may part in a second: 50 ppm, a poor
	// quartz.
	driftPerSecond = 50 * time.Microsecond
	// sampleAge is when a sample gives way to any newer one.
	sampleAge = 10 * time.Second
)

// relation relates the clock of a shard to this process's, by one sample: the shard's clock showed
// instant at some moment between the sending of a poll and its answer. The sample with the shortest
// round trip is kept, as in NTP's clock filter (RFC 5905, section 10), its error growing with age.
// The zero value has no sample.
//
// A reading is placed in the middle of its round trip, as in NTP. A poll reads the clock before it
// does its work: at 0.15 of the round trip in the median over a local socket, close to the middle
// over a slow network. A third is between the two.
type relation struct {
	known   bool
	instant shaper.Instant
	at      moment
	err     time.Duration // at most, when the sample was taken
}

// ofPoll and ofReading are the parts of a round trip after which the clock is taken to have been
// read.
const ofPoll, ofReading = 3, 2

// observe takes a poll or a reading into account: the instant of the shard's clock, and when the
// call was sent and answered.
func (r *relation) observe(instant shaper.Instant, sent, received moment, part time.Duration) {
	trip := received.since(sent)
	// Instants are whole microseconds, hence the one more.
	sample := relation{
		known: true, instant: instant, at: sent.add(trip / part), err: trip - trip/part + time.Microsecond,
	}
	grown := r.wrong(sample.at)
	gap := time.Duration(r.moment(instant) - sample.at).Abs()
	// If both samples cannot be true, the shard's clock has stepped, and the older one is void.
	stepped := gap > grown+sample.err
	if !r.known || stepped || sample.err <= grown || sample.at.since(r.at) >= sampleAge {
		*r = sample
	}
}

// adopt takes over the relation of another clock if that is more exact, and the two may be one
// clock.
func (r *relation) adopt(other relation, now moment) {
	ours, theirs := r.wrong(now), other.wrong(now)
	if !other.known || theirs >= ours {
		return
	}
	if gap := time.Duration(r.moment(other.instant) - other.at).Abs(); gap <= ours+theirs {
		*r = other
	}
}

// wrong returns by how much the relation may be off at a moment.
func (r relation) wrong(at moment) time.Duration {
	return r.err + time.Duration(time.Duration(at-r.at).Seconds()*float64(driftPerSecond))
}

// moment returns when the shard's clock shows i.
func (r relation) moment(i shaper.Instant) moment {
	return r.at.add(i.Sub(r.instant))
}
