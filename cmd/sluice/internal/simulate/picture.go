package simulate

import (
	"bytes"
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// pictureFormat is the form of a picture's file.
type pictureFormat string

// The formats of pictures.
const (
	pictureSVG pictureFormat = "svg"
	picturePNG pictureFormat = "png"
)

// The colours of Okabe and Ito that are used, and greys.
var (
	arrivalColour   = color.RGBA{R: 86, G: 180, B: 233, A: 255} // sky blue
	departureColour = color.RGBA{R: 0, G: 114, B: 178, A: 255}  // blue
	refusalColour   = color.RGBA{R: 213, G: 94, B: 0, A: 255}   // vermillion
	depthColour     = color.RGBA{R: 0, G: 158, B: 115, A: 255}  // bluish green
	boundColour     = color.RGBA{R: 60, G: 60, B: 60, A: 255}
	gridColour      = color.RGBA{R: 225, G: 225, B: 225, A: 255}
)

// width is that of every picture; the height depends on the panels.
const (
	width       = 23 * vg.Centimeter
	panelHeight = 4.2 * vg.Centimeter
	rowHeight   = 3.0 * vg.Centimeter
	footHeight  = 1.2 * vg.Centimeter // for the name and the labels of the time axis
)

// steps is the number of time steps of a picture: enough to show a single period, few enough to be
// distinct.
const steps = 500

// newPanel returns an empty plot in the style of all panels.
func newPanel(title, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	p.Y.Label.Text = y
	p.X.Padding, p.Y.Padding = 0, 0
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{13}, ticks{6}
	p.Legend.Top = true
	for _, s := range []*text.Style{
		&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label,
		&p.Legend.TextStyle,
	} {
		s.Font.Variant = "Sans"
		s.Font.Size = font.Points(9)
	}
	p.Title.TextStyle.Font.Size = font.Points(10)
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = gridColour, gridColour
	p.Add(grid)
	return p
}

// ticks labels an axis with round numbers, at most that many.
type ticks struct{ most float64 }

// Ticks implements plot.Ticker.
func (t ticks) Ticks(low, high float64) []plot.Tick {
	step := math.Pow10(int(math.Floor(math.Log10(max(high-low, 1e-9)))) - 1)
	for _, factor := range []float64{2, 2.5, 2, 2, 2.5, 2} { // 1, 2, 5, 10, 20, 50, 100
		if (high-low)/step <= t.most-1 {
			break
		}
		step *= factor
	}
	var out []plot.Tick
	for k := math.Ceil(low / step); k*step <= high*(1+1e-9); k++ {
		// Six digits, for k·step may be 0.30000000000000004.
		rounded, _ := strconv.ParseFloat(strconv.FormatFloat(k*step, 'g', 6, 64), 64)
		out = append(out, plot.Tick{Value: k * step, Label: strconv.FormatFloat(rounded, 'f', -1, 64)})
	}
	return out
}

// area is a step for each value, filled down to zero.
func area(values plotter.XYs, c color.Color) *plotter.Line {
	return &plotter.Line{XYs: values, StepStyle: plotter.PostStep, FillColor: c}
}

// bound is a dashed line across the panel.
func bound(from, to, y float64) *plotter.Line {
	return &plotter.Line{
		XYs: plotter.XYs{{X: from, Y: y}, {X: to, Y: y}},
		LineStyle: draw.LineStyle{
			Color: boundColour, Width: vg.Points(1), Dashes: []vg.Length{vg.Points(5), vg.Points(3)},
		},
	}
}

// rug marks the steps with refusals along the upper edge of a panel.
type rug struct {
	refused []int64
	step    float64
}

// Plot implements plot.Plotter.
func (r rug) Plot(c draw.Canvas, p *plot.Plot) {
	x, _ := p.Transforms(&c)
	top, bottom := c.Max.Y, c.Max.Y-vg.Points(5)
	for i := 0; i < len(r.refused); i++ {
		from := i
		for i < len(r.refused) && r.refused[i] > 0 {
			i++
		}
		if i == from {
			continue
		}
		left, right := x(float64(from)*r.step), x(float64(i)*r.step)
		c.FillPolygon(refusalColour, []vg.Point{
			{X: left, Y: bottom}, {X: right, Y: bottom}, {X: right, Y: top}, {X: left, Y: top},
		})
	}
}

// Thumbnail implements plot.Thumbnailer.
func (rug) Thumbnail(c *draw.Canvas) { swatch(c, refusalColour) }

// key is an entry of a legend: a patch of colour.
type key struct{ colour color.Color }

// Thumbnail implements plot.Thumbnailer.
func (k key) Thumbnail(c *draw.Canvas) { swatch(c, k.colour) }

func swatch(c *draw.Canvas, colour color.Color) {
	middle := (c.Min.Y + c.Max.Y) / 2
	top, bottom := middle+vg.Points(3), middle-vg.Points(3)
	c.FillPolygon(colour, []vg.Point{
		{X: c.Min.X, Y: bottom}, {X: c.Max.X, Y: bottom}, {X: c.Max.X, Y: top}, {X: c.Min.X, Y: top},
	})
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

// stack draws the panels one below the other, their axes aligned.
func stack(w io.Writer, f pictureFormat, panels []*plot.Plot, height vg.Length) error {
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	total := vg.Length(len(panels))*height + footHeight
	switch f {
	case pictureSVG:
		canvas = vgsvg.New(width, total)
	case picturePNG:
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, total), vgimg.UseDPI(120))}
	default:
		return fmt.Errorf("draw: no format %q", f)
	}
	rows := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		rows[i] = []*plot.Plot{p}
	}
	page := draw.New(canvas)
	page.FillPolygon(color.White, []vg.Point{
		{X: 0, Y: 0}, {X: width, Y: 0}, {X: width, Y: total}, {X: 0, Y: total},
	})
	margin := vg.Points(8)
	tiles := draw.Tiles{
		Rows: len(panels), Cols: 1, PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: 2 * margin,
		PadY: vg.Points(11),
	}
	for i, row := range plot.Align(rows, tiles, page) {
		panels[i].Draw(row[0])
	}
	var file bytes.Buffer
	_, err := canvas.WriteTo(&file)
	if err == nil {
		// Fallbacks with the widths of Liberation Sans.
		_, err = w.Write(bytes.ReplaceAll(file.Bytes(), []byte("font-family:Liberation Sans;"),
			[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")))
	}
	if err != nil {
		return fmt.Errorf("draw: %w", err)
	}
	return nil
}
