package simulate

import (
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// every is n arrivals, evenly spaced.
func every(n int, apart time.Duration) Trace {
	var times []time.Duration
	for i := range n {
		times = append(times, time.Duration(i)*apart)
	}
	return at(times...)
}

func TestRecommendPool(t *testing.T) {
	t.Parallel()
	p := open()
	p.Rate, p.Burst = rate("100/s"), 1
	flow := func(name string, trace Trace) Member { return Member{Name: name, Policy: open(), Trace: trace} }
	recommend := func(t *testing.T, members ...Member) []Share {
		t.Helper()
		shares, err := RecommendPool(members, p, PoolGoals{WaitP99: sec})
		if err != nil {
			t.Fatal(err)
		}
		return shares
	}
	t.Run("weights are enough", func(t *testing.T) {
		s := recommend(t, flow("a", every(600, 100*ms)), flow("b", every(3000, 20*ms)), flow("c", at(repeat(5, 0)...)))
		for i, weight := range []int64{2, 10, 1} {
			if !s[i].Reached || !s[i].Possible || s[i].Reserve != (shaper.Rate{}) || s[i].WaitP99 > sec || s[i].Refused > 0 {
				t.Errorf("%d: %+v", i, s[i])
			}
			if got := float64(s[i].Weight) / float64(s[1].Weight); got < 0.7*float64(weight)/10 || got > 1.3*float64(weight)/10 {
				t.Errorf("%d has weight %d beside %d", i, s[i].Weight, s[1].Weight)
			}
		}
	})
	t.Run("more than there is: the small ones keep the goal, the large one is bounded", func(t *testing.T) {
		s := recommend(t, flow("a", every(600, 100*ms)), flow("b", every(9000, 12*ms)), flow("c", every(1200, 50*ms)))
		for _, i := range []int{0, 2} {
			if !s[i].Reached || s[i].Reserve != s[i].Needs || s[i].Bounded {
				t.Errorf("%d: %+v", i, s[i])
			}
		}
		if b := s[1]; b.Reached || !b.Bounded || b.WaitP99 > sec*11/10 || b.Refused < 0.05 || b.Refused > 0.3 || b.Reserve != (shaper.Rate{}) {
			t.Errorf("the large one: %+v", b)
		}
	})
	t.Run("impossible even alone", func(t *testing.T) {
		s := recommend(t, flow("a", at(repeat(500, 0)...)), flow("b", every(60, 100*ms)))
		if s[0].Possible || s[0].Reached || !s[0].Bounded || s[0].WaitP99 > 2*sec || s[1].Reserve == (shaper.Rate{}) && !s[1].Reached {
			t.Errorf("%+v", s)
		}
	})
	if _, err := RecommendPool([]Member{flow("a", at(0))}, p, PoolGoals{}); err == nil {
		t.Error("no goal is no error")
	}
	if _, err := RecommendPool([]Member{flow("a", nil)}, p, PoolGoals{WaitP99: sec}); err == nil {
		t.Error("an empty trace is no error")
	}
}
