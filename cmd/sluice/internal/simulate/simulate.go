package simulate

import (
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
	"github.com/7509e464/sluice/shaper/simulate"
)

// SimulateCmd is the command simulate.
type SimulateCmd struct {
	traceFlags   `embed:"" group:"Arrivals:"`
	pictureFlags `embed:"" group:"Output:"`
	poolFlags    `embed:"" group:"Pool:"`
	Through      []string      `enum:"shaper,fixed-window,sliding-log,sliding-counter,token-bucket,leaky-meter,all" default:"shaper" placeholder:"NAME" help:"What the arrivals pass through: shaper, fixed-window, sliding-log, sliding-counter, token-bucket, leaky-meter, several separated by commas, or all [shaper]."`
	Rate         shaper.Rate   `default:"10/s" placeholder:"LIMIT/PERIOD" help:"Departures per period, or the limit [10/s by default]."`
	Burst        int64         `default:"0" placeholder:"N" help:"Jobs that may leave the shaper at once after an idle period [1]; bucket size of token-bucket and leaky-meter [the limit]."`
	Rates        []string      `placeholder:"RATE" help:"Further rates of the shaper, such as '1000/24h burst 1000' or '60/m by jobs', separated by commas."`
	Capacity     int64         `default:"1000" placeholder:"N" help:"Maximum number of jobs waiting in the shaper [1000]."`
	MaxWait      time.Duration `default:"0s" placeholder:"DURATION" help:"Longest wait in the shaper; 0s is no limit [0s]."`
	Concurrency  int64         `default:"0" placeholder:"N" help:"Concurrent deliveries of the shaper's workers, each for the time of --service; 0 is no bound [0]."`
	Service      time.Duration `default:"0s" placeholder:"DURATION" help:"Duration of a delivery; requires --concurrency [0s]."`
	Horizon      time.Duration `default:"20ms" placeholder:"DURATION" help:"How far ahead of its departure a job is leased: the setting worker.horizon [20ms]."`
	Block        time.Duration `default:"0s" placeholder:"DURATION" help:"How long sliding-log refuses all requests after an overflow [0s]."`
	Save         string        `placeholder:"FILE" help:"Write the arrivals as CSV." group:"Output:"`
}

func (SimulateCmd) Help() string {
	return `Example:
  sluice simulate --generate flash-sale --rate 20/s --capacity 500
  sluice simulate --generate flash-sale --rate 20/s --concurrency 8 --service 500ms
  sluice simulate --trace access.log --through all --rate 50/s --svg limiters.svg
  sluice simulate --trace arrivals.csv --through sliding-log,shaper --rate 100/m --json
  sluice simulate -c sluice.yaml --pool erp --flow acme/orders=acme.csv --flow shop/orders=poisson:40/s

The output counts admitted, refused and delayed arrivals. Time is virtual. The figures are exact,
because the arithmetic is that of the server. FULLEST is the maximum that passed within one period
of the rate.

A CSV file has one arrival a line: its instant, as 2026-03-01T12:00:00.25Z or in seconds, and its
cost if that is not 1. With a header, the columns "at" and "cost" may be in any order. Requests of
an access log are spread evenly over their second.

With --pool the flows share the rate of a pool. The configuration file has the settings of the pool
and of the tenants. PART is what a flow got of the pool while it had jobs. --service is the duration
of a delivery; the concurrency is that of the file.

Next: sluice recommend finds a rate and a capacity for the same arrivals.`
}

func (c *SimulateCmd) Run(a *cli.App) error { return a.Interruptible(c.run) }

func (c *SimulateCmd) run(a *cli.App) error {
	if c.Pool != "" {
		return c.runPool(a)
	}
	if len(c.Flow) > 0 || c.Config != "" {
		return cli.Usagef("--flow and --config require --pool NAME")
	}
	if (c.Concurrency != 0) != (c.Service != 0) {
		return cli.Usagef("--concurrency and --service require each other")
	}
	if c.Burst < 0 {
		return cli.Usagef("--burst: %d: must not be negative; 0 is the default", c.Burst)
	}
	t, err := c.load(a)
	if err != nil {
		return err
	}
	if c.Save != "" {
		if err := writeFile(c.Save, func(w io.Writer) error { return simulate.WriteCSV(w, t) }); err != nil {
			return err
		}
	}
	var runs []*simulate.Run
	var figures []simulationFigures
	names := c.names()
	watch, done := a.WatchSteps("replayed", len(names), len(names)*len(t) >= 10*longTrace)
	for _, name := range names {
		r, err := c.replay(t, name)
		if err != nil {
			return flagError(err, nil)
		}
		runs, figures = append(runs, r), append(figures, figuresOf(r.Report()))
		watch(len(runs))
	}
	done()
	if c.JSON {
		err = cli.PrintJSON(a.Out, simulation{Arrived: len(t), SpanS: t.Span().Seconds(), Runs: figures})
	} else {
		err = c.print(a, t, figures)
	}
	if err == nil && c.plots(a) {
		err = plotRuns(a.Out, runs)
	}
	if err != nil {
		return err
	}
	if c.SVG == "" {
		return nil
	}
	return writeFile(c.SVG, func(w io.Writer) error {
		if len(runs) == 1 {
			return drawRun(w, runs[0])
		}
		return drawComparison(w, runs)
	})
}

// names returns the shaper and limiters of --through, in the order of the output.
func (c *SimulateCmd) names() []string {
	var names []string
	wanted := map[string]bool{}
	for _, name := range c.Through {
		wanted[name] = true
	}
	known := []string{}
	for _, l := range limiter.Algorithms() {
		known = append(known, string(l))
	}
	for _, name := range append(known, simulate.NameShaper) {
		if wanted["all"] || wanted[name] {
			names = append(names, name)
		}
	}
	return names
}

func (c *SimulateCmd) replay(t simulate.Trace, name string) (*simulate.Run, error) {
	if name != simulate.NameShaper {
		p := limiter.Policy{Algorithm: limiter.Algorithm(name), Rate: c.Rate}
		switch p.Algorithm {
		case limiter.TokenBucket, limiter.LeakyMeter:
			p.Burst = c.Burst
		case limiter.SlidingLog:
			p.Block = c.Block
		}
		return simulate.Limiter(t, p)
	}
	p := shaper.Policy{Rate: c.Rate, Burst: max(1, c.Burst), Capacity: c.Capacity, Concurrency: c.Concurrency,
		MaxWait: c.MaxWait}
	for _, text := range c.Rates {
		pace, err := shaper.ParsePace(text)
		if err != nil {
			return nil, cli.Usagef("--rates: %q: %v", text, err)
		}
		p.Rates = append(p.Rates, pace.Pace())
	}
	return simulate.Shaper(t, p, simulate.Workers{Horizon: c.Horizon, Service: c.Service})
}

// simulation is the JSON output of simulate.
type simulation struct {
	Arrived int                 `json:"arrived"`
	SpanS   float64             `json:"span_s"`
	Runs    []simulationFigures `json:"runs"`
}

// simulationFigures are the figures of one run.
type simulationFigures struct {
	Through       string  `json:"through"`
	Admitted      int64   `json:"admitted"`
	Refused       int64   `json:"refused"`
	Delayed       int64   `json:"delayed"`
	Expired       int64   `json:"expired"`
	WaitP50MS     float64 `json:"wait_p50_ms"`
	WaitP95MS     float64 `json:"wait_p95_ms"`
	WaitP99MS     float64 `json:"wait_p99_ms"`
	WaitMaxMS     float64 `json:"wait_max_ms"`
	PeakDepth     int64   `json:"peak_depth"`
	FullestWindow int64   `json:"fullest_window"`
	WindowMS      int64   `json:"window_ms"`
}

func figuresOf(r simulate.Report) simulationFigures {
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	return simulationFigures{
		Through: r.Name, Admitted: r.Admitted, Refused: r.Refused, Delayed: r.Delayed, Expired: r.Expired,
		WaitP50MS: ms(r.WaitP50), WaitP95MS: ms(r.WaitP95), WaitP99MS: ms(r.WaitP99), WaitMaxMS: ms(r.WaitMax),
		PeakDepth: r.PeakDepth, FullestWindow: r.FullestWindow, WindowMS: r.Window.Milliseconds(),
	}
}

func (c *SimulateCmd) print(a *cli.App, t simulate.Trace, figures []simulationFigures) error {
	fmt.Fprintf(a.Out, "%s in %v%s, through at %v\n\n", cli.Plural(len(t), "arrival", "arrivals"),
		roundWait(t.Span()), meanRate(t), c.Rate)
	rows := [][]string{{"THROUGH", "ADMITTED", "REFUSED", "DELAYED", "WAIT P50", "P95", "P99", "MAX",
		"PEAK DEPTH", "FULLEST"}}
	count := func(n int64) string { return strconv.FormatInt(n, 10) }
	wait := func(ms float64) string { return roundWait(time.Duration(ms * float64(time.Millisecond))).String() }
	for _, f := range figures {
		depth := "-"
		if f.Through == simulate.NameShaper {
			depth = count(f.PeakDepth)
		}
		rows = append(rows, []string{
			f.Through, count(f.Admitted), count(f.Refused), count(f.Delayed), wait(f.WaitP50MS),
			wait(f.WaitP95MS), wait(f.WaitP99MS), wait(f.WaitMaxMS),
			depth, count(f.FullestWindow),
		})
		if f.Expired > 0 {
			fmt.Fprintf(a.Err, "%s: %d admitted jobs expired before their departure\n", f.Through, f.Expired)
		}
	}
	return cli.PrintTable(a.Out, rows)
}

// meanRate returns the mean rate of arrivals as part of a sentence, empty if all arrive at once.
func meanRate(t simulate.Trace) string {
	if t.Span() <= 0 {
		return ""
	}
	return fmt.Sprintf(" (%s on average)", cli.PerSecond(float64(len(t))/t.Span().Seconds()))
}

// roundWait rounds a time to a readable number of digits.
func roundWait(d time.Duration) time.Duration {
	switch {
	case d >= 10*time.Minute:
		return d.Round(time.Second)
	case d >= time.Second:
		return d.Round(10 * time.Millisecond)
	case d >= 10*time.Millisecond:
		return d.Round(100 * time.Microsecond)
	}
	return d
}
