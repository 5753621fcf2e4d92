// Package policies holds the commands on tenants, their API keys, pools and routes: they read and
// change settings through the admin listener.
package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/alecthomas/kong"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
)

// TenantCmd is the command tenant with its subcommands.
type TenantCmd struct {
	List    tenantListCmd    `cmd:"" help:"List tenants with their settings and figures."`
	Get     tenantGetCmd     `cmd:"" help:"Print the settings and figures of a tenant."`
	Set     tenantSetCmd     `cmd:"" help:"Change settings of a tenant."`
	Pause   tenantPauseCmd   `cmd:"" help:"Stop the departures of a tenant; jobs are still admitted."`
	Drain   tenantDrainCmd   `cmd:"" help:"Stop the admission for a tenant; waiting jobs still leave."`
	Resume  tenantResumeCmd  `cmd:"" help:"End a pause or a drain."`
	Unhold  tenantUnholdCmd  `cmd:"" help:"End the holds of a tenant after its upstream has recovered."`
	Purge   tenantPurgeCmd   `cmd:"" help:"Cancel waiting jobs of a tenant and delete dead ones."`
	Erase   tenantEraseCmd   `cmd:"" help:"Remove all that is stored of a tenant."`
	Replay  tenantReplayCmd  `cmd:"" help:"Queue dead jobs of a tenant again."`
	Diff    tenantDiffCmd    `cmd:"" help:"Show the changes that tenant apply would make."`
	Apply   tenantApplyCmd   `cmd:"" help:"Apply the settings of tenants in a file."`
	Revoke  tenantRevokeCmd  `cmd:"" name:"revoke-tokens" help:"Refuse the JSON Web Tokens that a tenant has now."`
	History tenantHistoryCmd `cmd:"" help:"List the last changes of a tenant's settings."`
}

// NewTenant returns the command with the flags of its settings.
func NewTenant() (c TenantCmd) {
	c.Set.Plugins = settingFlags(shaper.SettingsOfTenants(), func(s shaper.Setting) string { return s.Help }, "tier")
	return c
}

func (TenantCmd) Help() string {
	return `Example:
  sluice tenant get acme
  sluice tenant set acme --rate 200/s --capacity 5000

The commands ask the admin listener. Changes are stored in Redis, outrank the configuration file,
and apply to waiting jobs at once.`
}

// tenantFlags name one tenant.
type tenantFlags struct {
	cli.AdminFlags
	Name string `arg:"" help:"Name of the tenant."`
	JSON bool   `help:"Print the tenant as JSON."`
}

// changeFlags name one tenant to change.
type changeFlags struct {
	tenantFlags
	Create bool `help:"Create the tenant if it is unknown, so that its settings apply to its first job."`
}

// tune makes the change. For an unknown tenant, whose name may be misspelt, it asks for
// confirmation or requires --create.
func (f *changeFlags) tune(
	a *cli.App, change func(*client.Client) (wire.Tenant, error),
) (wire.Tenant, error) {
	remote, err := f.Connect(1)
	if err != nil {
		return wire.Tenant{}, err
	}
	if f.Create {
		return change(remote.Creating())
	}
	t, err := change(remote.Known())
	var answer *client.Error
	if errors.As(err, &answer) && answer.Kind() == "unknown-tenant" && cli.Terminal(a.In) &&
		cli.Terminal(a.Err) {
		if err := a.Confirm(fmt.Sprintf("The tenant %s is unknown. Create it? [y/N] ",
			cli.Printable(f.Name))); err != nil {
			return wire.Tenant{}, err
		}
		return change(remote.Creating())
	}
	return t, err
}

type tenantListCmd struct {
	cli.AdminFlags
	cli.ListFlags
}

func (tenantListCmd) Help() string {
	return `Example:
  sluice tenant list
  sluice tenant list --all --json

The list has the tenants with jobs, figures or settings of their own: rate, capacity, waiting and
running jobs, dead letters, and what limits the next departure.

Next: sluice tenant get NAME.`
}

// tenantPage is the largest page of tenants.
const tenantPage = 200

func (c *tenantListCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	list := cli.Listed[wire.Tenant]{
		Most: tenantPage,
		Head: tenantLine("TENANT", "RATE", "CAPACITY", "DEPTH", "RUNNING", "DEAD", "LIMITED BY"),
		Row: func(t wire.Tenant) string {
			figure := func(n int64) string { return strconv.FormatInt(n, 10) }
			limitedBy := t.LimitedBy
			if held := cli.HeldText(t.Figures); held != "" && (t.LimitedBy == "held" || t.LimitedBy == "auth") {
				limitedBy += " " + held
			}
			if t.Draining {
				limitedBy += ", draining"
			}
			policy := t.InForce()
			if policy.Denied {
				limitedBy += ", denied"
			}
			if t.Owed > 0 {
				limitedBy += fmt.Sprintf(", owes %d", t.Owed)
			}
			return tenantLine(t.Tenant, policy.Rate.String(), figure(policy.Capacity), figure(t.Depth),
				figure(t.Running), figure(t.DeadLetters), limitedBy)
		},
		Fetch: func(cursor string, limit int) ([]wire.Tenant, string, error) {
			page, err := remote.Tenants(a.Ctx, cursor, limit)
			if err != nil {
				return nil, "", fmt.Errorf("list the tenants: %w", err)
			}
			return page.Items, page.NextCursor, nil
		},
	}
	return list.Print(a.Out, a.Err, c.ListFlags)
}

func tenantLine(name, rate, capacity, depth, running, dead, limitedBy string) string {
	return fmt.Sprintf("%-24s  %-12s  %10s  %10s  %8s  %8s  %s", name, rate, capacity, depth, running, dead,
		limitedBy)
}

type tenantGetCmd struct{ tenantFlags }

func (tenantGetCmd) Help() string {
	return `Example:
  sluice tenant get acme
  sluice tenant get acme --json

The output has each setting with its source, the waiting and running jobs, what limits the next
departure, and the totals. An unknown tenant has the defaults.

Next: sluice tenant set NAME changes a setting; sluice tenant history NAME lists the changes.`
}

func (c *tenantGetCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	t, err := remote.Tenant(a.Ctx, c.Name)
	if err != nil {
		return fmt.Errorf("read the tenant: %w", err)
	}
	if t.Unknown {
		fmt.Fprintln(a.Err, cli.UnknownTenant(c.Name))
	}
	return printTenant(a.Out, t, c.JSON)
}

type tenantSetCmd struct {
	changeFlags
	kong.Plugins        // the flags of the settings
	Tier         string `filled:"" placeholder:"NAME" help:"Tier of the tenant, one of the configuration."`
	Route        string `filled:"" placeholder:"NAME" help:"Change the settings of this route alone."`
	Reason       string `placeholder:"TEXT" help:"Reason of the change, for the history."`
}

func (tenantSetCmd) Help() string {
	return `Example:
  sluice tenant set acme --rate 200/s --capacity 5000 --reason "black friday"
  sluice tenant set newcomer --rate 10/s --create
  sluice tenant set acme --route login --rate 5/m
  sluice tenant set acme --rate 10/s --rates '1000/24h burst 1000'
  sluice tenant set acme --weight 8 --reserve 20/s
  sluice tenant set acme --reset rate,capacity

Settings without a flag stay as they are. A change applies to waiting jobs at once, without a burst.
For an unknown tenant the command asks for confirmation on a terminal; elsewhere it requires
--create.

Next: sluice tenant get NAME.`
}

func (c *tenantSetCmd) Run(a *cli.App) error {
	patch, changed, err := c.patch()
	if err != nil {
		return err
	}
	t, err := c.tune(a, func(remote *client.Client) (wire.Tenant, error) {
		return remote.Patch(a.Ctx, c.Name, patch)
	})
	if err != nil {
		return fmt.Errorf("change the tenant: %w", err)
	}
	return printChange(a.Out, t, c.JSON, c.Route, changed...)
}

// patch returns the flags as a JSON merge patch, and the names of the settings in it; null resets a
// setting.
func (c *tenantSetCmd) patch() (patch map[string]any, changed []string, err error) {
	if patch, err = settingPatch(c.Plugins, "a tenant"); err != nil {
		return nil, nil, err
	}
	if c.Tier != "" {
		if _, reset := patch["tier"]; reset {
			return nil, nil, setAndReset("tier")
		}
		patch["tier"] = c.Tier
	}
	if len(patch) == 0 {
		return nil, nil, cli.Usagef("at least one setting is required, such as --rate 200/s")
	}
	changed = slices.Collect(maps.Keys(patch))
	if c.Route != "" {
		if _, tier := patch["tier"]; tier {
			return nil, nil, cli.Usagef("--tier and --route exclude each other: only a tenant has a tier")
		}
		patch = map[string]any{"routes": map[string]any{c.Route: patch}}
	}
	if c.Reason != "" {
		patch["reason"] = c.Reason
	}
	return patch, changed, nil
}

// reasonFlags name a tenant to change, and why.
type reasonFlags struct {
	tenantFlags
	Reason string `placeholder:"TEXT" help:"Reason of the change, for the history."`
}

// change makes the change and prints these settings of the tenant or its route. verb names the
// change in an error.
func (f *reasonFlags) change(
	a *cli.App, verb string, change func(c *client.Client, ctx context.Context, name, reason string) (wire.Tenant, error),
	route string, settings ...string,
) error {
	remote, err := f.Connect(1)
	if err != nil {
		return err
	}
	t, err := change(remote, a.Ctx, f.Name, f.Reason)
	if err != nil {
		return fmt.Errorf("%s the tenant: %w", verb, err)
	}
	return printChange(a.Out, t, f.JSON, route, settings...)
}

type tenantPauseCmd struct {
	changeFlags
	Route  string `filled:"" placeholder:"NAME" help:"Stop the departures of this route alone."`
	Reason string `placeholder:"TEXT" help:"Reason of the change, for the history."`
}

func (tenantPauseCmd) Help() string {
	return `Example:
  sluice tenant pause acme --reason "upstream maintenance"
  sluice tenant pause acme --route mail

Jobs are still admitted until the queue is full. Running deliveries finish.

Next: sluice tenant resume NAME.`
}

func (c *tenantPauseCmd) Run(a *cli.App) error {
	t, err := c.tune(a, func(remote *client.Client) (wire.Tenant, error) {
		return remote.PauseRoute(a.Ctx, c.Name, c.Route, c.Reason)
	})
	if err != nil {
		return fmt.Errorf("pause the tenant: %w", err)
	}
	return printChange(a.Out, t, c.JSON, c.Route, "paused")
}

type tenantDrainCmd struct {
	changeFlags
	Reason string `placeholder:"TEXT" help:"Reason of the change, for the history."`
}

func (tenantDrainCmd) Help() string {
	return `Example:
  sluice tenant drain acme --reason "moves to another installation"

Waiting jobs leave at the tenant's rate. New jobs and replays are refused; clients get a
Retry-After. The drain lasts until sluice tenant resume.

Next: sluice top NAME shows the depth.`
}

func (c *tenantDrainCmd) Run(a *cli.App) error {
	t, err := c.tune(a, func(remote *client.Client) (wire.Tenant, error) {
		return remote.Drain(a.Ctx, c.Name, c.Reason)
	})
	if err != nil {
		return fmt.Errorf("drain the tenant: %w", err)
	}
	return printChange(a.Out, t, c.JSON, "", "draining")
}

type tenantResumeCmd struct {
	reasonFlags
	Route string `filled:"" placeholder:"NAME" help:"End the pause of this route alone."`
}

func (tenantResumeCmd) Help() string {
	return `Example:
  sluice tenant resume acme
  sluice tenant resume acme --route mail

The waiting jobs leave at the tenant's rate, not at once. A route that was paused alone stays paused
until it is resumed with --route.`
}

func (c *tenantResumeCmd) Run(a *cli.App) error {
	return c.change(a, "resume", func(remote *client.Client, ctx context.Context, name, reason string) (wire.Tenant, error) {
		return remote.ResumeRoute(ctx, name, c.Route, reason)
	}, c.Route, "paused", "draining")
}

type tenantUnholdCmd struct{ reasonFlags }

func (tenantUnholdCmd) Help() string {
	return `Example:
  sluice tenant unhold acme --reason "upstream is back"

An upstream can hold a flow for up to an hour with Retry-After. Use this command if it has recovered
earlier. The jobs then leave at a reduced rate, which grows by a twentieth of the full rate each
second. An open circuit breaker holds them again. The change is in the history.

Next: sluice tenant get NAME shows the effective rate.`
}

func (c *tenantUnholdCmd) Run(a *cli.App) error {
	return c.change(a, "unhold", (*client.Client).Unhold, "")
}

// printChange prints what a change of a tenant, or of one of its routes, has changed: these
// settings, and what limits the next departure now. JSON has the whole tenant.
func printChange(w io.Writer, t wire.Tenant, asJSON bool, route string, changed ...string) error {
	if asJSON {
		return cli.PrintJSON(w, t)
	}
	policy, figures := t.Policy, t.Figures
	rows := [][]string{{"tenant", t.Tenant, ""}}
	if route != "" {
		policy, figures = flowPolicy(t, route), t.Routes[route].Figures
		rows = append(rows, []string{"route", route, ""})
	}
	if slices.Contains(changed, "tier") {
		rows = append(rows, []string{"tier", cmp.Or(t.Tier, "none"), t.Sources["tier"]})
	}
	for _, s := range shaper.SettingsOfTenants() {
		if slices.Contains(changed, s.Name) {
			rows = append(rows, []string{s.Label(), cmp.Or(s.Text(policy.Overrides), "none"), policy.Sources[s.Name]})
		}
	}
	if t.Draining && route == "" {
		rows = append(rows, []string{"draining", "true", t.Sources["draining"]})
	}
	if t.Reason != "" {
		rows = append(rows, []string{"reason", t.Reason, ""})
	}
	if route == "" && slices.Contains(changed, "paused") && !*cmp.Or(policy.Paused, new(true)) {
		for _, name := range slices.Sorted(maps.Keys(t.Routes)) {
			if *cmp.Or(t.Routes[name].Policy.Paused, new(false)) {
				rows = append(rows, []string{"route " + name, "still paused", "--route " + cli.ShellWord(name) + " resumes it"})
			}
		}
	}
	if figures.LimitedBy != "" { // a route without jobs has no figures
		rows = append(rows, figureRows(figures)[:3]...)
	}
	return cli.PrintTable(w, rows)
}

func printTenant(w io.Writer, t wire.Tenant, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(w, t)
	}
	rows := [][]string{{"tenant", t.Tenant, ""}}
	if t.Tier != "" {
		rows = append(rows, []string{"tier", t.Tier, t.Sources["tier"]})
	}
	rows = append(rows, policyRows(t.Policy)...)
	if t.Draining {
		rows = append(rows, []string{"draining", "true", t.Sources["draining"]})
	}
	if t.Reason != "" {
		rows = append(rows, []string{"reason", t.Reason, ""})
	}
	rows = append(rows, figureRows(t.Figures)...)
	if t.StoredBytes > 0 {
		rows = append(rows, []string{"bytes stored", cli.BytesText(t.StoredBytes), ""})
	}
	if t.DeadBytes > 0 {
		rows = append(rows, []string{"of dead letters", cli.BytesText(t.DeadBytes), ""})
	}
	for _, route := range slices.Sorted(maps.Keys(t.Routes)) {
		f := t.Routes[route]
		if len(t.Routes) == 1 && samePolicy(f.Policy, t.Policy) { // others would repeat every row
			rows = append(rows, storeRows(f)...)
			rows = append(rows, poolRows(f)...)
			break
		}
		rows = append(rows, []string{"", "", ""}, []string{"route", route, ""})
		rows = append(rows, policyRows(f.Policy)...)
		rows = append(rows, figureRows(f.Figures)...)
		rows = append(rows, storeRows(f)...)
		rows = append(rows, poolRows(f)...)
	}
	return cli.PrintTable(w, rows)
}

// storeRows returns what a flow has stored of what it may store, where that is bounded.
func storeRows(f wire.Flow) [][]string {
	if f.ShareBytes == 0 {
		return nil
	}
	text := cli.BytesText(f.StoredBytes) + " of " + cli.BytesText(f.ShareBytes)
	if f.StoredBytes >= f.ShareBytes {
		text += ": new jobs are refused"
	}
	return [][]string{{"share of the store", text, ""}}
}

// poolRows returns what the pool of a flow allows it.
func poolRows(f wire.Flow) [][]string {
	if f.Pool == "" {
		return nil
	}
	text := fmt.Sprintf("%s, %s for all of its flows", f.Pool, cli.PerSecond(f.PoolRate))
	switch {
	case f.PoolRate == 0:
		text = f.Pool + ", paused"
	case f.PoolPart > 0 && f.PoolPart < 0.995:
		text += fmt.Sprintf(", %s for this one while the same flows wait", cli.PerSecond(f.PoolPart*f.PoolRate))
	}
	if f.Owed > 0 {
		text += fmt.Sprintf("; owes %d to it", f.Owed)
	}
	return [][]string{{"pool", text, ""}}
}

func samePolicy(a, b wire.Policy) bool {
	same := func(x, y []string) bool { return slices.Equal(x[:2], y[:2]) }
	return slices.EqualFunc(policyRows(a), policyRows(b), same)
}

func policyRows(p wire.Policy) [][]string {
	return settingRows(p, shaper.SettingsOfTenants())
}

func figureRows(f wire.Figures) [][]string {
	figure := func(label, value string) []string { return []string{label, value, ""} }
	rows := [][]string{
		figure("depth", strconv.FormatInt(f.Depth, 10)),
		figure("running", strconv.FormatInt(f.Running, 10)),
		figure("limited by", f.LimitedBy),
	}
	if held := cli.HeldText(f); held != "" {
		rows = append(rows, figure("held", held))
	}
	return append(rows,
		figure("effective rate", cli.PerSecond(f.EffectiveRate)),
		figure("oldest wait", (time.Duration(f.OldestWaitMS)*time.Millisecond).String()),
		figure("admitted", strconv.FormatInt(f.Admitted, 10)),
		figure("rejected", strconv.FormatInt(f.Rejected, 10)),
		figure("departed", strconv.FormatInt(f.Departed, 10)),
		figure("succeeded", strconv.FormatInt(f.Succeeded, 10)),
		figure("failed", strconv.FormatInt(f.Failed, 10)),
		figure("dead", strconv.FormatInt(f.DeadLetters, 10)),
		figure("dead in all", strconv.FormatInt(f.Dead, 10)),
	)
}
