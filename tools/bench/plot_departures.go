package main

import (
	"fmt"
	"image/color"
	"math"
	"slices"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// lane is what left one system, or what arrived.
type lane struct {
	name  string
	at    []time.Duration
	color color.Color
	width vg.Length
	dash  []vg.Length
}

// departures draws the runs of the systems that lie in the middle, by their τ*.
func (b *bench) departures(arrivals []arrival, runs []peerRun) {
	b.keep("departures", picture{plots: departurePlots(lanesOf(arrivals, runs)), width: 9 * vg.Inch, height: 7 * vg.Inch})
}

// lanesOf are the arrivals, and the departures of the run of each system that lies in the middle.
func lanesOf(arrivals []arrival, runs []peerRun) []lane {
	var all []time.Duration
	for _, a := range arrivals {
		all = append(all, slices.Repeat([]time.Duration{a.At}, a.Jobs)...)
	}
	lanes := []lane{{name: "arrivals", at: all, color: black, width: 1.2}}
	for _, style := range []lane{
		{name: "Sluice", color: blue, width: 3.5},
		{name: "nginx", color: orange, width: 1.4, dash: []vg.Length{5, 4}},
		{name: "BullMQ", color: vermillion, width: 1.6},
		{name: "BullMQ 1/5 ms", color: purple, width: 1.6},
		{name: "asynq", color: green, width: 1.6},
	} {
		if r, ok := middle(runs, style.name); ok {
			style.at = r.departures
			lanes = append(lanes, style)
		}
	}
	return lanes
}

// middle is the run of the system whose τ* is the median.
func middle(runs []peerRun, name string) (peerRun, bool) {
	same := slices.DeleteFunc(slices.Clone(runs), func(r peerRun) bool {
		return r.Name != name || r.Absent != ""
	})
	if len(same) == 0 {
		return peerRun{}, false
	}
	slices.SortFunc(same, func(a, b peerRun) int {
		if a.TauMax < b.TauMax {
			return -1
		}
		return 1
	})
	return same[len(same)/2], true
}

// departurePlots show how many have left by when, and each single departure of one second.
func departurePlots(lanes []lane) [][]*plot.Plot {
	const until, from, to = 8.0, 2.0, 3.0 // seconds
	sums := newPlot("The same 1,000 jobs, to leave at 200 a second", "seconds since the first arrival", "jobs")
	sums.X.Min, sums.X.Max, sums.Y.Min, sums.Y.Max = 0, until, 0, 1050
	faintGrid(sums)
	near := newPlot("Each departure of the third of these seconds", "seconds since the first arrival", "")
	near.X.Min, near.X.Max, near.Y.Min, near.Y.Max = from, to, -0.6, float64(len(lanes))-0.4
	near.Y.LineStyle.Width, near.Y.Tick.Length = 0, 0
	var names []plot.Tick
	for i, l := range lanes {
		line := &plotter.Line{
			XYs:       cumulative(l.at, until),
			LineStyle: draw.LineStyle{Color: l.color, Width: l.width, Dashes: l.dash},
			StepStyle: plotter.PostStep,
		}
		sums.Add(line)
		sums.Legend.Add(l.name, line)
		row := float64(len(lanes) - 1 - i)
		names = append(names, plot.Tick{Value: row, Label: l.name})
		near.Add(strokes{at: l.at, row: row, color: l.color})
	}
	sums.Legend.Top, sums.Legend.YOffs, sums.Legend.XOffs = false, 26, -8
	near.Y.Tick.Marker = plot.ConstantTicks(names)
	near.X.Tick.Marker, sums.X.Tick.Marker, sums.Y.Tick.Marker = every(0.1, "%.1f"), every(1, "%.0f"),
		every(250, "%.0f")
	return [][]*plot.Plot{{sums}, {near}}
}

// every are ticks at the multiples of a step.
func every(step float64, format string) plot.Ticker {
	return plot.TickerFunc(func(low, high float64) (ticks []plot.Tick) {
		for i := math.Ceil(low/step - 1e-6); i*step <= high+step*1e-6; i++ {
			at := i*step + 0 // never -0
			ticks = append(ticks, plot.Tick{Value: at, Label: fmt.Sprintf(format, at)})
		}
		return ticks
	})
}

// faintGrid adds a grid that is hardly seen: what is drawn on it is what matters.
func faintGrid(p *plot.Plot) {
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = pale, pale
	grid.Vertical.Width, grid.Horizontal.Width = 0.5, 0.5
	grid.Vertical.Dashes, grid.Horizontal.Dashes = nil, nil
	p.Add(grid)
}

// cumulative is how many instants have passed, in seconds, until the end. Those too close to be
// distinct in the picture share a point.
func cumulative(at []time.Duration, until float64) plotter.XYs {
	points := plotter.XYs{{}}
	n := 0
	for _, t := range at {
		x := t.Seconds()
		if x > until {
			break
		}
		n++
		if last := &points[len(points)-1]; x-last.X < 0.005 {
			last.Y = float64(n)
		} else {
			points = append(points, plotter.XY{X: x, Y: float64(n)})
		}
	}
	return append(points, plotter.XY{X: until, Y: float64(n)})
}

// strokes draws a short vertical line in a row for each instant.
type strokes struct {
	at    []time.Duration
	row   float64
	color color.Color
}

// Plot draws them.
func (s strokes) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	var path vg.Path // one for all: the file is a quarter as large
	for _, t := range s.at {
		if at := t.Seconds(); at >= p.X.Min && at <= p.X.Max {
			path.Move(vg.Point{X: x(at), Y: y(s.row - 0.36)})
			path.Line(vg.Point{X: x(at), Y: y(s.row + 0.36)})
		}
	}
	c.SetLineStyle(draw.LineStyle{Color: s.color, Width: 0.9})
	c.Stroke(path)
}
