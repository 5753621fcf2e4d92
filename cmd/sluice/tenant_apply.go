package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

type tenantDiffCmd struct {
	planFlags
	ExitCode bool `help:"Exit with 1 if something differs."`
}

func (tenantDiffCmd) Help() string {
	return `Shows, setting by setting, what sluice tenant apply would change: the API overrides of the tenants that the file names become what the file says. Nothing is said of what is equal. A value in parentheses tells where it comes from. Tiers and routes that the server does not know are found, too: the exit code is 1 then.

Example:
  sluice tenant diff -f tenants.yaml
  sluice tenant diff -f tenants.yaml --prune --exit-code`
}

func (c *tenantDiffCmd) Run(a *app) error {
	d, err := c.differences(a)
	if err != nil {
		return err
	}
	if err := d.print(a, c.JSON); err != nil {
		return err
	}
	if d.failed() > 0 || c.ExitCode && len(d.Tenants) > 0 {
		return errReported
	}
	return nil
}

type tenantApplyCmd struct {
	planFlags
	Reason string `placeholder:"TEXT" help:"Kept with each change."`
	DryRun bool   `help:"Change nothing: as sluice tenant diff."`
	Yes    bool   `short:"y" help:"Do not ask before --prune drops anything."`
}

func (tenantApplyCmd) Help() string {
	return `Makes the API overrides of the tenants that the file names exactly what the file says; what it leaves out falls back to the configuration of the server. A pause that was made by hand ends unless the file says it; a drain is left alone. Tenants that are not named are left alone unless --prune is given, which asks first on a terminal and wants --yes elsewhere.

What is equal is not touched, so that it can be run again and again. A tenant that was changed by others meanwhile is read anew. A tenant that the server refuses keeps nothing from the others; the exit code is 1 then.

Example:
  sluice tenant apply -f tenants.yaml --reason "contract 17"
  sluice tenant apply -f tenants.yaml --prune --yes`
}

func (c *tenantApplyCmd) Run(a *app) error {
	asks := c.Prune && !c.Yes && !c.DryRun
	if asks && (!terminal(a.In) || !terminal(a.Err)) {
		return usagef("--prune drops settings: --yes is required where nobody can be asked")
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
			return errReported
		}
		return nil
	}
	if n := d.pruned(); n > 0 {
		text := plural(n, "tenant that the file does not name loses", "tenants that the file does not name lose") + " what was said through the API."
		if !asks {
			fmt.Fprintln(a.Err, text)
		} else if err := a.confirm(text + " Go on? [y/N] "); err != nil {
			return err
		}
	}
	return d.apply(a, c.Reason, c.JSON)
}

// differences are the plans for all tenants that differ.
type differences struct {
	Tenants []tenantPlan `json:"tenants"`
	Equal   int          `json:"equal"`           // tenants in which nothing differs
	Error   string       `json:"error,omitempty"` // why it ended early

	planner planner
}

func (f *planFlags) differences(a *app) (*differences, error) {
	wanted, planner, err := f.load()
	if err != nil {
		return nil, err
	}
	d := &differences{planner: planner}
	looked := 0
	read := func(t *tally) { d.Tenants, looked, err = planner.plans(a.ctx, wanted, t) }
	t := newTally(time.Now())
	if terminal(a.Err) { // elsewhere it would only be in the way
		view, every := newProgressOf(a.Err, "tenants")
		total := len(wanted)
		if f.Prune {
			total = -1 // who else there is is not known yet
		}
		watched(view, every, "compare", total, t, counts.answered, func() { read(t) })
		view.close()
	} else {
		read(t)
	}
	if d.Tenants == nil {
		d.Tenants = []tenantPlan{}
	}
	d.Equal = looked - len(d.Tenants)
	return d, err
}

func (d *differences) failed() (n int) {
	for _, t := range d.Tenants {
		if t.Error != "" {
			n++
		}
	}
	return n
}

func (d *differences) pruned() (n int) {
	for _, t := range d.Tenants {
		if t.Pruned && t.Error == "" {
			n++
		}
	}
	return n
}

// print shows what differs on standard output, and on standard error what is refused and how many
// differ.
func (d *differences) print(a *app, asJSON bool) error {
	if asJSON {
		return printJSON(a.Out, d)
	}
	for _, t := range d.Tenants {
		for _, c := range t.Changes {
			if _, err := fmt.Fprintf(a.Out, "%s: %s\n", oneLine(t.Tenant), c); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
	}
	d.refusals(a)
	fmt.Fprintf(a.Err, "%s, %d equal.\n", plural(len(d.Tenants), "tenant differs", "tenants differ"), d.Equal)
	return nil
}

// refusals prints those that were not printed before.
func (d *differences) refusals(a *app) {
	for i := range d.Tenants {
		if t := &d.Tenants[i]; t.Error != "" && !t.told {
			fmt.Fprintf(a.Err, "%s: refused: %s\n", oneLine(t.Tenant), oneLine(t.Error))
			t.told = true
		}
	}
}

// apply makes all changes that are not refused already.
func (d *differences) apply(a *app, reason string, asJSON bool) error {
	var todo []*tenantPlan
	for i := range d.Tenants {
		if d.Tenants[i].Error == "" {
			todo = append(todo, &d.Tenants[i])
		}
	}
	var err error
	if len(todo) > 0 {
		t := newTally(time.Now())
		view, every := newProgressOf(a.Err, "tenants")
		watched(view, every, "apply", len(todo), t, counts.answered, func() {
			err = side(a.ctx, len(todo), func(ctx context.Context, i int) error {
				err := d.planner.apply(ctx, todo[i], reason)
				switch {
				case err != nil:
					t.fail("error")
				case todo[i].Error != "":
					t.refuse("refused")
				default:
					t.accept()
				}
				return err
			})
		})
		view.close()
	}
	switch {
	case errors.Is(err, context.Canceled):
		d.Error = "interrupted"
	case err != nil:
		d.Error = err.Error()
	}
	if asJSON {
		err = printJSON(a.Out, d)
	} else {
		err = d.summary(a)
	}
	if err == nil && (d.failed() > 0 || d.Error != "") {
		return errReported
	}
	return err
}

func (d *differences) summary(a *app) error {
	d.refusals(a)
	applied := 0
	for _, t := range d.Tenants {
		if t.Applied {
			applied++
		}
	}
	rows := [][]string{{"changed", fmt.Sprint(applied)}, {"equal", fmt.Sprint(d.Equal + len(d.Tenants) - applied - d.failed() - d.left())}}
	if n := d.failed(); n > 0 {
		rows = append(rows, []string{"refused", fmt.Sprint(n)})
	}
	if d.Error != "" {
		rows = append(rows, []string{"left", fmt.Sprint(d.left())}, []string{"ended early", d.Error})
	}
	return printTable(a.Out, rows)
}

// left are the tenants that were not come to, or of which it is not known.
func (d *differences) left() (n int) {
	for _, t := range d.Tenants {
		if d.Error != "" && !t.Applied && t.Error == "" {
			n++
		}
	}
	return n
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
