package worker

import (
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

func TestRelation(t *testing.T) {
	const ms = time.Millisecond
	// Polls of a shard whose clock is ahead by skew; the script reads it after a part of the round
	// trip.
	type poll struct {
		sent  time.Duration
		trip  time.Duration
		early float64       // part of the trip before the clock was read
		alone bool          // a reading
		skew  time.Duration // 0: an hour
	}
	hour := func(l poll) poll {
		if l.skew == 0 {
			l.skew = time.Hour
		}
		return l
	}
	tests := []struct {
		name  string
		polls []poll
		skew  time.Duration // afterwards
		wrong time.Duration // how far the relation may be off
	}{
		{"one poll", []poll{{trip: 2 * ms, early: 1. / 3}}, time.Hour, 2 * time.Microsecond},
		{"one lopsided poll", []poll{{trip: 2 * ms, early: 1}}, time.Hour, 4*ms/3 + time.Microsecond},
		{"the shortest trip wins", []poll{
			{trip: 40 * ms, early: .95}, {sent: 100 * ms, trip: ms / 5, early: .9},
			{sent: 200 * ms, trip: 30 * ms, early: .1},
		}, time.Hour, ms / 5},
		{"a reading is taken to be from midway", []poll{{trip: 2 * ms, early: .5, alone: true}}, time.Hour,
			2 * time.Microsecond},
		{"it wins over a poll that takes as long",
			[]poll{{trip: 2 * ms, early: .1}, {sent: 10 * ms, trip: 2 * ms, early: .5, alone: true},
				{sent: 20 * ms, trip: 2 * ms, early: .1}}, time.Hour, 2 * time.Microsecond},
		{"age brings in a longer trip", []poll{
			{trip: ms / 5, early: .5}, {sent: 11 * time.Second, trip: 2 * ms, early: .5},
		}, time.Hour, ms},
		{"a step forward is followed at once", []poll{
			{trip: ms / 5, early: .5}, {sent: 100 * ms, trip: 20 * ms, early: .4, skew: 2 * time.Hour},
		}, 2 * time.Hour, 10 * ms},
		{"a small step too", []poll{
			{trip: ms / 5, early: .5}, {sent: 100 * ms, trip: 2 * ms, early: .5, skew: time.Hour - 5*ms},
		}, time.Hour - 5*ms, ms},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			const epoch = shaper.Instant(1_700_000_000_000_000)
			var r relation
			for _, l := range tt.polls {
				l = hour(l)
				read := l.sent + time.Duration(float64(l.trip)*l.early)
				part := time.Duration(ofPoll)
				if l.alone {
					part = ofReading
				}
				r.observe(epoch.Add(read+l.skew), moment(l.sent), moment(l.sent+l.trip), part)
			}
			at := 30 * time.Second
			got := r.moment(epoch.Add(at + tt.skew))
			if off := got.since(moment(at)).Abs(); off > tt.wrong {
				t.Errorf("off by %v, want at most %v", off, tt.wrong)
			}
		})
	}
}

func TestJobHasTheShardsClock(t *testing.T) {
	j := &job{at: moment(time.Second)}
	j.lease.Stamp = 5_000_000
	if got := j.instant(moment(3 * time.Second)); got != 7_000_000 {
		t.Errorf("two seconds after the stamp the shard's clock says %d", got)
	}
}
