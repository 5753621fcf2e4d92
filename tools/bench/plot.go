package main

import (
	"bytes"
	"errors"
	"fmt"
	"image/color"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// picture is plots in rows and columns, of one size each.
type picture struct {
	plots         [][]*plot.Plot
	width, height vg.Length
}

// The colours of Okabe and Ito, which colour-blind people can distinguish.
var (
	black      = color.RGBA{A: 255}
	grey       = color.RGBA{R: 0x80, G: 0x80, B: 0x80, A: 255}
	pale       = color.RGBA{R: 0xdd, G: 0xdd, B: 0xdd, A: 255}
	blue       = color.RGBA{G: 0x72, B: 0xb2, A: 255}
	vermillion = color.RGBA{R: 0xd5, G: 0x5e, A: 255}
	green      = color.RGBA{G: 0x9e, B: 0x73, A: 255}
	orange     = color.RGBA{R: 0xe6, G: 0x9f, A: 255}
	purple     = color.RGBA{R: 0xcc, G: 0x79, B: 0xa7, A: 255}
)

// newPlot returns an empty plot with labelled axes.
func newPlot(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	sans := func(f *font.Font, size vg.Length) { f.Variant, f.Size = "Sans", size }
	sans(&p.Title.TextStyle.Font, 12)
	for _, axis := range []*plot.Axis{&p.X, &p.Y} {
		sans(&axis.Label.TextStyle.Font, 11)
		sans(&axis.Tick.Label.Font, 10)
		axis.LineStyle.Width, axis.Tick.LineStyle.Width = 0.7, 0.7
		axis.LineStyle.Color, axis.Tick.LineStyle.Color = grey, grey
	}
	sans(&p.Legend.TextStyle.Font, 10)
	p.Title.Padding, p.Legend.Padding = 6, 2
	return p
}

// encode draws the picture in a format that gonum/plot knows, such as "svg" or "png".
func (p picture) encode(format string) ([]byte, error) {
	c, err := draw.NewFormattedCanvas(p.width, p.height, format)
	if err != nil {
		return nil, err
	}
	whole := draw.New(c)
	whole.SetColor(color.White)
	whole.Fill(whole.Rectangle.Path())
	tiles := draw.Tiles{
		Rows: len(p.plots), Cols: len(p.plots[0]), PadX: 14, PadY: 12, PadTop: 8, PadBottom: 6, PadLeft: 6,
		PadRight: 14,
	}
	for i, row := range plot.Align(p.plots, tiles, whole) {
		for j, tile := range row {
			p.plots[i][j].Draw(tile)
		}
	}
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return nil, err
	}
	// A browser that has not got the font takes one of the same widths.
	return bytes.ReplaceAll(b.Bytes(), []byte("font-family:Liberation Sans;"),
		[]byte("font-family:Liberation Sans,Arial,Helvetica,sans-serif;")), nil
}

// keep has the picture drawn by -plot.
func (b *bench) keep(name string, p picture) {
	if b.pictures == nil {
		b.pictures = map[string]picture{}
	}
	b.pictures[name] = p
}

// draw writes the pictures of what was measured.
func (b *bench) draw(dir string) error {
	if len(b.pictures) == 0 {
		return errors.New("no picture: P6-peers, P7, P15 and SCALE have one")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(b.pictures)) {
		raw, err := b.pictures[name].encode("svg")
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".svg"), raw, 0o644); err != nil {
			return err
		}
	}
	return nil
}
