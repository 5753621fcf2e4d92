package main

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// scale draws what a job costs.
func (b *bench) scale(cells []scaleCell) { b.keep("scale", scalePicture(cells)) }

// scalePicture shows what a job costs in Redis by how many wait, a line for each number of tenants.
func scalePicture(cells []scaleCell) picture {
	admit := scalePlot("admit", cells, func(c scaleCell) float64 { return c.Admit })
	drain := scalePlot("tick and settle", cells, func(c scaleCell) float64 { return c.Drain })
	high := max(admit.Y.Max, drain.Y.Max)
	admit.Y.Max, drain.Y.Max = high, high
	return picture{plots: [][]*plot.Plot{{admit, drain}}, width: 9 * vg.Inch, height: 4 * vg.Inch}
}

func scalePlot(title string, cells []scaleCell, pick func(scaleCell) float64) *plot.Plot {
	styles := []struct {
		color color.Color
		shape draw.GlyphDrawer
	}{
		{black, draw.CircleGlyph{}}, {blue, draw.BoxGlyph{}}, {vermillion, draw.PyramidGlyph{}},
		{green, draw.CrossGlyph{}},
	}
	p := newPlot(title, "waiting jobs", "µs of Redis for each job")
	p.X.Tick.Marker = decades(short)
	faintGrid(p)
	byTenants := map[int]plotter.XYs{}
	var order []int
	high := 0.0
	for _, c := range cells {
		if byTenants[c.Tenants] == nil {
			order = append(order, c.Tenants)
		}
		byTenants[c.Tenants] = append(byTenants[c.Tenants], plotter.XY{X: math.Log10(float64(c.Waiting)),
			Y: pick(c)})
		high = max(high, pick(c))
	}
	for i, n := range order {
		s := styles[i%len(styles)]
		line := &plotter.Line{XYs: byTenants[n], LineStyle: draw.LineStyle{Color: s.color, Width: 1.6}}
		points := &plotter.Scatter{
			XYs: byTenants[n], GlyphStyle: draw.GlyphStyle{Color: s.color, Radius: 3, Shape: s.shape},
		}
		p.Add(line, points)
		name := thousands(float64(n)) + " tenants"
		if n == 1 {
			name = "1 tenant"
		}
		p.Legend.Add(name, line, points)
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 1, 6, 0, 1.15*high
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = false, false, -8, 6
	return p
}

// short writes a number with k for thousands and M for millions.
func short(x float64) string {
	switch {
	case x >= 1e6:
		return fmt.Sprintf("%.0f M", x/1e6)
	case x >= 1e3:
		return fmt.Sprintf("%.0f k", x/1e3)
	}
	return fmt.Sprintf("%.6g", x)
}
