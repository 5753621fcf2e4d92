package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/shaper"
)

// Count returns a whole number with separated thousands.
func Count(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// Short returns a figure in at most six cells: 0, 0.25, 12.5, 999, 1.2k, 340M.
func Short(v float64) string {
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

// BytesText returns a size, such as 1.5 MiB.
func BytesText(n int64) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; v >= 1000 && i < len(units)-1; i++ {
		v /= 1024
	}
	return Short(v) + " " + units[i]
}

// SpanText returns a time in at most six cells: 850ms, 2.05s, 3m12s, 5h02m, 12d.
func SpanText(seconds float64) string {
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

// PerSecond returns a rate with four digits, such as 10000/s or 0.01157/s.
func PerSecond(v float64) string {
	rounded, _ := strconv.ParseFloat(strconv.FormatFloat(v, 'g', 4, 64), 64)
	return strconv.FormatFloat(rounded, 'f', -1, 64) + "/s"
}

// MillisText is SpanText of milliseconds.
func MillisText(ms int64) string { return SpanText(float64(ms) / 1000) }

// RatesText returns further rates, such as 1000/24h burst 1000 by jobs.
func RatesText(paces []shaper.Pace) string {
	texts := make([]string, len(paces))
	for i, p := range paces {
		texts[i] = p.JSON().String()
	}
	return strings.Join(texts, ", ")
}

// UnknownTenant is the note on a tenant that no setting names and that has no recent jobs.
func UnknownTenant(name string) string {
	return "The tenant " + Printable(name) + " is unknown: it has no recent jobs and no settings of its own. " +
		"sluice tenant list prints all tenants."
}

// NoteUnknown prints that note if the tenant is unknown: a new one, or a typing error.
func (a *App) NoteUnknown(remote *client.Client, name string) {
	if t, err := remote.Tenant(a.Ctx, name); err == nil && t.Unknown {
		fmt.Fprintln(a.Err, UnknownTenant(name))
	}
}

// HeldText returns until when a flow is held and why, empty if it is not held.
func HeldText(f wire.Figures) string {
	if f.HeldUntil.IsZero() {
		return ""
	}
	of := ""
	if f.LimitedBy == "pool" {
		of = "its pool, "
	}
	return of + "until " + f.HeldUntil.UTC().Format(time.RFC3339) + ", " + heldBy(f.HeldBy, f.HeldStatus)
}

// heldBy returns why a flow is held.
func heldBy(by string, status int) string {
	answered := ""
	if status != 0 {
		answered = fmt.Sprintf(" (last answer %d)", status)
	}
	switch by {
	case "retry_after":
		return "by Retry-After of the upstream" + answered
	case "breaker", "flow_breaker":
		if status == 0 {
			answered = " (the last delivery got no whole answer)"
		}
		if by == "flow_breaker" {
			return "by its own circuit breaker, others of the route are well" + answered
		}
		return "by the circuit breaker of the route" + answered
	case "hand_off":
		return "because asynq does not accept its jobs"
	case "auth":
		return "because no token for the upstream can be had"
	case "codec":
		return "because a worker has no key to decrypt the next job"
	}
	return "for an unknown reason"
}
