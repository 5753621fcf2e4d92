package worker

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

// TestPlacingKeepsOrder: whatever is learned of the shard's clock meanwhile, no stamp is put before
// an earlier one whose job is still to leave, and none later than by the latest knowledge but for
// the sake of such a job.
func TestPlacingKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const horizon = 20 * time.Millisecond
		type leaving struct {
			stamp shaper.Instant
			at    moment
		}
		var (
			p       shardClock
			now     = moment(time.Hour)
			epoch   = shaper.Instant(1_700_000_000_000_000)
			pending []leaving
		)
		micros := func(from, to int, label string) time.Duration {
			return time.Duration(rapid.IntRange(from, to).Draw(t, label)) * time.Microsecond
		}
		// Of the shard, but for the error of what is known of it.
		instant := func() shaper.Instant { return epoch.Add(time.Duration(now)) }
		learn := func() {
			off := micros(-3000, 3000, "off")
			p.learn(now, func(r *relation) { *r = relation{known: true, instant: instant(), at: now.add(off)} })
		}
		learn()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.add(micros(0, 9000, "pause"))
			for i := 0; i < len(pending); i++ {
				if pending[i].at < now {
					pending = append(pending[:i], pending[i+1:]...)
					i--
				}
			}
			if rapid.IntRange(0, 3).Draw(t, "kind") == 0 {
				learn()
				continue
			}
			var leases []queue.Lease
			for range rapid.IntRange(1, 5).Draw(t, "jobs") {
				leases = append(leases,
					queue.Lease{Stamp: instant().Add(micros(0, int(horizon.Microseconds()), "ahead"))})
			}
			latest := now // of those that are still to leave
			for _, one := range pending {
				latest = max(latest, one.at)
			}
			for i, j := range p.schedule(0, leases) {
				for _, one := range pending {
					if one.stamp <= leases[i].Stamp && one.at > j.at {
						t.Fatalf("stamp %d is put at %v, before %d at %v", leases[i].Stamp, j.at, one.stamp, one.at)
					}
				}
				if plain := p.known.moment(leases[i].Stamp); j.at < plain || j.at > max(plain, latest) {
					t.Fatalf("stamp %d is put at %v, by what is known at %v; all others have left at %v",
						leases[i].Stamp, j.at, plain, latest)
				}
				pending = append(pending, leaving{leases[i].Stamp, j.at})
			}
		}
	})
}
