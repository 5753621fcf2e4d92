package top

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"charm.land/lipgloss/v2"
	"github.com/charmbracelet/x/ansi"
	"github.com/guptarohit/asciigraph"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

// tenantLines returns height lines about the shown tenant: its settings, its state and its charts.
func (m *topModel) tenantLines(height int) []string {
	name := styleTitle.Render(cli.Plain(m.view.Tenant))
	t := m.tenant
	if t == nil {
		return []string{"", name, "", "waiting for its figures …"}
	}
	if t.Tier != "" {
		name += ", tier " + cli.Plain(t.Tier)
	}
	state, policy := limitOf(t), t.InForce()
	lines := []string{
		name + ": " + state,
		m.joined(
			"rate "+policy.Rate.String()+from(t.Sources["rate"]), "effective "+effectiveText(policy, t.EffectiveRate),
			"burst "+cli.Count(policy.Burst), ratesPart(policy.Rates),
			boundPart("concurrency", policy.Concurrency), maxWaitPart(policy.MaxWait),
		),
	}
	share := fillOf(wire.TenantLine{Depth: t.Depth, Capacity: policy.Capacity})
	cells := min(40, max(8, m.width/4))
	lines = append(lines,
		m.joined(
			fmt.Sprintf("depth [%s] %s of %s", shareStyle(share).Render(gauge(share, cells)),
				cli.Count(t.Depth), cli.Count(policy.Capacity)),
			cli.Count(t.Running)+" running", "oldest wait "+oldestText(t.OldestWaitMS)),
		m.joined(fmt.Sprintf("waits p50 %s  p95 %s  p99 %s", cli.MillisText(t.WaitP50MS),
			cli.MillisText(t.WaitP95MS), cli.MillisText(t.WaitP99MS))),
		m.joined(fmt.Sprintf("admitted %s", cli.Count(t.Admitted)),
			fmt.Sprintf("refused %s", cli.Count(t.Rejected)), fmt.Sprintf("succeeded %s",
				cli.Count(t.Succeeded)),
			fmt.Sprintf("dead %s now, %s in all", cli.Count(t.DeadLetters), cli.Count(t.Dead))),
	)
	return append(lines, m.charts(height-len(lines))...)
}

// joined returns the parts that are not empty, cut to the width.
func (m *topModel) joined(parts ...string) string {
	parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
	return ansi.Truncate(strings.Join(parts, ", "), m.width, "…")
}

// limitOf describes what limits the next departure.
func limitOf(t *wire.TenantNow) string {
	text, style := "", lipgloss.NewStyle()
	switch t.LimitedBy {
	case "rate":
		text = "its jobs leave at the rate"
	case "concurrency":
		text, style = "all deliveries of its concurrency are running", styleWarn
	case "pool":
		text = "its jobs wait for their turn in the pool of their route"
	case "flows":
		text = "each of its flows waits for its own rate, hold or pause"
	case "upstream":
		text, style = "the upstream is slow: its deliveries use all slots that a worker allows them", styleWarn
	case "late":
		text, style = "many of its jobs arrive too late from Redis to leave on time", styleWarn
	case "workers":
		text, style = "no worker has a free slot, or no worker is live", styleWarn
	case "held":
		text, style = "held", styleWarn
		if held := cli.HeldText(t.Figures); held != "" {
			text += " " + held
		}
	case "auth":
		text, style = "no token for the upstream can be had: its jobs wait", styleWarn
	case "paused":
		text, style = "paused", styleWarn
	default:
		text = "idle"
	}
	if t.InForce().Paused && t.LimitedBy != "paused" {
		text, style = "paused", styleWarn
	}
	if t.Draining {
		text, style = text+", draining: no job is admitted", styleWarn
	}
	if t.InForce().Denied {
		text, style = text+", denied: no job is admitted", styleWarn
	}
	if t.Owed > 0 {
		text += ", owes " + cli.Count(t.Owed)
	}
	if t.Reason != "" {
		text += " (reason: " + cli.Plain(t.Reason) + ")"
	}
	return style.Render(text)
}

func from(source string) string {
	if source == "" {
		return ""
	}
	return " (" + cli.Plain(source) + ")"
}

func ratesPart(paces []shaper.Pace) string {
	if len(paces) == 0 {
		return ""
	}
	return "and " + cli.RatesText(paces)
}

func boundPart(label string, n int64) string {
	if n == 0 {
		return "no " + label + " cap"
	}
	return label + " " + cli.Count(n)
}

func maxWaitPart(most time.Duration) string {
	if most == 0 {
		return ""
	}
	return "max wait " + cli.SpanText(most.Seconds())
}

const (
	chartAxis  = 9 // cells of the labels and the axis
	chartLeast = 3 // lines of the smallest chart
)

// charts plot arrivals, departures and the depth below each other, each on its own scale, as many
// as fit.
func (m *topModel) charts(height int) []string {
	type chart struct {
		caption string
		figure  func(point) float64
		style   lipgloss.Style
	}
	wanted := []chart{{"arrivals a second", arrivedOf, styleIn},
		{"departures a second", departedOf, styleGood}, {"depth", depthOf, styleWarn}}
	n := len(wanted)
	for n > 1 && height/n < chartLeast+2 { // a caption and an empty line for each
		n--
	}
	if height < chartLeast+2 {
		return nil
	}
	cells := max(8, min(m.width-chartAxis, trackLength))
	var lines []string
	for i, c := range wanted[:n] {
		share := height / n
		if i < height%n {
			share++
		}
		values := m.figures.last(cells, c.figure)
		caption := c.caption
		if p, known := m.figures.now(); known {
			caption += ": " + cli.Short(c.figure(p))
		}
		if i == 0 {
			caption += fmt.Sprintf("  (the last %v, a second a column)", time.Duration(cells)*time.Second)
		}
		lines = append(lines, "", caption)
		lines = append(lines, plotLines(values, cells, share-2, c.style)...)
	}
	return lines
}

// plotLines returns a chart from zero up in exactly height lines. The newest value is at the right.
func plotLines(values []float64, cells, height int, style lipgloss.Style) []string {
	most := highest(values)
	if most == 0 {
		most = 1
	}
	padded := make([]float64, cells)
	for i := range padded {
		if at := i - (cells - len(values)); at >= 0 {
			padded[i] = values[at]
		} else {
			padded[i] = math.NaN()
		}
	}
	text := asciigraph.Plot(padded, asciigraph.Height(height-1), asciigraph.LowerBound(0),
		asciigraph.UpperBound(most), asciigraph.Offset(3),
		asciigraph.YAxisValueFormatter(func(v float64) string {
			return right(cli.Short(v),
				chartAxis-3)
		}))
	lines := strings.Split(text, "\n")
	for len(lines) < height {
		lines = append(lines, "")
	}
	for i, line := range lines {
		line = strings.TrimPrefix(line, " ")
		if axis := strings.IndexAny(line, "┤┼"); axis >= 0 {
			axis += len("┤")
			line = line[:axis] + style.Render(line[axis:])
		}
		lines[i] = line
	}
	return lines[:height]
}
