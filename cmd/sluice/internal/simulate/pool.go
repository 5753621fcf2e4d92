package simulate

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// poolFlags select a pool of a configuration file, and the arrivals of its flows.
type poolFlags struct {
	Config string   `short:"c" placeholder:"FILE" help:"Configuration file with the pool and its tenants."`
	Pool   string   `placeholder:"NAME" help:"Pool of the configuration file that the flows of --flow share."`
	Flow   []string `sep:"none" placeholder:"FLOW=ARRIVALS" help:"A flow of the pool, as TENANT/ROUTE, or TENANT if the pool has one route; its arrivals are a FILE, or SHAPE:RATE to generate them, such as poisson:40/s or flash-sale:5/s:80/s. Repeatable."`
}

// pool reads the pool of the configuration and the arrivals of its flows.
func (f *poolFlags) pool(a *cli.App, t *traceFlags) (shaper.Policy, []simulate.Member, error) {
	var none shaper.Policy
	switch {
	case f.Config == "":
		return none, nil, cli.Usagef("--pool requires --config FILE")
	case len(f.Flow) == 0:
		return none, nil, cli.Usagef("--pool requires at least one --flow TENANT/ROUTE=ARRIVALS")
	case t.Trace != "" || t.Generate != nil:
		return none, nil, cli.Usagef("--trace and --generate are of one flow: with --pool, " +
			"give the arrivals of each --flow")
	}
	cfg, err := config.Load(config.Sources{File: f.Config, Environ: a.Environ})
	if err != nil {
		return none, nil, err
	}
	baseline := cfg.Tenants.Baseline()
	pool, declared := baseline.Pools[f.Pool]
	if !declared {
		return none, nil, cli.Usagef("--pool: %q: %s", f.Pool,
			shaper.OneOf("the pools of "+f.Config+": ", f.Pool, slices.Sorted(maps.Keys(baseline.Pools))))
	}
	if len(baseline.PoolWeights) > 0 {
		fmt.Fprintln(a.Err, "sluice: note: tiers with pool_weight are not simulated; each flow has the weight and the "+
			"reserve of its tenant.")
	}
	var members []simulate.Member
	var made []bool // whether the trace of a member is generated
	for i, text := range f.Flow {
		flow, source, found := strings.Cut(text, "=")
		tenant, route := flow, ""
		if at := strings.LastIndexByte(flow, '/'); at >= 0 {
			tenant, route = flow[:at], flow[at+1:]
		} else if len(pool.Routes) == 1 {
			route = pool.Routes[0]
		}
		if !found || tenant == "" || !slices.Contains(pool.Routes, route) {
			return none, nil, cli.Usagef("--flow: %q: must be TENANT/ROUTE=ARRIVALS with a route of the pool: %s",
				text, strings.Join(pool.Routes, ", "))
		}
		m := simulate.Member{Name: tenant + "/" + route}
		m.Policy, _ = baseline.Resolve(shaper.Statements{File: cfg.Tenants.Named[tenant]}, route)
		var generated bool
		if m.Trace, generated, err = t.of(a, source, uint64(i)); err != nil {
			return none, nil, err
		}
		members, made = append(members, m), append(made, generated)
	}
	together(members, made)
	policy, _ := baseline.ResolvePool(f.Pool, shaper.Overrides{})
	return policy, members, nil
}

// together moves the generated arrivals to where those of the files begin.
func together(members []simulate.Member, generated []bool) {
	begins := map[bool]shaper.Instant{}
	for i, m := range members {
		if begin, known := begins[generated[i]]; !known || m.Trace[0].At < begin {
			begins[generated[i]] = m.Trace[0].At
		}
	}
	recorded, mixed := begins[false]
	for i, m := range members {
		for k := 0; mixed && generated[i] && k < len(m.Trace); k++ {
			m.Trace[k].At += recorded - begins[true]
		}
	}
}

// of reads or generates the arrivals of one of several flows. Each has its own seed.
func (f *traceFlags) of(
	a *cli.App, source string, seed uint64,
) (t simulate.Trace, generated bool, err error) {
	one := *f
	one.Trace, one.Generate = source, nil
	one.Seed += seed
	shape, rates, found := strings.Cut(source, ":")
	if generated = found && slices.Contains(simulate.Shapes(), simulate.Shape(shape)); generated {
		rate, peak, peaks := strings.Cut(rates, ":")
		if one.Arrivals, err = shaper.ParseRate(rate); err != nil {
			return nil, true, cli.Usagef("--flow: %q: %v", source, err)
		}
		if peaks {
			if one.Peak, err = shaper.ParseRate(peak); err != nil {
				return nil, true, cli.Usagef("--flow: %q: %v", source, err)
			}
		}
		one.Trace, one.Generate = "", &shape
	}
	t, err = one.load(a)
	return t, generated, err
}

// poolSimulation is the JSON output of simulate with a pool.
type poolSimulation struct {
	Pool    string            `json:"pool"`
	Arrived int64             `json:"arrived"`
	SpanS   float64           `json:"span_s"`
	Total   simulationFigures `json:"total"`
	Flows   []flowFigures     `json:"flows"`
}

// flowFigures are the figures of a flow of a pool.
type flowFigures struct {
	Flow    string       `json:"flow"`
	Weight  int64        `json:"weight"`
	Reserve *shaper.Rate `json:"reserve,omitempty"`
	// Part is what it got of the cost that the pool gave while the flow had jobs, from 0 to 1.
	Part float64 `json:"part"`
	simulationFigures
}

// runPool simulates a pool.
func (c *SimulateCmd) runPool(a *cli.App) error {
	if c.SVG != "" || c.Save != "" || len(c.Through) != 1 || c.Through[0] != simulate.NameShaper {
		return cli.Usagef("--svg, --save and --through are for arrivals without --pool")
	}
	policy, members, err := c.pool(a, &c.traceFlags)
	if err != nil {
		return err
	}
	r, err := simulate.Pool(members, policy, c.Service)
	if err != nil {
		return flagError(err, nil)
	}
	out := poolSimulation{Pool: c.Pool, Total: figuresOf(r.Report())}
	for i, m := range members {
		f := flowFigures{Flow: m.Name, Weight: max(1, m.Policy.Weight), Part: r.Parts[i],
			simulationFigures: figuresOf(r.Runs[i].Report())}
		if m.Policy.Reserve != (shaper.Rate{}) {
			f.Reserve = &m.Policy.Reserve
		}
		out.Flows = append(out.Flows, f)
		out.Arrived += int64(len(m.Trace))
	}
	out.SpanS = span(members).Seconds()
	if c.JSON {
		return cli.PrintJSON(a.Out, out)
	}
	return out.print(a.Out, policy)
}

// span is the time from the first arrival of all flows to the last.
func span(members []simulate.Member) time.Duration {
	first, last := members[0].Trace[0].At, shaper.Instant(0)
	for _, m := range members {
		first, last = min(first, m.Trace[0].At), max(last, m.Trace[len(m.Trace)-1].At)
	}
	return last.Sub(first)
}

func (s poolSimulation) print(w io.Writer, policy shaper.Policy) error {
	fmt.Fprintf(w, "%s in %v, through the pool %s at %v\n\n",
		cli.Plural(int(s.Arrived), "arrival", "arrivals"), roundWait(time.Duration(s.SpanS*float64(time.Second))), s.Pool, policy.Rate)
	rows := [][]string{{"FLOW", "WEIGHT", "RESERVE", "ADMITTED", "REFUSED", "EXPIRED", "PART",
		"WAIT P50", "P95", "P99", "MAX", "PEAK DEPTH"}}
	row := func(name, weight, reserve, part string, f simulationFigures) {
		wait := func(ms float64) string { return roundWait(time.Duration(ms * float64(time.Millisecond))).String() }
		rows = append(rows, []string{name, weight, reserve, fmt.Sprint(f.Admitted), fmt.Sprint(f.Refused),
			fmt.Sprint(f.Expired), part, wait(f.WaitP50MS), wait(f.WaitP95MS), wait(f.WaitP99MS), wait(f.WaitMaxMS), fmt.Sprint(f.PeakDepth)})
	}
	for _, f := range s.Flows {
		reserve := "-"
		if f.Reserve != nil {
			reserve = f.Reserve.String()
		}
		row(f.Flow, fmt.Sprint(f.Weight), reserve, fmt.Sprintf("%.3g%%", 100*f.Part), f.simulationFigures)
	}
	row("all", "-", "-", "-", s.Total)
	return cli.PrintTable(w, rows)
}
