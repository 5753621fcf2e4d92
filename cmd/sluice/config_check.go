package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
)

type configCmd struct {
	Check configCheckCmd `cmd:"" help:"Print the problems of a configuration, or its settings."`
}

func (configCmd) Help() string {
	return `Example:
  sluice config check sluice.yaml`
}

// sourceFlags are the flags of settings and routes.
type sourceFlags struct {
	Route []string `sep:"none" placeholder:"NAME=URL" help:"Deliver the jobs of the route NAME to URL; repeatable. The same as routes.NAME.url in the file and the variable SLUICE_ROUTE_NAME_URL."`

	kong.Plugins // the flags of the settings
}

func (f *sourceFlags) sources(a *cli.App, file string) config.Sources {
	return config.Sources{File: file, Environ: a.Environ, Flags: settingValues(f.Plugins), Routes: f.Route}
}

// check reads a configuration whose file is an argument, and prints the notes on it.
func (f *sourceFlags) check(a *cli.App, file string) (cfg config.Config, settings []config.InForce, err error) {
	for _, note := range config.Strays(a.Environ) {
		fmt.Fprintln(a.Err, "sluice: note:", note)
	}
	cfg, settings, err = config.Check(f.sources(a, file))
	var problems shaper.Problems
	if errors.As(err, &problems) && file != "" {
		for i, p := range problems {
			if p.Field == "--config" {
				problems[i].Field = "the file"
			}
		}
	}
	for _, note := range cfg.Notes {
		fmt.Fprintln(a.Err, "sluice: note:", note)
	}
	if err == nil {
		err = process.CheckAdminToken(cfg)
	}
	return cfg, settings, err
}

type configCheckCmd struct {
	File  string `arg:"" optional:"" env:"SLUICE_CONFIG" help:"Configuration file (YAML) [none]."`
	JSON  bool   `help:"Print the settings as JSON."`
	Redis bool   `help:"Compare the configuration with the store at redis.url, too."`

	sourceFlags
}

func (configCheckCmd) Help() string {
	return `Example:
  sluice config check sluice.yaml
  sluice config check --redis sluice.yaml
  sluice config check --route default=http://127.0.0.1:9000/orders

The command reads the file, the environment and the flags like sluice serve with the same arguments,
and starts nothing. It prints all problems, each with its path, value and rule. Without problems it
prints every setting in force with its source; secrets are hidden. Then it prints each pool with the sum of
the reserves of the named tenants, and with how many other tenants the reserves exceed the rate.

With --redis it also reads which environment and how many shards the store at redis.url has, and says
why it would refuse a process with this configuration. It also names the settings of tenants and pools
that the API has set to other values than the file. It writes nothing there.

Exit codes: 0 no problems, 1 the store would refuse it or does not answer, 2 problems.

Next: sluice serve --config FILE. Settings of tenants that were changed through the API outrank the
file: sluice tenant get NAME prints them.`
}

func (c *configCheckCmd) Run(a *cli.App) error {
	cfg, settings, err := c.check(a, c.File)
	if err != nil {
		return err
	}
	if c.Redis && cfg.Redis.URL == "" {
		return cli.Usagef("--redis: redis.url is not set: a private redis-server belongs to one process")
	}
	store := func() (err error) {
		if c.Redis {
			_, err = preflight(a, cfg)
		}
		return err
	}
	if c.JSON {
		if err := cli.PrintJSON(a.Out, map[string]any{"settings": settings, "pools": checkedPools(cfg)}); err != nil {
			return err
		}
		return store()
	}
	rows := [][]string{{"KEY", "VALUE", "FROM"}}
	for _, s := range settings {
		rows = append(rows, []string{s.Key, cli.OneLine(s.Value), s.From})
	}
	if err := cli.PrintTable(a.Out, rows); err != nil {
		return err
	}
	if err := printPools(a, checkedPools(cfg)); err != nil {
		return err
	}
	if err := store(); err != nil {
		return err
	}
	fmt.Fprintln(a.Err, "No problems.")
	return nil
}

// preflight compares the configuration with the store, and prints the notes.
func preflight(a *cli.App, cfg config.Config) (queue.Found, error) {
	p := &process.Process{Config: cfg, Roles: process.Roles{API: true, Worker: true}, Log: cli.NewLogger(a.Err, "error")}
	found, err := p.Preflight(a.Ctx)
	for _, note := range found.Notes {
		fmt.Fprintln(a.Err, "sluice: note:", note)
	}
	if errors.Is(err, queue.ErrEnvironment) || errors.Is(err, queue.ErrSchema) {
		err = fmt.Errorf("the store would refuse this configuration: %w", err)
	}
	return found, err
}

// checkedPool is a pool in the JSON output. Rates are in costs a second.
type checkedPool struct {
	Pool     string          `json:"pool"`
	Rate     shaper.Rate     `json:"rate"` // the strictest by cost
	MaxCost  int64           `json:"max_cost"`
	Routes   []string        `json:"routes"`
	Reserved float64         `json:"reserved_per_second"` // by the named tenants
	Others   []otherReserves `json:"others"`
}

// otherReserves are the reserves of tenants that are not named. More than Most of them that wait
// oversubscribe the pool.
type otherReserves struct {
	Tier string  `json:"tier"` // empty: without a tier
	Each float64 `json:"each_per_second"`
	Most int64   `json:"most"`
}

func checkedPools(cfg config.Config) []checkedPool {
	pools := []checkedPool{}
	for _, p := range cfg.Pools() {
		out := checkedPool{Pool: p.Name, Rate: p.Strictest, MaxCost: p.MaxCost, Routes: p.Routes, Reserved: p.Reserved,
			Others: []otherReserves{}}
		for _, tier := range slices.Sorted(maps.Keys(p.Others)) {
			out.Others = append(out.Others, otherReserves{tier, p.Others[tier].Each, p.Others[tier].Most})
		}
		pools = append(pools, out)
	}
	return pools
}

// reserved is the sum of the reserves of a pool, which count on each of its routes.
func reserved(p checkedPool) string {
	text := fmt.Sprintf("%.6g/s", p.Reserved)
	if p.Reserved > 0 && len(p.Routes) > 1 {
		text += fmt.Sprintf(" over %d routes", len(p.Routes))
	}
	return text
}

// printPools prints what each pool has to give and who reserves it.
func printPools(a *cli.App, pools []checkedPool) error {
	if len(pools) == 0 {
		return nil
	}
	rows := [][]string{{"POOL", "RATE", "MAX COST", "ROUTES", "RESERVED", "OVERSUBSCRIBED"}}
	for _, p := range pools {
		var when []string
		for _, o := range p.Others {
			who := "tenants without a tier"
			if o.Tier != "" {
				who = "tenants of the tier " + o.Tier
			}
			when = append(when, fmt.Sprintf("with more than %d other %s, %.6g/s each", o.Most, who, o.Each))
		}
		if when == nil {
			when = []string{"no"}
		}
		rows = append(rows, []string{p.Pool, p.Rate.String(), fmt.Sprint(p.MaxCost), strings.Join(p.Routes, ", "),
			reserved(p), strings.Join(when, "; ")})
	}
	fmt.Fprintln(a.Out)
	return cli.PrintTable(a.Out, rows)
}
