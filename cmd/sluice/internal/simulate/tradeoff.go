package simulate

import (
	"fmt"
	"image/color"
	"io"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/7509e464/sluice/shaper/simulate"
)

// drawTradeOff draws the capacity and the wait for each rate of a recommendation, with the
// recommended one marked.
func drawTradeOff(w io.Writer, f pictureFormat, r simulate.Recommendation, g simulate.Goals) error {
	if len(r.Curve) == 0 {
		return errNoRuns
	}
	var capacity, wait plotter.XYs
	for _, p := range r.Curve {
		x := float64(p.Rate.Limit)
		capacity = append(capacity, plotter.XY{X: x, Y: float64(p.Capacity)})
		wait = append(wait, plotter.XY{X: x, Y: p.WaitP99.Seconds()})
	}
	low, high := capacity[0].X, capacity[len(capacity)-1].X
	chosen := float64(r.Rate.Limit)

	above := newPanel(fmt.Sprintf("Smallest capacity that refuses at most %.4g %%", 100*g.MaxRefused), "jobs")
	above.Add(line(capacity, depthColour), dot(chosen, float64(r.Capacity), depthColour))
	above.Legend.Add(fmt.Sprintf("recommended: %v, capacity %d", r.Rate, r.Capacity), dot(0, 0, depthColour))

	below := newPanel("Wait that 99 % do not exceed at that capacity", "seconds")
	below.Add(line(wait, departureColour), dot(chosen, r.WaitP99.Seconds(), departureColour))
	if g.WaitP99 > 0 {
		goal := bound(low, high, g.WaitP99.Seconds())
		below.Add(goal)
		below.Legend.Add("goal", goal)
	}
	panels := []*plot.Plot{above, below}
	for _, p := range panels {
		p.X.Min, p.X.Max = low, max(high, low+1)
		p.Y.Min, p.Y.Max = 0, max(p.Y.Max, 1e-6)*1.15
	}
	_, per, _ := strings.Cut(r.Rate.String(), "/")
	below.X.Label.Text = "departures per " + per
	return stack(w, f, panels, panelHeight)
}

func line(values plotter.XYs, c color.Color) *plotter.Line {
	return &plotter.Line{XYs: values, LineStyle: draw.LineStyle{Color: c, Width: vg.Points(1.5)}}
}

// dot marks one point.
func dot(x, y float64, c color.Color) *plotter.Scatter {
	return &plotter.Scatter{
		XYs:        plotter.XYs{{X: x, Y: y}},
		GlyphStyle: draw.GlyphStyle{Color: c, Radius: vg.Points(4), Shape: draw.CircleGlyph{}},
	}
}
