package limiter_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

func TestPolicyNamesWhatIsWrong(t *testing.T) {
	ten := rate("10/s")
	for _, c := range []struct {
		name   string
		policy limiter.Policy
		fields []string
	}{
		{"legal", limiter.Policy{Algorithm: limiter.FixedWindow, Rate: ten}, nil},
		{"the zero value", limiter.Policy{}, []string{"algorithm", "rate"}},
		{"an unknown limiter", limiter.Policy{Algorithm: "gcra", Rate: ten}, []string{"algorithm"}},
		{"a burst", limiter.Policy{Algorithm: limiter.TokenBucket, Rate: ten, Burst: 100}, nil},
		{"a burst of none", limiter.Policy{Algorithm: limiter.LeakyMeter, Rate: ten, Burst: -1}, []string{"burst"}},
		{"a burst without a bucket", limiter.Policy{Algorithm: limiter.SlidingLog, Rate: ten, Burst: 1},
			[]string{"burst"}},
		{"a burst beyond what is exact", limiter.Policy{
			Algorithm: limiter.TokenBucket, Rate: rate("1/d"), Burst: 100_000,
		}, []string{"burst"}},
		{"a limit that is such a burst", limiter.Policy{
			Algorithm: limiter.TokenBucket, Rate: rate("1000000/d"),
		}, []string{"burst"}},
		{"a block", limiter.Policy{Algorithm: limiter.SlidingLog, Rate: ten, Block: time.Minute}, nil},
		{"a block of none", limiter.Policy{Algorithm: limiter.SlidingLog, Rate: ten, Block: -1}, []string{"block"}},
		{"a block in microseconds", limiter.Policy{
			Algorithm: limiter.SlidingLog, Rate: ten, Block: 1500 * us,
		}, []string{"block"}},
		{"a block beyond a year", limiter.Policy{
			Algorithm: limiter.SlidingLog, Rate: ten, Block: shaper.MaxPeriod + ms,
		}, []string{"block"}},
		{"a block without a log", limiter.Policy{Algorithm: limiter.TokenBucket, Rate: ten, Block: ms},
			[]string{"block"}},
		{"the greatest log", limiter.Policy{Algorithm: limiter.SlidingLog, Rate: rate("1000000/d")}, nil},
		{"a log beyond it", limiter.Policy{Algorithm: limiter.SlidingLog, Rate: rate("1000001/d")},
			[]string{"rate"}},
		{"a counter beyond what is exact", limiter.Policy{
			Algorithm: limiter.SlidingCounter, Rate: rate("36501/d"),
		}, []string{"rate"}},
		{"several at once", limiter.Policy{Algorithm: limiter.FixedWindow, Burst: 1, Block: ms},
			[]string{"rate", "burst", "block"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var ps shaper.Problems
			if err := c.policy.Validate(); err != nil && !errors.As(err, &ps) {
				t.Fatalf("%v is not of type Problems", err)
			}
			var fields []string
			for _, p := range ps {
				fields = append(fields, p.Field)
				if p.Value == "" || p.Rule == "" {
					t.Errorf("%+v", p)
				}
			}
			if diff := cmp.Diff(c.fields, fields); diff != "" {
				t.Errorf("%v (-want +got):\n%s", ps, diff)
			}
		})
	}
}
