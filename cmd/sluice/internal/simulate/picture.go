package simulate

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// The colours of Okabe and Ito that are used, and greys.
const (
	arrivalColour   = "#56b4e9" // sky blue
	departureColour = "#0072b2" // blue
	refusalColour   = "#d55e00" // vermillion
	depthColour     = "#009e73" // bluish green
	boundColour     = "#3c3c3c"
	gridColour      = "#e1e1e1"
)

// Sizes in pixels. The height of a picture depends on its panels.
const (
	width       = 870
	panelHeight = 160 // of the panels of one run
	rowHeight   = 114 // of the panels of a comparison
	titleHeight = 24
	footHeight  = 44 // for the labels and the name of the time axis
	leftMargin  = 76
	rightMargin = 18
)

// steps is the number of time steps of a picture: enough to show a single period, few enough to be
// distinct.
const steps = 500

// point is a point in the units of the axes.
type point struct{ x, y float64 }

// panel is one chart of a picture.
type panel struct {
	title, unit string  // unit is the name of the vertical axis
	below       string  // name of the horizontal axis; empty: its marks have no numbers
	low, high   float64 // horizontal axis
	top         float64 // vertical axis, which begins at 0
	shapes      []shape
	legend      []entry
}

// shape is something that a panel draws.
type shape interface {
	highest() float64 // on the vertical axis
	draw(w *bytes.Buffer, at scale)
}

type entry struct {
	text   string
	symbol string // SVG in a box of 12 pixels
}

// scale maps the units of the axes to pixels.
type scale struct{ left, right, top, bottom, low, high, max float64 }

func (s scale) x(v float64) string { return pixels(s.left + (v-s.low)/(s.high-s.low)*(s.right-s.left)) }
func (s scale) y(v float64) string { return pixels(s.bottom - v/s.max*(s.bottom-s.top)) }

func pixels(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

func (p *panel) add(shapes ...shape) {
	for _, s := range shapes {
		p.top = max(p.top, s.highest())
	}
	p.shapes = append(p.shapes, shapes...)
}

func (p *panel) explain(text, symbol string) { p.legend = append(p.legend, entry{text, symbol}) }

// The symbols of a legend.
func patch(colour string) string { return fmt.Sprintf(`<path d="M0 3h12v6h-12z" fill="%s"/>`, colour) }

const dashed = `<path d="M0 6h12" stroke="` + boundColour + `" stroke-dasharray="5 3"/>`

func disc(colour string) string {
	return fmt.Sprintf(`<circle cx="6" cy="6" r="5" fill="none" stroke="%s"/>`, colour)
}

// area is a step for each value, filled down to zero.
type area struct {
	points []point
	colour string
}

func (a area) highest() float64 { return highest(a.points) }

func (a area) draw(w *bytes.Buffer, at scale) {
	if len(a.points) == 0 {
		return
	}
	fmt.Fprintf(w, `<path fill="%s" d="M%s %s`, a.colour, at.x(a.points[0].x), at.y(0))
	for i, p := range a.points {
		if i > 0 {
			fmt.Fprintf(w, "H%s", at.x(p.x))
		}
		fmt.Fprintf(w, "V%s", at.y(p.y))
	}
	fmt.Fprintf(w, "V%sz\"/>\n", at.y(0))
}

// curve joins its points.
type curve struct {
	points []point
	colour string
}

func (c curve) highest() float64 { return highest(c.points) }

func (c curve) draw(w *bytes.Buffer, at scale) {
	fmt.Fprintf(w, `<polyline fill="none" stroke="%s" stroke-width="2" points="`, c.colour)
	for _, p := range c.points {
		fmt.Fprintf(w, "%s,%s ", at.x(p.x), at.y(p.y))
	}
	w.WriteString("\"/>\n")
}

// dot marks one point.
type dot struct {
	point
	colour string
}

func (d dot) highest() float64 { return d.y }

func (d dot) draw(w *bytes.Buffer, at scale) {
	fmt.Fprintf(w, "<circle cx=\"%s\" cy=\"%s\" r=\"5\" fill=\"none\" stroke=\"%s\"/>\n", at.x(d.x), at.y(d.y), d.colour)
}

// bound is a dashed line across the panel.
type bound float64

func (b bound) highest() float64 { return float64(b) }

func (b bound) draw(w *bytes.Buffer, at scale) {
	fmt.Fprintf(w, "<path d=\"M%s %sH%s\" stroke=\"%s\" stroke-dasharray=\"7 4\"/>\n",
		pixels(at.left), at.y(float64(b)), pixels(at.right), boundColour)
}

// rug marks the steps with refusals along the upper edge of a panel.
type rug struct {
	refused []int64
	step    float64
}

func (rug) highest() float64 { return 0 }

func (r rug) draw(w *bytes.Buffer, at scale) {
	for i := 0; i < len(r.refused); i++ {
		from := i
		for i < len(r.refused) && r.refused[i] > 0 {
			i++
		}
		if i > from {
			fmt.Fprintf(w, "<path d=\"M%s %sH%sv6H%sz\" fill=\"%s\"/>\n", at.x(float64(from)*r.step),
				pixels(at.top), at.x(float64(i)*r.step), at.x(float64(from)*r.step), refusalColour)
		}
	}
}

func highest(points []point) (top float64) {
	for _, p := range points {
		top = max(top, p.y)
	}
	return top
}

// mark is a labelled position of an axis.
type mark struct {
	at    float64
	label string
}

// marks returns round numbers of an axis, at most that many.
func marks(most, low, high float64) []mark {
	step := math.Pow10(int(math.Floor(math.Log10(max(high-low, 1e-9)))) - 1)
	for _, factor := range []float64{2, 2.5, 2, 2, 2.5, 2} { // 1, 2, 5, 10, 20, 50, 100
		if (high-low)/step <= most-1 {
			break
		}
		step *= factor
	}
	var out []mark
	for k := math.Ceil(low / step); k*step <= high*(1+1e-9); k++ {
		// Six digits, for k·step may be 0.30000000000000004.
		rounded, _ := strconv.ParseFloat(strconv.FormatFloat(k*step, 'g', 6, 64), 64)
		out = append(out, mark{k * step, strconv.FormatFloat(rounded, 'f', -1, 64)})
	}
	return out
}

// timeUnit is the unit of a time axis for a span.
func timeUnit(span time.Duration) (name string, unit time.Duration) {
	switch {
	case span >= 72*time.Hour:
		return "days", 24 * time.Hour
	case span >= 3*time.Hour:
		return "hours", time.Hour
	case span >= 5*time.Minute:
		return "minutes", time.Minute
	case span >= 2*time.Second:
		return "seconds", time.Second
	default:
		return "milliseconds", time.Millisecond
	}
}

// stack writes an SVG file with the panels one below the other, their axes aligned.
func stack(w io.Writer, panels []*panel, height int) error {
	total := len(panels)*height + footHeight
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" `+
		`font-family="Liberation Sans,Arial,Helvetica,sans-serif" font-size="12">`+"\n", width, total)
	fmt.Fprintf(&out, "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", width, total)
	for i, p := range panels {
		p.write(&out, float64(i*height), float64((i+1)*height))
	}
	out.WriteString("</svg>\n")
	if _, err := w.Write(out.Bytes()); err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return nil
}

// write draws the panel between two heights of the picture.
func (p *panel) write(w *bytes.Buffer, from, to float64) {
	at := scale{leftMargin, width - rightMargin, from + titleHeight, to - 6, p.low, p.high, p.top}
	text := func(x, y float64, more, s string) {
		fmt.Fprintf(w, "<text x=\"%s\" y=\"%s\"%s>%s</text>\n", pixels(x), pixels(y), more, html.EscapeString(s))
	}
	text(at.left, from+17, ` font-size="13"`, p.title)
	p.writeLegend(w, from+17, text)
	var grid strings.Builder
	for _, m := range marks(6, 0, p.top) {
		y, _ := strconv.ParseFloat(at.y(m.at), 64)
		fmt.Fprintf(&grid, "M%s %sH%s", pixels(at.left), pixels(y), pixels(at.right))
		text(at.left-6, y+4, ` text-anchor="end"`, m.label)
	}
	for _, m := range marks(13, p.low, p.high) {
		x, _ := strconv.ParseFloat(at.x(m.at), 64)
		fmt.Fprintf(&grid, "M%s %sV%s", pixels(x), pixels(at.top), pixels(at.bottom))
		if p.below != "" {
			text(x, at.bottom+16, ` text-anchor="middle"`, m.label)
		}
	}
	fmt.Fprintf(w, "<path d=\"%s\" stroke=\"%s\"/>\n", grid.String(), gridColour)
	for _, s := range p.shapes {
		s.draw(w, at)
	}
	fmt.Fprintf(w, "<path d=\"M%s %sV%sH%s\" fill=\"none\" stroke=\"#000\"/>\n", pixels(at.left), pixels(at.top),
		pixels(at.bottom), pixels(at.right))
	middle := (at.top + at.bottom) / 2
	text(16, middle, fmt.Sprintf(` text-anchor="middle" transform="rotate(-90 16 %s)"`, pixels(middle)), p.unit)
	if p.below != "" {
		text((at.left+at.right)/2, at.bottom+34, ` text-anchor="middle"`, p.below)
	}
}

// writeLegend writes the legend from the right. Its texts are as wide as their letters are on
// average.
func (p *panel) writeLegend(w *bytes.Buffer, y float64, text func(x, y float64, more, s string)) {
	x := float64(width - rightMargin)
	for i := len(p.legend) - 1; i >= 0; i-- {
		e := p.legend[i]
		text(x, y, ` text-anchor="end"`, e.text)
		x -= 6.4*float64(len(e.text)) + 18
		fmt.Fprintf(w, "<g transform=\"translate(%s %s)\">%s</g>\n", pixels(x), pixels(y-10), e.symbol)
		x -= 14
	}
}
