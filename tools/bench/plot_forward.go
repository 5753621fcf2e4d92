package main

import (
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// forwarding is what the picture of forward mode shows; a part that was not measured is nil.
type forwarding struct {
	systems []*delays
	runs    []peerRun
}

// forwardPicture draws what has been measured so far.
func (b *bench) forwardPicture(systems []*delays, runs []peerRun) {
	if b.shared == nil {
		b.shared = map[string]any{}
	}
	f, _ := b.shared["forwarding"].(forwarding)
	if systems != nil {
		f.systems = systems
	}
	if runs != nil {
		f.runs = runs
	}
	b.shared["forwarding"] = f
	var plots [][]*plot.Plot
	if f.systems != nil {
		plots = append(plots, []*plot.Plot{delayPlot(f.systems)})
	}
	if f.runs != nil {
		plots = append(plots, departurePlots(lanesOf(crowds(), f.runs))...)
	}
	b.keep("forward", picture{plots: plots, width: 9 * vg.Inch, height: vg.Length(len(plots)) * 3.4 * vg.Inch})
}

// delayPlot shows which share of the requests took at most how long.
func delayPlot(systems []*delays) *plot.Plot {
	p := newPlot("One request after the other, when nothing else waits", "milliseconds until the answer",
		"share of the requests, %")
	faintGrid(p)
	p.X.Tick.Marker = decades(thousands)
	styles := []lane{
		{color: black, width: 1.2}, {color: vermillion, width: 1.6}, {color: blue, width: 2.6},
		{color: orange, width: 1.6, dash: []vg.Length{5, 4}},
	}
	least, most := math.Inf(1), math.Inf(-1)
	for i, s := range systems {
		all := slices.Sorted(slices.Values(slices.Concat(s.Samples...)))
		if len(all) == 0 {
			continue
		}
		var points plotter.XYs
		for share := 0.0; share <= 99.5; share += 0.5 {
			x := math.Log10(quantile(all, share/100))
			points = append(points, plotter.XY{X: x, Y: share})
			least, most = min(least, x), max(most, x)
		}
		line := &plotter.Line{XYs: points, LineStyle: draw.LineStyle{
			Color: styles[i].color, Width: styles[i].width, Dashes: styles[i].dash,
		}}
		p.Add(line)
		p.Legend.Add(s.Name, line)
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = least-0.1, max(most+0.1, least+1), 0, 100
	p.Legend.Top, p.Legend.YOffs, p.Legend.XOffs = false, 6, -8
	return p
}
