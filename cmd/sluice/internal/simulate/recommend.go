package simulate

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// RecommendCmd is the command recommend.
type RecommendCmd struct {
	traceFlags   `embed:"" group:"Arrivals:"`
	pictureFlags `embed:"" group:"Output:"`
	poolFlags    `embed:"" group:"Pool:"`
	MaxRefused   string        `default:"0.1%" placeholder:"SHARE" help:"Maximum share of refused arrivals, such as 0.1% [0.1%]."`
	WaitP99      time.Duration `name:"wait-p99" default:"0s" placeholder:"DURATION" help:"Maximum wait of 99 of 100 admitted arrivals."`
	Upstream     *shaper.Rate  `placeholder:"LIMIT/PERIOD" help:"Maximum rate of the upstream."`
	Burst        int64         `default:"1" placeholder:"N" help:"Jobs that may leave at once after an idle period [1]."`
	Tenant       string        `filled:"" default:"TENANT" placeholder:"NAME" help:"Tenant of the printed command."`
}

func (RecommendCmd) Help() string {
	return `Example:
  sluice recommend --trace access.log --max-refused 0.1% --wait-p99 30s
  sluice recommend --trace arrivals.csv --upstream 50/s --tenant acme
  sluice recommend --generate flash-sale --wait-p99 10s --svg tradeoff.svg
  sluice recommend -c sluice.yaml --pool erp --flow acme=acme.csv --flow shop=shop.csv --wait-p99 2s

The goals are the share of refused arrivals (--max-refused) and the wait of 99 of 100 admitted jobs
(--wait-p99). With --upstream the rate is at most that of the upstream. With --upstream and without
--wait-p99 it is exactly that rate, and the command finds the capacity alone.

The table has the rates around the result, each with its capacity and wait. The result fits these
arrivals; add a reserve for busier days.

With --pool the result is a weight, a reserve and a capacity for each flow of the pool. NEEDS is the
smallest rate at which the flow reaches the goals alone; weights are in proportion to it. If weights
are not enough, flows get it as a reserve, the smallest first. The capacity of a flow that cannot
reach the goals keeps its waits below --wait-p99, at the price of refusals. --upstream replaces the
rate of the pool.

The exit code is 1 if no allowed rate reaches the goals, or with --pool if a flow misses them.

Next: run the commands at the end of the output.`
}

func (c *RecommendCmd) Run(a *cli.App) error { return a.Interruptible(c.run) }

func (c *RecommendCmd) run(a *cli.App) error {
	fraction, err := parseFraction(c.MaxRefused)
	if err != nil {
		return cli.Usagef("--max-refused: %v", err)
	}
	switch {
	case c.Pool != "":
		return c.runPool(a, fraction)
	case len(c.Flow) > 0 || c.Config != "":
		return cli.Usagef("--flow and --config require --pool NAME")
	}
	t, err := c.load(a)
	if err != nil {
		return err
	}
	goals := simulate.Goals{MaxRefused: fraction, WaitP99: c.WaitP99, Burst: c.Burst}
	if c.Upstream != nil {
		goals.Upstream = *c.Upstream
	}
	watch, done := a.WatchSteps("rates tried", -1, len(t) >= longTrace)
	r, err := simulate.Recommend(t, goals, watch)
	done()
	if err != nil {
		return flagError(err, nil)
	}
	if c.JSON {
		err = cli.PrintJSON(a.Out, c.recommendation(r))
	} else {
		err = c.print(a, t, r)
	}
	if err == nil && c.plots(a) {
		err = plotCurve(a.Out, r)
	}
	if err == nil && c.SVG != "" && len(r.Curve) > 0 {
		err = writeFile(c.SVG, func(w io.Writer) error { return drawTradeOff(w, r, goals) })
	}
	if err == nil && !r.Reached {
		return cli.ErrReported
	}
	return err
}

// parseFraction reads a fraction such as 0.1% or 0.001.
func parseFraction(text string) (float64, error) {
	digits, percent := strings.CutSuffix(text, "%")
	fraction, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0, fmt.Errorf("%q must be a fraction such as 0.1%% or 0.001", text)
	}
	if percent {
		fraction /= 100
	}
	return fraction, nil
}

// recommendation is the JSON output of recommend.
type recommendation struct {
	pointJSON
	Burst   int64       `json:"burst"`
	Curve   []pointJSON `json:"curve"`
	Command string      `json:"command,omitempty"`
}

// pointJSON is a rate with the capacity that it needs.
type pointJSON struct {
	Rate      shaper.Rate `json:"rate"`
	Capacity  int64       `json:"capacity"`
	Refused   float64     `json:"refused"` // part of the arrivals
	WaitP99MS float64     `json:"wait_p99_ms"`
	WaitMaxMS float64     `json:"wait_max_ms"`
	Reached   bool        `json:"reached"`
}

func pointOf(p simulate.Point) pointJSON {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return pointJSON{Rate: p.Rate, Capacity: p.Capacity, Refused: p.Refused, WaitP99MS: ms(p.WaitP99),
		WaitMaxMS: ms(p.WaitMax), Reached: p.Reached}
}

func (c *RecommendCmd) recommendation(r simulate.Recommendation) recommendation {
	out := recommendation{pointJSON: pointOf(r.Point), Burst: c.Burst, Curve: []pointJSON{}}
	for _, p := range r.Curve {
		out.Curve = append(out.Curve, pointOf(p))
	}
	if r.Reached {
		out.Command = c.command(r)
	}
	return out
}

// command returns the command that applies the recommendation.
func (c *RecommendCmd) command(r simulate.Recommendation) string {
	text := fmt.Sprintf("sluice tenant set %s --rate %v --capacity %d", cli.ShellWord(c.Tenant), r.Rate,
		r.Capacity)
	if c.Burst != 1 {
		text += fmt.Sprintf(" --burst %d", c.Burst)
	}
	return text
}

func (c *RecommendCmd) print(a *cli.App, t simulate.Trace, r simulate.Recommendation) error {
	fmt.Fprintf(a.Out, "%s in %v%s\n\n", cli.Plural(len(t), "arrival", "arrivals"), roundWait(t.Span()),
		meanRate(t))
	rows := [][]string{{"RATE", "CAPACITY", "REFUSED", "WAIT P99", "MAX", "GOALS"}}
	for _, p := range r.Curve {
		goals := "reached"
		if !p.Reached {
			goals = "missed"
		}
		if p.Rate == r.Rate && r.Reached {
			goals = "reached, recommended"
		}
		rows = append(rows, []string{
			p.Rate.String(), strconv.FormatInt(p.Capacity, 10), fmt.Sprintf("%.3g%%",
				100*p.Refused), roundWait(p.WaitP99).String(), roundWait(p.WaitMax).String(), goals,
		})
	}
	if err := cli.PrintTable(a.Out, rows); err != nil {
		return err
	}
	if !r.Reached {
		fmt.Fprintf(a.Err, "sluice: no rate up to %v reaches the goals: raise --upstream, --max-refused or "+
			"--wait-p99\n", r.Rate)
		return nil
	}
	if _, err := fmt.Fprintf(a.Out, "\n%s\n", c.command(r)); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// plotCurve plots the capacity of each rate of the curve.
func plotCurve(w io.Writer, r simulate.Recommendation) error {
	if len(r.Curve) < 2 {
		return nil
	}
	const columns = 6 // for each rate
	var values []float64
	for _, p := range r.Curve {
		values = append(values, slices.Repeat([]float64{float64(p.Capacity)}, columns)...)
	}
	first, last := r.Curve[0].Rate, r.Curve[len(r.Curve)-1].Rate
	_, err := io.WriteString(w, plotWith(values,
		fmt.Sprintf("capacity needed at the rates of the table, from %v to %v", first, last)))
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
