package simulate

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/7509e464/sluice/shaper/simulate"
)

// errNoRuns is the error of a picture without runs.
var errNoRuns = errors.New("draw: there is no run")

// drawRun draws one run: its arrivals with the refused ones on top, its departures with the rate,
// and, if it has a queue, the depth and the capacity.
func drawRun(w io.Writer, r *simulate.Run) error {
	if r == nil || len(r.Trace) == 0 {
		return errNoRuns
	}
	s := r.Series(steps, 0)
	axis := newTimeAxis(s)
	report := r.Report()

	arrivals := axis.panel(fmt.Sprintf("Arrivals: %d, %d refused", report.Arrived, report.Refused), "per second")
	arrivals.add(area{axis.rates(s.Arrived), refusalColour},
		area{axis.rates(less(s.Arrived, s.Refused)), arrivalColour})
	arrivals.explain("admitted", patch(arrivalColour))
	if report.Refused > 0 {
		arrivals.explain("refused", patch(refusalColour))
	}

	departures := axis.panel(fmt.Sprintf("Departures: %s at %v", r.Name, r.Rate), "per second")
	departures.add(area{axis.rates(s.Passed), departureColour}, bound(r.Rate.PerSecond()))
	departures.explain("rate", dashed)

	panels := []*panel{arrivals, departures}
	if r.Capacity > 0 {
		title := fmt.Sprintf("Depth: at most %d, capacity %d; 99 %% waited at most %v, the longest %v",
			report.PeakDepth, r.Capacity, short(report.WaitP99), short(report.WaitMax))
		depth := axis.panel(title, "jobs")
		depth.add(area{axis.counts(s.Depth), depthColour})
		// A capacity far above the depth would hide the depth.
		if float64(r.Capacity) <= 4*float64(report.PeakDepth) {
			depth.add(bound(r.Capacity))
			depth.explain("capacity", dashed)
		}
		panels = append(panels, depth)
	}
	axis.lay(panels)
	return stack(w, panels, panelHeight)
}

// drawComparison draws the arrivals of one trace, and below them the departures of each run, all
// with the same scale.
func drawComparison(w io.Writer, runs []*simulate.Run) error {
	if len(runs) == 0 || len(runs[0].Trace) == 0 {
		return errNoRuns
	}
	end := runs[0].End()
	for _, r := range runs {
		end = max(end, r.End())
	}
	first := runs[0].Series(steps, end)
	axis := newTimeAxis(first)
	arrivals := axis.panel(fmt.Sprintf("Arrivals: %d", len(runs[0].Trace)), "per second")
	arrivals.add(area{axis.rates(first.Arrived), arrivalColour})
	panels := []*panel{arrivals}
	var highest float64
	for _, r := range runs {
		s := r.Series(steps, end)
		report := r.Report()
		title := fmt.Sprintf("%s at %v: %d admitted, %d refused; the fullest %v has %d", r.Name, r.Rate,
			report.Admitted, report.Refused, report.Window, report.FullestWindow)
		if report.Delayed > 0 {
			title += fmt.Sprintf("; waits up to %v", short(report.WaitMax))
		}
		departures := axis.panel(title, "per second")
		departures.add(area{axis.rates(s.Passed), departureColour}, bound(r.Rate.PerSecond()),
			rug{s.Refused, axis.step})
		if len(panels) == 1 {
			departures.explain("departures", patch(departureColour))
			departures.explain("rate", dashed)
			departures.explain("refusals", patch(refusalColour))
		}
		highest = max(highest, departures.top)
		panels = append(panels, departures)
	}
	axis.lay(panels)
	for _, p := range panels[1:] {
		p.top = highest * 1.15
	}
	return stack(w, panels, rowHeight)
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
func (a timeAxis) counts(values []int64) []point {
	var xys []point
	for i, v := range values {
		if i == 0 || v != values[i-1] {
			xys = append(xys, point{x: float64(i) * a.step, y: float64(v)})
		}
	}
	return append(xys, point{x: float64(len(values)) * a.step, y: float64(values[len(values)-1])})
}

// rates are the values of a series per second.
func (a timeAxis) rates(values []int64) []point {
	xys := a.counts(values)
	for i := range xys {
		xys[i].y /= a.duration.Seconds()
	}
	return xys
}

// panel returns an empty panel over the axis.
func (a timeAxis) panel(title, unit string) *panel {
	return &panel{title: title, unit: unit, high: float64(a.steps) * a.step}
}

// lay labels the time axis below the last panel, and leaves a margin above the highest values.
func (a timeAxis) lay(panels []*panel) {
	for _, p := range panels {
		p.top = max(p.top, 1e-6) * 1.15
	}
	panels[len(panels)-1].below = a.name
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
