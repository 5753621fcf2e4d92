package top

import (
	"math"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// left is text in exactly so many cells, cut where it is too long.
func left(s string, cells int) string {
	s = ansi.Truncate(s, cells, "…")
	return s + strings.Repeat(" ", max(0, cells-ansi.StringWidth(s)))
}

// right is left, moved to the other side.
func right(s string, cells int) string {
	s = ansi.Truncate(s, cells, "…")
	return strings.Repeat(" ", max(0, cells-ansi.StringWidth(s))) + s
}

// gauge shows how full something is in so many cells, by eighths; whatever is not empty shows.
func gauge(share float64, cells int) string {
	eighths := int(math.Round(min(max(share, 0), 1) * float64(8*cells)))
	if share > 0 {
		eighths = max(eighths, 1)
	}
	if share < 1 {
		eighths = min(eighths, 8*cells-1)
	}
	text := strings.Repeat("█", eighths/8)
	if part := eighths % 8; part > 0 {
		text += string([]rune(" ▏▎▍▌▋▊▉")[part])
	}
	return left(text, cells)
}

// spark draws values from zero up to most in so many cells, the newest at the right. Whatever is
// not zero stands out from the ground.
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
