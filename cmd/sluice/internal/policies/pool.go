package policies

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

// PoolCmd is the command pool with its subcommands.
type PoolCmd struct {
	List    poolListCmd    `cmd:"" help:"List pools with their settings and figures."`
	Get     poolGetCmd     `cmd:"" help:"Print the settings and figures of a pool."`
	Set     poolSetCmd     `cmd:"" help:"Change settings of a pool."`
	Pause   poolPauseCmd   `cmd:"" help:"Stop the departures of a pool; jobs are still admitted."`
	Resume  poolResumeCmd  `cmd:"" help:"End a pause."`
	Unhold  poolUnholdCmd  `cmd:"" help:"End the hold of a pool after its upstream has recovered."`
	Flows   poolFlowsCmd   `cmd:"" help:"List the flows that wait in a pool, with their parts of the rate."`
	History poolHistoryCmd `cmd:"" help:"List the last changes of a pool's settings."`
}

// NewPool returns the command with the flags of its settings.
func NewPool() (c PoolCmd) {
	c.Set.Plugins = settingFlags(shaper.SettingsOfPools(), func(s shaper.Setting) string { return s.PoolHelp })
	return c
}

func (PoolCmd) Help() string {
	return `Example:
  sluice pool get erp
  sluice pool set erp --rate 200/s --concurrency 100

A pool is a rate that the flows of its routes share. The configuration file declares pools and their routes. The commands ask the admin listener. Changes are stored in Redis, outrank the configuration file, and apply to waiting jobs at once.`
}

// poolFlags name one pool.
type poolFlags struct {
	cli.AdminFlags
	Name string `arg:"" help:"Name of the pool."`
	JSON bool   `help:"Print JSON."`
}

type poolListCmd struct {
	cli.AdminFlags
	JSON bool `help:"Print JSON: {\"items\": […]}."`
}

func (poolListCmd) Help() string {
	return `Example:
  sluice pool list

The list has the pools of the configuration file: rate, capacity, waiting and running jobs, flows with a waiting job, and what limits the next departure.

Next: sluice pool get NAME.`
}

func (c *poolListCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	list, err := remote.Pools(a.Ctx)
	if err != nil {
		return fmt.Errorf("list the pools: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, list)
	}
	if len(list.Items) == 0 {
		fmt.Fprintln(a.Err, "The configuration declares no pools.")
		return nil
	}
	rows := [][]string{{"POOL", "RATE", "CAPACITY", "DEPTH", "RUNNING", "FLOWS", "LIMITED BY"}}
	for _, p := range list.Items {
		limitedBy := p.LimitedBy
		if p.Oversubscribed {
			limitedBy += ", oversubscribed"
		}
		rows = append(rows, []string{p.Pool, p.InForce().Rate.String(), shaper.CapacityText(p.InForce().Capacity), figure(p.Depth),
			figure(p.Running), figure(p.WaitingFlows), limitedBy})
	}
	return cli.PrintTable(a.Out, rows)
}

type poolGetCmd struct{ poolFlags }

func (poolGetCmd) Help() string {
	return `Example:
  sluice pool get erp
  sluice pool get erp --json

The output has each setting with its source, the sums over the flows of the pool, and what limits its next departure.

Next: sluice pool flows NAME lists who waits; sluice pool set NAME changes a setting.`
}

func (c *poolGetCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	p, err := remote.Pool(a.Ctx, c.Name)
	if err != nil {
		return fmt.Errorf("read the pool: %w", err)
	}
	return printPool(a.Out, p, c.JSON)
}

type poolSetCmd struct {
	poolFlags
	kong.Plugins        // the flags of the settings
	DryRun       bool   `help:"Check the change and print the result without applying it."`
	Reason       string `placeholder:"TEXT" help:"Reason of the change, for the history."`
}

func (poolSetCmd) Help() string {
	return `Example:
  sluice pool set erp --rate 200/s --reason "contract 17"
  sluice pool set erp --rate 10/s --rates '1000/24h burst 1000' --dry-run
  sluice pool set erp --reset rate,capacity

Settings without a flag stay as they are. A change applies to waiting jobs at once, without a burst. With --dry-run the output is the pool as it would be.

Next: sluice pool get NAME.`
}

func (c *poolSetCmd) Run(a *cli.App) error {
	patch, err := settingPatch(c.Plugins, "a pool")
	if err != nil {
		return err
	}
	if len(patch) == 0 {
		return cli.Usagef("at least one setting is required, such as --rate 200/s")
	}
	if c.Reason != "" {
		patch["reason"] = c.Reason
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	p, err := remote.PatchPool(a.Ctx, c.Name, patch, c.DryRun)
	if err != nil {
		return fmt.Errorf("change the pool: %w", err)
	}
	return printPool(a.Out, p, c.JSON)
}

// switchFlags name a pool that is paused, resumed or held no longer.
type switchFlags struct {
	poolFlags
	Reason string `placeholder:"TEXT" help:"Reason of the change, for the history."`
}

// change makes the change and prints the pool. verb names the change in an error.
func (f *switchFlags) change(
	a *cli.App, verb string,
	change func(c *client.Client, ctx context.Context, name, reason string) (wire.Pool, error),
) error {
	remote, err := f.Connect(1)
	if err != nil {
		return err
	}
	p, err := change(remote, a.Ctx, f.Name, f.Reason)
	if err != nil {
		return fmt.Errorf("%s the pool: %w", verb, err)
	}
	return printPool(a.Out, p, f.JSON)
}

type poolPauseCmd struct{ switchFlags }

func (poolPauseCmd) Help() string {
	return `Example:
  sluice pool pause erp --reason "upstream maintenance"

Jobs are still admitted until the pool or their queue is full. Running deliveries finish.

Next: sluice pool resume NAME.`
}

func (c *poolPauseCmd) Run(a *cli.App) error {
	return c.change(a, "pause", (*client.Client).PausePool)
}

type poolResumeCmd struct{ switchFlags }

func (poolResumeCmd) Help() string {
	return `Example:
  sluice pool resume erp

The waiting jobs leave at the rate of the pool, not at once.`
}

func (c *poolResumeCmd) Run(a *cli.App) error {
	return c.change(a, "resume", (*client.Client).ResumePool)
}

type poolUnholdCmd struct {
	switchFlags
	Charge bool `help:"Also stop waiting for costs that were charged: the next job may leave now."`
}

func (poolUnholdCmd) Help() string {
	return `Example:
  sluice pool unhold erp --reason "upstream is back"

An upstream can hold a pool for up to an hour with Retry-After. Use this command if it has recovered earlier. The jobs then leave at a reduced rate, which grows by a twentieth of the full rate each second. The change is in the history.

A pool also waits after a job of a high cost, for as long as its rate takes to leak it. With --charge, it stops waiting. The upstream has then received more than the rate allows.

Next: sluice pool get NAME shows the effective rate.`
}

func (c *poolUnholdCmd) Run(a *cli.App) error {
	if c.Charge {
		return c.change(a, "end the charge of", (*client.Client).EndPoolCharge)
	}
	return c.change(a, "unhold", (*client.Client).UnholdPool)
}

type poolFlowsCmd struct {
	poolFlags
	Limit int `default:"50" placeholder:"N" help:"Maximum number of flows, up to 1000."`
}

func (poolFlowsCmd) Help() string {
	return `Example:
  sluice pool flows erp
  sluice pool flows erp --limit 1000 --json

The list has the flows with a job that waits for a stamp, those that may leave next first. Flows that are paused have none. PART is the part of the pool's rate that weight and reserve entitle a flow to while the same flows wait.

Next: sluice top --pool NAME shows what each flow gets and what limits it; sluice tenant set NAME --weight N --reserve RATE.`
}

func (c *poolFlowsCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	flows, err := remote.PoolFlows(a.Ctx, c.Name, c.Limit)
	if err != nil {
		return fmt.Errorf("list the flows: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, flows)
	}
	if len(flows.Items) == 0 {
		fmt.Fprintln(a.Err, "No flow waits.")
		return c.others(a, remote, flows)
	}
	rows := [][]string{{"TENANT", "ROUTE", "DEPTH", "RUNNING", "DEPARTED", "COST", "WEIGHT", "RESERVE", "PART"}}
	for _, f := range flows.Items {
		reserve := ""
		if f.Reserve != nil {
			reserve = f.Reserve.String()
		}
		weight := figure(f.Weight)
		if f.Class != "" {
			weight += " (" + f.Class + ")"
		}
		rows = append(rows, []string{cli.OneLine(f.Tenant), f.Route, figure(f.Depth), figure(f.Running),
			figure(f.Departed), figure(f.Costs),
			weight, cli.OrDash(reserve), fmt.Sprintf("%.3g%%", 100*f.Part)})
	}
	if err := cli.PrintTable(a.Out, rows); err != nil {
		return err
	}
	return c.others(a, remote, flows)
}

// others says how many jobs wait in flows that the list has not.
func (c *poolFlowsCmd) others(a *cli.App, remote *client.Client, flows wire.PoolFlows) error {
	if len(flows.Items) == c.Limit {
		return nil
	}
	p, err := remote.Pool(a.Ctx, c.Name)
	if err != nil {
		return fmt.Errorf("read the pool: %w", err)
	}
	rest := p.Depth
	for _, f := range flows.Items {
		rest -= f.Depth
	}
	if rest > 0 {
		fmt.Fprintf(a.Err, "%s in flows that may not leave, such as paused ones: sluice top --pool %s has them\n",
			cli.Plural(int(rest), "job waits", "jobs wait"), cli.ShellWord(c.Name))
	}
	return nil
}

type poolHistoryCmd struct{ poolFlags }

func (poolHistoryCmd) Help() string {
	return `Example:
  sluice pool history erp

The output has the last 100 changes through the admin listener, newest first: when, by whom, why,
and what changed. A setting that is reset follows the configuration again. A command that undoes the
newest change follows.`
}

func (c *poolHistoryCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	history, err := remote.PoolHistory(a.Ctx, c.Name)
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	return printHistory(a, history, "pool set "+cli.ShellWord(c.Name), c.JSON)
}

func figure(n int64) string { return strconv.FormatInt(n, 10) }

func printPool(w io.Writer, p wire.Pool, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(w, p)
	}
	rows := [][]string{{"pool", p.Pool, ""}, {"routes", strings.Join(p.Routes, ", "), ""}}
	plain := func(label, value string) { rows = append(rows, []string{label, value, ""}) }
	rows = append(rows, settingRows(p.Policy, shaper.SettingsOfPools())...)
	plain("hold", fmt.Sprintf("%s, the pool for %v at most", p.Hold, time.Duration(p.MaxHoldMS)*time.Millisecond))
	if p.Reason != "" {
		plain("reason", p.Reason)
	}
	plain("depth", figure(p.Depth))
	plain("running", figure(p.Running))
	departed := figure(p.Departed)
	if p.Costs != p.Departed {
		departed += ", which cost " + figure(p.Costs)
	}
	plain("departed", departed)
	plain("limited by", p.LimitedBy)
	held := wire.Figures{HeldUntil: p.HeldUntil, HeldBy: p.HeldBy, HeldStatus: p.HeldStatus}
	if text := cli.HeldText(held); text != "" {
		if p.HeldBy == "retry_after" && p.Hold == "flow" {
			text += ", to two tenants"
		} else if p.HeldBy == "retry_after" {
			text += ", to one tenant, because of hold: pool"
		}
		plain("held", text)
	}
	plain("effective rate", cli.PerSecond(p.EffectiveRate))
	plain("waiting flows", figure(p.WaitingFlows))
	plain("their weights", figure(p.Weights))
	reserves := cli.PerSecond(p.Reserves)
	if p.Oversubscribed {
		reserves += ", more than the rate: they are reduced in proportion"
	}
	plain("their reserves", reserves)
	if p.Owed > 0 {
		plain("owed", fmt.Sprintf("%d: flows and tiers repay it before their next jobs", p.Owed))
	}
	return cli.PrintTable(w, rows)
}
