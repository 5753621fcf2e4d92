package top

import (
	"math"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// left returns the text in exactly cells cells, at the left, cut if it is too long.
func left(s string, cells int) string {
	s = ansi.Truncate(s, cells, "…")
	return s + strings.Repeat(" ", max(0, cells-ansi.StringWidth(s)))
}

// right returns the text in exactly cells cells, at the right, cut if it is too long.
func right(s string, cells int) string {
	s = ansi.Truncate(s, cells, "…")
	return strings.Repeat(" ", max(0, cells-ansi.StringWidth(s))) + s
}

// gauge draws a fraction as a bar of cells cells, in eighths. One above zero is never invisible.
func gauge(fraction float64, cells int) string {
	eighths := int(math.Round(min(max(fraction, 0), 1) * float64(8*cells)))
	if fraction > 0 {
		eighths = max(eighths, 1)
	}
	if fraction < 1 {
		eighths = min(eighths, 8*cells-1)
	}
	text := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		text += string([]rune(" ▏▎▍▌▋▊▉")[part])
	}
	return left(text, cells)
}

// spark draws values from zero to most in cells cells, the newest at the right. A value above zero
// is always above the base line.
func spark(values []float64, cells int, most float64) string {
	levels := []rune("▁▂▃▄▅▆▇█")
	values = values[max(0, len(values)-cells):]
	text := make([]rune, 0, cells)
	for _, v := range values {
		level := 0
		if v > 0 {
			level = 1 + int(math.Round(min(v/most, 1)*float64(len(levels)-2)))
		}
		text = append(text, levels[level])
	}
	return right(string(text), cells)
}
