package simulate

import (
	"fmt"
	"strings"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// poolRecommendation is the JSON output of recommend with a pool.
type poolRecommendation struct {
	Pool    string      `json:"pool"`
	Rate    shaper.Rate `json:"rate"`
	Reached bool        `json:"reached"` // by all flows
	Flows   []shareJSON `json:"flows"`
}

// shareJSON is what a flow of the pool should have.
type shareJSON struct {
	Flow      string       `json:"flow"`
	Needs     shaper.Rate  `json:"needs"`    // alone
	Possible  bool         `json:"possible"` // alone
	Weight    int64        `json:"weight"`
	Reserve   *shaper.Rate `json:"reserve,omitempty"`
	Capacity  int64        `json:"capacity"`
	Refused   float64      `json:"refused"` // part of the arrivals
	WaitP99MS float64      `json:"wait_p99_ms"`
	WaitMaxMS float64      `json:"wait_max_ms"`
	Reached   bool         `json:"reached"`
	Command   string       `json:"command"`
}

// runPool recommends weights, reserves and capacities of the flows of a pool.
func (c *RecommendCmd) runPool(a *cli.App, maxRefused float64) error {
	switch {
	case c.SVG != "" || c.Burst != 1 || c.Tenant != "TENANT":
		return cli.Usagef("--svg, --burst and --tenant are for arrivals without --pool")
	case c.WaitP99 == 0:
		return cli.Usagef("--pool requires --wait-p99")
	}
	policy, members, err := c.pool(a, &c.traceFlags)
	if err != nil {
		return err
	}
	if c.Upstream != nil {
		policy.Rate = *c.Upstream
	}
	goals := simulate.PoolGoals{WaitP99: c.WaitP99, MaxRefused: maxRefused}
	shares, err := simulate.RecommendPool(members, policy, goals)
	if err != nil {
		return flagError(err, nil)
	}
	out := poolRecommendation{Pool: c.Pool, Rate: policy.Rate, Reached: true}
	for i, s := range shares {
		ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
		f := shareJSON{Flow: members[i].Name, Needs: s.Needs, Possible: s.Possible, Weight: s.Weight,
			Capacity: s.Capacity, Refused: s.Refused, WaitP99MS: ms(s.WaitP99), WaitMaxMS: ms(s.WaitMax), Reached: s.Reached,
			Command: shareCommand(members[i].Name, s)}
		if s.Reserve != (shaper.Rate{}) {
			f.Reserve = &s.Reserve
		}
		out.Flows, out.Reached = append(out.Flows, f), out.Reached && s.Reached
	}
	if c.JSON {
		err = cli.PrintJSON(a.Out, out)
	} else {
		err = out.print(a, span(members))
	}
	if err == nil && !out.Reached {
		return cli.ErrReported
	}
	return err
}

// shareCommand is the command that applies a share to its flow.
func shareCommand(flow string, s simulate.Share) string {
	at := strings.LastIndexByte(flow, '/')
	text := fmt.Sprintf("sluice tenant set %s --route %s --weight %d --capacity %d",
		cli.ShellWord(flow[:at]), flow[at+1:], s.Weight, s.Capacity)
	if s.Reserve != (shaper.Rate{}) {
		text += " --reserve " + s.Reserve.String()
	}
	return text
}

func (r poolRecommendation) print(a *cli.App, span time.Duration) error {
	fmt.Fprintf(a.Out, "%s in %v, in the pool %s at %v\n\n", cli.Plural(len(r.Flows), "flow", "flows"),
		roundWait(span), r.Pool, r.Rate)
	rows := [][]string{{"FLOW", "NEEDS", "WEIGHT", "RESERVE", "CAPACITY", "REFUSED", "WAIT P99", "MAX", "GOALS"}}
	for _, f := range r.Flows {
		needs, reserve, goals := f.Needs.String(), "-", "reached"
		switch {
		case !f.Possible:
			needs, goals = "-", "missed, also alone"
		case !f.Reached:
			goals = "missed"
		}
		if f.Reserve != nil {
			reserve = f.Reserve.String()
		}
		wait := func(ms float64) string { return roundWait(time.Duration(ms * float64(time.Millisecond))).String() }
		rows = append(rows, []string{f.Flow, needs, fmt.Sprint(f.Weight), reserve, fmt.Sprint(f.Capacity),
			fmt.Sprintf("%.3g%%", 100*f.Refused), wait(f.WaitP99MS), wait(f.WaitMaxMS), goals})
	}
	if err := cli.PrintTable(a.Out, rows); err != nil {
		return err
	}
	fmt.Fprintln(a.Out)
	for _, f := range r.Flows {
		fmt.Fprintln(a.Out, f.Command)
	}
	if !r.Reached {
		fmt.Fprintln(a.Err,
			"sluice: not every flow reaches the goals: raise --upstream, --wait-p99 or --max-refused")
	}
	return nil
}
