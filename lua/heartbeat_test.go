package lua_test

import (
	"slices"
	"testing"
	"time"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// A worker is live until ttl after its last heartbeat, or until it leaves, also when the clock goes
// back.
func TestBeat(t *testing.T) {
	const ttl = 3 * time.Second
	start := shaper.Instant(1_772_366_400_000_000)
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			var latest shaper.Instant
			for _, s := range []struct {
				at     time.Duration
				worker string
				leave  bool
				live   []string
			}{
				{0, "a", false, []string{"a"}},
				{time.Second, "b", false, []string{"a", "b"}},
				{2999 * time.Millisecond, "b", false, []string{"a", "b"}},
				{3 * time.Second, "b", false, []string{"b"}},
				{time.Second, "a", false, []string{"a", "b"}}, // the clock goes back by 2 s: it is still 3 s
				{2 * time.Second, "a", false, []string{"a", "b"}},
				{4 * time.Second, "a", false, []string{"a"}}, // b was last heard of at 3 s, it is 6 s
				{4 * time.Second, "b", true, []string{"a"}},
				{4 * time.Second, "a", true, nil},
			} {
				call := scripts.HeartbeatCall{
					At: scripts.AtInstant(start.Add(s.at)), Clock: "sluice:{workers}:clock",
					Workers: "sluice:{workers}:live", Worker: s.worker, TTL: ttl, Leave: s.leave,
				}
				values, err := scripts.Run(t.Context(), e, nil, call.Call())
				if err != nil {
					t.Fatal(err)
				}
				now, live, err := call.Decode(values)
				slices.Sort(live)
				if err != nil || !slices.Equal(live, s.live) {
					t.Errorf("%v %s leave %v: %v, %v; want %v", s.at, s.worker, s.leave, live, err, s.live)
				}
				if latest = max(latest, start.Add(s.at)); now < latest {
					t.Errorf("%v: the clock says %v, and said %v before", s.at, now, latest)
				}
				latest = now
			}
		})
	}
}
