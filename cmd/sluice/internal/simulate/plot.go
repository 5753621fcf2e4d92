package simulate

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/guptarohit/asciigraph"

	"github.com/7509e464/sluice/shaper/simulate"
)

// Size of a plot in text, without its labels.
const (
	plotWidth  = 96
	plotHeight = 7
)

// plotRuns plots the arrivals of the trace, then the departures, the refusals and the depth of each
// run.
func plotRuns(w io.Writer, runs []*simulate.Run) error {
	end := runs[0].End()
	for _, r := range runs {
		end = max(end, r.End())
	}
	first := runs[0].Series(plotWidth, end)
	text := plotted(perSecond(first.Arrived, first.Step), "arrivals per second", first.Step)
	for _, r := range runs {
		s := r.Series(plotWidth, end)
		text += plotted(perSecond(s.Passed, s.Step), "departures per second: "+r.Name, s.Step)
		if slices.Max(s.Refused) > 0 {
			text += plotted(perSecond(s.Refused, s.Step), "refusals per second: "+r.Name, s.Step)
		}
		if r.Capacity > 0 {
			depth := make([]float64, len(s.Depth))
			for i, n := range s.Depth {
				depth[i] = float64(n)
			}
			text += plotted(depth, fmt.Sprintf("depth, of a capacity of %d", r.Capacity), s.Step)
		}
	}
	if _, err := io.WriteString(w, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// plotted returns a plot with one column for each step of time.
func plotted(values []float64, caption string, step time.Duration) string {
	return plotWith(values, fmt.Sprintf("%s, over %v, a column is %v", caption,
		roundWait(time.Duration(len(values))*step), step))
}

// plotWith returns a plot of values from zero up.
func plotWith(values []float64, caption string) string {
	return "\n" + asciigraph.Plot(values, asciigraph.Height(plotHeight), asciigraph.LowerBound(0),
		asciigraph.Precision(0), asciigraph.Caption(caption)) + "\n"
}

// perSecond converts counts of steps to rates.
func perSecond(counts []int64, step time.Duration) []float64 {
	rates := make([]float64, len(counts))
	for i, n := range counts {
		rates[i] = float64(n) / step.Seconds()
	}
	return rates
}
