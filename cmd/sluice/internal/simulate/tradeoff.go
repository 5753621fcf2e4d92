package simulate

import (
	"fmt"
	"io"
	"strings"

	"github.com/7509e464/sluice/shaper/simulate"
)

// drawTradeOff draws the capacity and the wait for each rate of a recommendation, with the
// recommended one marked.
func drawTradeOff(w io.Writer, r simulate.Recommendation, g simulate.Goals) error {
	if len(r.Curve) == 0 {
		return errNoRuns
	}
	var capacity, wait []point
	for _, p := range r.Curve {
		x := float64(p.Rate.Limit)
		capacity = append(capacity, point{x, float64(p.Capacity)})
		wait = append(wait, point{x, p.WaitP99.Seconds()})
	}
	chosen := float64(r.Rate.Limit)

	above := &panel{title: fmt.Sprintf("Smallest capacity that refuses at most %.4g %%", 100*g.MaxRefused), unit: "jobs"}
	above.add(curve{capacity, depthColour}, dot{point{chosen, float64(r.Capacity)}, depthColour})
	above.explain(fmt.Sprintf("recommended: %v, capacity %d", r.Rate, r.Capacity), disc(depthColour))

	_, per, _ := strings.Cut(r.Rate.String(), "/")
	below := &panel{
		title: "Wait that 99 % do not exceed at that capacity", unit: "seconds", below: "departures per " + per,
	}
	below.add(curve{wait, departureColour}, dot{point{chosen, r.WaitP99.Seconds()}, departureColour})
	if g.WaitP99 > 0 {
		below.add(bound(g.WaitP99.Seconds()))
		below.explain("goal", dashed)
	}
	panels := []*panel{above, below}
	for _, p := range panels {
		p.low, p.high = capacity[0].x, max(capacity[len(capacity)-1].x, capacity[0].x+1)
		p.top = max(p.top, 1e-6) * 1.15
	}
	return stack(w, panels, panelHeight)
}
