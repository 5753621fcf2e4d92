package simulate

import (
	"errors"
	"fmt"
	"io"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"

	"github.com/7509e464/sluice/shaper/simulate"
)

// errNoRuns is the error of a picture without runs.
var errNoRuns = errors.New("draw: there is no run")

// drawRun draws one run: its arrivals with the refused ones on top, its departures with the rate,
// and, if it has a queue, the depth and the capacity.
func drawRun(w io.Writer, f pictureFormat, r *simulate.Run) error {
	if r == nil || len(r.Trace) == 0 {
		return errNoRuns
	}
	s := r.Series(steps, 0)
	axis := newTimeAxis(s)
	report := r.Report()

	arrivals := newPanel(fmt.Sprintf("Arrivals: %d, %d refused", report.Arrived, report.Refused), "per second")
	arrivals.Add(area(axis.rates(s.Arrived), refusalColour), area(axis.rates(less(s.Arrived, s.Refused)),
		arrivalColour))
	arrivals.Legend.Add("admitted", key{arrivalColour})
	if report.Refused > 0 {
		arrivals.Legend.Add("refused", key{refusalColour})
	}

	departures := newPanel(fmt.Sprintf("Departures: %s at %v", r.Name, r.Rate), "per second")
	departures.Add(area(axis.rates(s.Passed), departureColour), axis.bound(r.Rate.PerSecond()))
	departures.Legend.Add("rate", axis.bound(0))

	panels := []*plot.Plot{arrivals, departures}
	if r.Capacity > 0 {
		title := fmt.Sprintf("Depth: at most %d, capacity %d; 99 %% waited at most %v, the longest %v",
			report.PeakDepth, r.Capacity, short(report.WaitP99), short(report.WaitMax))
		depth := newPanel(title, "jobs")
		depth.Add(area(axis.counts(s.Depth), depthColour))
		// A capacity far above the depth would hide the depth.
		if float64(r.Capacity) <= 4*float64(report.PeakDepth) {
			depth.Add(axis.bound(float64(r.Capacity)))
			depth.Legend.Add("capacity", axis.bound(0))
		}
		panels = append(panels, depth)
	}
	axis.lay(panels)
	return stack(w, f, panels, panelHeight)
}

// drawComparison draws the arrivals of one trace, and below them the departures of each run, all
// with the same scale.
func drawComparison(w io.Writer, f pictureFormat, runs []*simulate.Run) error {
	if len(runs) == 0 || len(runs[0].Trace) == 0 {
		return errNoRuns
	}
	end := runs[0].End()
	for _, r := range runs {
		end = max(end, r.End())
	}
	first := runs[0].Series(steps, end)
	axis := newTimeAxis(first)
	arrivals := newPanel(fmt.Sprintf("Arrivals: %d", len(runs[0].Trace)), "per second")
	arrivals.Add(area(axis.rates(first.Arrived), arrivalColour))
	panels := []*plot.Plot{arrivals}
	var highest float64
	for _, r := range runs {
		s := r.Series(steps, end)
		report := r.Report()
		title := fmt.Sprintf("%s at %v: %d admitted, %d refused; the fullest %v has %d", r.Name, r.Rate,
			report.Admitted, report.Refused, report.Window, report.FullestWindow)
		if report.Delayed > 0 {
			title += fmt.Sprintf("; waits up to %v", short(report.WaitMax))
		}
		panel := newPanel(title, "per second")
		panel.Add(area(axis.rates(s.Passed), departureColour), axis.bound(r.Rate.PerSecond()),
			rug{s.Refused, axis.step})
		if len(panels) == 1 {
			panel.Legend.Add("departures", key{departureColour})
			panel.Legend.Add("rate", axis.bound(0))
			panel.Legend.Add("refusals", rug{})
		}
		highest = max(highest, panel.Y.Max)
		panels = append(panels, panel)
	}
	axis.lay(panels)
	for _, p := range panels[1:] {
		p.Y.Max = highest * 1.15
	}
	return stack(w, f, panels, rowHeight)
}

// timeAxis maps series to a time axis.
type timeAxis struct {
	name     string
	step     float64 // in units of the axis
	steps    int
	duration time.Duration // of a step
}

func newTimeAxis(s simulate.Series) timeAxis {
	name, unit := timeUnit(time.Duration(len(s.Arrived)) * s.Step)
	return timeAxis{name: name, step: float64(s.Step) / float64(unit), steps: len(s.Arrived), duration: s.Step}
}

// counts are the points of a series over time, without repeated values. The last value has two
// points, which give its step a width.
func (a timeAxis) counts(values []int64) plotter.XYs {
	var xys plotter.XYs
	for i, v := range values {
		if i == 0 || v != values[i-1] {
			xys = append(xys, plotter.XY{X: float64(i) * a.step, Y: float64(v)})
		}
	}
	return append(xys, plotter.XY{X: float64(len(values)) * a.step, Y: float64(values[len(values)-1])})
}

// rates are the values of a series per second.
func (a timeAxis) rates(values []int64) plotter.XYs {
	xys := a.counts(values)
	for i := range xys {
		xys[i].Y /= a.duration.Seconds()
	}
	return xys
}

func (a timeAxis) bound(y float64) *plotter.Line { return bound(0, float64(a.steps)*a.step, y) }

// lay gives the panels the same time axis, labelled below the last, and a margin above the highest
// value.
func (a timeAxis) lay(panels []*plot.Plot) {
	for i, p := range panels {
		p.X.Min, p.X.Max = 0, float64(a.steps)*a.step
		p.Y.Min, p.Y.Max = 0, max(p.Y.Max, 1e-6)*1.15
		if i == len(panels)-1 {
			p.X.Label.Text = a.name
		} else {
			p.X.Tick.Marker, p.X.Tick.Length, p.X.Tick.Label.Font.Size = unlabelled{p.X.Tick.Marker}, 0, 1
		}
	}
}

// unlabelled marks an axis without numbers.
type unlabelled struct{ plot.Ticker }

// Ticks implements plot.Ticker.
func (u unlabelled) Ticks(low, high float64) []plot.Tick {
	marks := u.Ticker.Ticks(low, high)
	for i := range marks {
		marks[i].Label = " " // an empty one is a minor tick, which the grid leaves out
	}
	return marks
}

// less is a − b, value by value.
func less(a, b []int64) []int64 {
	out := make([]int64, len(a))
	for i := range a {
		out[i] = a[i] - b[i]
	}
	return out
}

// short formats a duration briefly.
func short(d time.Duration) time.Duration {
	switch {
	case d >= 100*time.Second:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond)
	default:
		return d
	}
}
