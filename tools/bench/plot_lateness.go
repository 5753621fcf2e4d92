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

// spread is the lateness of one crowd, of all its runs.
type spread struct {
	name   string
	counts histogram
	target float64 // of p99, in milliseconds
	color  color.RGBA
}

// lateness draws what has been measured so far.
func (b *bench) lateness(c crowd, runs []lateRun) {
	s := spread{name: "1 flow at 5,000/s", target: 0.5, color: blue}
	if c.flows > 1 {
		s = spread{name: "20,000 flows at 1/s", target: 20, color: vermillion}
	}
	for _, r := range runs {
		for i, n := range r.Histogram {
			s.counts[i] += n
		}
	}
	if b.shared == nil {
		b.shared = map[string]any{}
	}
	all, _ := b.shared["spreads"].([]spread)
	all = append(all, s)
	b.shared["spreads"] = all
	b.keep("lateness", latenessPicture(all))
}

// latenessPicture shows which share of the handlers started how late.
func latenessPicture(spreads []spread) picture {
	p := newPlot("How late handlers start, against the ideal grid of their flow",
		"lateness in milliseconds (first bin: or less; last bin: or more)", "share of the starts, %")
	last := 4*10 - 1 // the bin that ends at 100 ms
	for _, s := range spreads {
		if s.counts.beyond(last) {
			last = 6*10 - 1
		}
	}
	p.X.Tick.Marker = decades(thousands)
	faintGrid(p)
	highest := 0.0
	for _, s := range spreads {
		outline, high := s.outline(last)
		highest = max(highest, high)
		area := &plotter.Polygon{
			XYs: []plotter.XYs{outline}, Color: color.NRGBA{R: s.color.R, G: s.color.G, B: s.color.B, A: 90},
		}
		area.LineStyle = draw.LineStyle{Color: s.color, Width: 1.4}
		p.Add(area)
		p.Legend.Add(s.name, area)
	}
	for _, s := range spreads {
		line := &plotter.Line{XYs: plotter.XYs{
			{X: math.Log10(s.target)}, {X: math.Log10(s.target), Y: 1.06 * highest},
		},
			LineStyle: draw.LineStyle{Color: s.color, Width: 1.4, Dashes: []vg.Length{4, 3}}}
		p.Add(line)
		p.Legend.Add(fmt.Sprintf("target of its p99: %g ms", s.target), line)
	}
	// The legend is above.
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -2, math.Log10(histogram{}.edge(last+1)), 0, 1.4*highest
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.YOffs = true, true, 10, -4
	return picture{plots: [][]*plot.Plot{{p}}, width: 9 * vg.Inch, height: 4 * vg.Inch}
}

// outline is the steps of the histogram, in percent, and the highest of them. What is later than
// the last bin is counted there.
func (s spread) outline(last int) (points plotter.XYs, highest float64) {
	total := 0
	counts := make([]int, last+1)
	for i, n := range s.counts {
		total += n
		counts[min(i, last)] += n
	}
	edge := func(bin int) float64 { return math.Log10(s.counts.edge(bin)) }
	points = append(points, plotter.XY{X: edge(0)})
	for i, n := range counts {
		share := 100 * float64(n) / float64(max(1, total))
		highest = max(highest, share)
		points = append(points, plotter.XY{X: edge(i), Y: share}, plotter.XY{X: edge(i + 1), Y: share})
	}
	return append(points, plotter.XY{X: edge(last + 1)}), highest
}

// decades are the ticks of an axis of decimal logarithms, with the powers of ten written out.
// plot.LogScale would do, but it makes room for the axis' name in the wrong place.
func decades(write func(float64) string) plot.Ticker {
	return plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
		const bit = 1e-9
		for decade := math.Floor(low + bit); decade <= high+bit; decade++ {
			for i := 1.0; i < 10; i++ {
				at := decade + math.Log10(i)
				if at < low-bit || at > high+bit {
					continue
				}
				t := plot.Tick{Value: at}
				if i == 1 {
					t.Label = write(math.Pow(10, decade))
				}
				ticks = append(ticks, t)
			}
		}
		return ticks
	})
}

// thousands writes a number with commas between its thousands.
func thousands(x float64) string {
	text := fmt.Sprintf("%.6g", x)
	if x >= 1000 {
		text = fmt.Sprintf("%.0f", x)
		for i := len(text) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
	}
	return text
}
