package policies

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

type tenantDiffCmd struct {
	planFlags
	ExitCode bool `help:"Exit with 1 if a setting differs."`
}

func (tenantDiffCmd) Help() string {
	return `Example:
  sluice tenant diff -f tenants.yaml
  sluice tenant diff -f tenants.yaml --prune --exit-code

The output has each setting that sluice tenant apply would change, with its source in parentheses.
Equal settings are not printed. The exit code is 1 if the file names a tier or route that the server
does not know.

Next: sluice tenant apply -f FILE.`
}

func (c *tenantDiffCmd) Run(a *cli.App) error {
	d, err := c.differences(a)
	if err != nil {
		return err
	}
	if err := d.print(a, c.JSON); err != nil {
		return err
	}
	if d.failed() > 0 || c.ExitCode && len(d.Tenants) > 0 {
		return cli.ErrReported
	}
	return nil
}

type tenantApplyCmd struct {
	planFlags
	Reason string `placeholder:"TEXT" help:"Reason of the changes, for the history."`
	DryRun bool   `help:"Change nothing, like sluice tenant diff."`
	Yes    bool   `short:"y" help:"Do not ask for confirmation of --prune."`
}

func (tenantApplyCmd) Help() string {
	return `Example:
  sluice tenant apply -f tenants.yaml --reason "contract 17"
  sluice tenant apply -f tenants.yaml --prune --yes

The command replaces the API overrides of the tenants in the file. Settings that the file omits fall
back to the configuration of the server. A pause ends unless the file sets it; a drain stays. Other
tenants stay as they are unless --prune is given, which asks for confirmation on a terminal and
requires --yes elsewhere.

The command can be repeated: equal tenants are not changed. If somebody else changes a tenant
meanwhile, it is compared again. If the server refuses a tenant, the others are still applied, and
the exit code is 1.

Next: sluice tenant history NAME.`
}

func (c *tenantApplyCmd) Run(a *cli.App) error {
	asks := c.Prune && !c.Yes && !c.DryRun
	if asks && (!cli.Terminal(a.In) || !cli.Terminal(a.Err)) {
		return cli.Usagef("--prune removes settings: --yes is required without a terminal")
	}
	d, err := c.differences(a)
	if err != nil {
		return err
	}
	if !c.JSON || c.DryRun {
		if err := d.print(a, c.JSON); err != nil {
			return err
		}
	}
	if c.DryRun {
		if d.failed() > 0 {
			return cli.ErrReported
		}
		return nil
	}
	if n := d.pruned(); n > 0 {
		text := cli.Plural(n, "tenant that is not in the file loses",
			"tenants that are not in the file lose") + " all API overrides."
		if !asks {
			fmt.Fprintln(a.Err, text)
		} else if err := a.Confirm(text + " Continue? [y/N] "); err != nil {
			return err
		}
	}
	return d.apply(a, c.Reason, c.JSON)
}

// differences hold the plans of all tenants that differ.
type differences struct {
	Tenants []tenantPlan `json:"tenants"`
	Equal   int          `json:"equal"`           // tenants in which nothing differs
	Error   string       `json:"error,omitempty"` // why it ended early

	planner planner
}

func (f *planFlags) differences(a *cli.App) (*differences, error) {
	wanted, planner, err := f.load()
	if err != nil {
		return nil, err
	}
	d := &differences{planner: planner}
	compared := 0
	read := func(t *cli.Tally) { d.Tenants, compared, err = planner.plans(a.Ctx, wanted, t) }
	t := cli.NewTally(time.Now())
	if cli.Terminal(a.Err) { // progress would clutter other output
		view, every := cli.NewProgressOf(a.Err, "tenants")
		total := len(wanted)
		if f.Prune {
			total = -1 // the other tenants are not listed yet
		}
		cli.Watched(view, every, "compare", total, t, cli.Counts.Answered, func() { read(t) })
		view.Close()
	} else {
		read(t)
	}
	if d.Tenants == nil {
		d.Tenants = []tenantPlan{}
	}
	d.Equal = compared - len(d.Tenants)
	return d, err
}

// count returns the number of tenants that fit.
func (d *differences) count(fits func(tenantPlan) bool) (n int) {
	for _, t := range d.Tenants {
		if fits(t) {
			n++
		}
	}
	return n
}

func (d *differences) failed() int {
	return d.count(func(t tenantPlan) bool { return t.Error != "" })
}

func (d *differences) pruned() int {
	return d.count(func(t tenantPlan) bool { return t.Pruned && t.Error == "" })
}

// print writes the differences to standard output, and refusals and counts to standard error.
func (d *differences) print(a *cli.App, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(a.Out, d)
	}
	for _, t := range d.Tenants {
		for _, c := range t.Changes {
			if _, err := fmt.Fprintf(a.Out, "%s: %s\n", cli.OneLine(t.Tenant), c); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
	}
	d.refusals(a)
	fmt.Fprintf(a.Err, "%s, %d equal.\n", cli.Plural(len(d.Tenants), "tenant differs", "tenants differ"),
		d.Equal)
	return nil
}

// refusals prints the refusals that were not printed before.
func (d *differences) refusals(a *cli.App) {
	for i := range d.Tenants {
		if t := &d.Tenants[i]; t.Error != "" && !t.printed {
			fmt.Fprintf(a.Err, "%s: refused: %s\n", cli.OneLine(t.Tenant), cli.OneLine(t.Error))
			t.printed = true
		}
	}
}

// apply makes all changes that the server has not refused.
func (d *differences) apply(a *cli.App, reason string, asJSON bool) error {
	var todo []*tenantPlan
	for i := range d.Tenants {
		if d.Tenants[i].Error == "" {
			todo = append(todo, &d.Tenants[i])
		}
	}
	var err error
	if len(todo) > 0 {
		t := cli.NewTally(time.Now())
		view, every := cli.NewProgressOf(a.Err, "tenants")
		cli.Watched(view, every, "apply", len(todo), t, cli.Counts.Answered, func() {
			err = side(a.Ctx, len(todo), func(ctx context.Context, i int) error {
				err := d.planner.apply(ctx, todo[i], reason)
				switch {
				case err != nil:
					t.Fail("error")
				case todo[i].Error != "":
					t.Refuse("refused")
				default:
					t.Accept()
				}
				return err
			})
		})
		view.Close()
	}
	d.Error = cli.EndedEarly(err)
	err = cli.Print(a.Out, d, asJSON, func(io.Writer) error { return d.summary(a) })
	if err == nil && (d.failed() > 0 || d.Error != "") {
		return cli.ErrReported
	}
	return err
}

func (d *differences) summary(a *cli.App) error {
	d.refusals(a)
	applied := d.count(func(t tenantPlan) bool { return t.Applied })
	rows := [][]string{{"changed", fmt.Sprint(applied)}, {"equal",
		fmt.Sprint(d.Equal + len(d.Tenants) - applied - d.failed() - d.left())}}
	if n := d.failed(); n > 0 {
		rows = append(rows, []string{"refused", fmt.Sprint(n)})
	}
	if d.Error != "" {
		rows = append(rows, []string{"left", fmt.Sprint(d.left())}, []string{"ended early", d.Error})
	}
	return cli.PrintTable(a.Out, rows)
}

// left counts the tenants that were not reached, or whose outcome is unknown.
func (d *differences) left() int {
	return d.count(func(t tenantPlan) bool { return d.Error != "" && !t.Applied && t.Error == "" })
}
