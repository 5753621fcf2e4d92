package lua

import (
	"fmt"
	"strings"

	"github.com/7509e464/sluice/shaper"
)

// EncodePolicy writes every setting of a policy in the form that policy_of in lib/flow.lua reads, for example
// "l10:1000000 b1 r c1000 k64 w0 p0 d0".
func EncodePolicy(p shaper.Policy) string {
	return strings.Join([]string{
		encodeRate(p.Rate), fmt.Sprintf("b%d", p.Burst), encodePaces(p.Rates), fmt.Sprintf("c%d", p.Capacity),
		fmt.Sprintf("k%d", p.Concurrency), fmt.Sprintf("w%d", p.MaxWait.Milliseconds()), encodeFlag('p', p.Paused),
		encodeFlag('d', p.Draining),
	}, " ")
}

// EncodeOverrides writes only the settings that are set; laid after a policy they outrank it.
func EncodeOverrides(o shaper.Overrides) string {
	p := o.Over(shaper.Policy{})
	var parts []string
	if o.Rate != nil {
		parts = append(parts, encodeRate(p.Rate))
	}
	if o.Burst != nil {
		parts = append(parts, fmt.Sprintf("b%d", p.Burst))
	}
	if o.Rates != nil {
		parts = append(parts, encodePaces(p.Rates))
	}
	if o.Capacity != nil {
		parts = append(parts, fmt.Sprintf("c%d", p.Capacity))
	}
	if o.Concurrency != nil {
		parts = append(parts, fmt.Sprintf("k%d", p.Concurrency))
	}
	if o.MaxWaitMS != nil {
		parts = append(parts, fmt.Sprintf("w%d", p.MaxWait.Milliseconds()))
	}
	if o.Paused != nil {
		parts = append(parts, encodeFlag('p', p.Paused))
	}
	if o.Draining != nil {
		parts = append(parts, encodeFlag('d', p.Draining))
	}
	return strings.Join(parts, " ")
}

func encodeRate(r shaper.Rate) string {
	return fmt.Sprintf("l%d:%d", r.Limit, r.Period.Microseconds())
}

func encodePaces(paces []shaper.Pace) string {
	parts := make([]string, len(paces))
	for i, p := range paces {
		parts[i] = fmt.Sprintf("%d:%d:%d", p.Rate.Limit, p.Rate.Period.Microseconds(), p.Burst)
	}
	return "r" + strings.Join(parts, ",")
}

func encodeFlag(name byte, on bool) string {
	if on {
		return string(name) + "1"
	}
	return string(name) + "0"
}
