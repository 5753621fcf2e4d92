package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"
)

// count is a whole number with its thousands apart.
func count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// short is a figure in at most six cells: 0, 0.25, 12.5, 999, 1.2k, 340M.
func short(v float64) string {
	switch abs := math.Abs(v); {
	case abs < 0.005:
		return "0"
	case abs < 1:
		return trimZeros(fmt.Sprintf("%.2f", v))
	case abs < 99.95:
		return trimZeros(fmt.Sprintf("%.1f", v))
	case abs < 9999.5:
		return fmt.Sprintf("%.0f", v)
	}
	for _, unit := range []string{"k", "M", "G"} {
		if v /= 1000; math.Abs(v) < 99.95 {
			return trimZeros(fmt.Sprintf("%.1f", v)) + unit
		}
		if math.Abs(v) < 999.5 {
			return fmt.Sprintf("%.0f", v) + unit
		}
	}
	return fmt.Sprintf("%.0e", v*1e9)
}

func trimZeros(text string) string { return strings.TrimRight(strings.TrimRight(text, "0"), ".") }

// bytesText is a size in memory.
func bytesText(n int64) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; v >= 1000 && i < len(units)-1; i++ {
		v /= 1024
	}
	return short(v) + " " + units[i]
}

// spanText is a time in at most six cells: 850ms, 2.05s, 3m12s, 5h02m, 12d.
func spanText(seconds float64) string {
	d := time.Duration(min(seconds, 1e9) * float64(time.Second))
	switch {
	case d < 999500*time.Microsecond:
		return strconv.FormatInt(d.Round(time.Millisecond).Milliseconds(), 10) + "ms"
	case d < 9995*time.Millisecond:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < 99950*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour:
		d = d.Round(time.Second)
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd", int(d.Hours())/24)
}

// msText is spanText of milliseconds.
func msText(ms int64) string { return spanText(float64(ms) / 1000) }

// plain is text of somebody else that can neither steer the terminal nor turn its line around.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029' {
			return '\ufffd'
		}
		return r
	}, s)
}

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
