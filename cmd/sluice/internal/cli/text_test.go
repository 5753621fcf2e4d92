package cli

import (
	"math"
	"testing"
)

// Counts, figures, sizes and times have short texts, rounded to what they show.
func TestTexts(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{Count(0), "0"}, {Count(999), "999"}, {Count(1000), "1,000"}, {Count(-1234567), "-1,234,567"},
		{Short(0), "0"}, {Short(0.004), "0"}, {Short(0.25), "0.25"}, {Short(12.34), "12.3"},
		{Short(99.97), "100"}, {Short(9999), "9999"}, {Short(12345), "12.3k"}, {Short(345678), "346k"},
		{Short(1.25e6), "1.2M"}, {Short(7e9), "7G"}, {Short(7e14), "7e+14"},
		{BytesText(0), "0 B"}, {BytesText(1000), "0.98 KiB"}, {BytesText(5 << 30), "5 GiB"},
		{SpanText(0), "0ms"}, {SpanText(0.9996), "1.00s"}, {SpanText(2.046), "2.05s"},
		{SpanText(99.96), "1m40s"}, {SpanText(3599.4), "59m59s"}, {SpanText(7300), "2h02m"},
		{PerSecond(0), "0/s"}, {PerSecond(10000), "10000/s"}, {PerSecond(1000.0 / 86400), "0.01157/s"},
		{PerSecond(1.0 / 86400), "0.00001157/s"},
		{SpanText(86400 * 12), "12d"}, {SpanText(math.Inf(1)), "11574d"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
}
