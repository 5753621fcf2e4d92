package policies

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// sweepFlags select jobs of one tenant.
type sweepFlags struct {
	cli.AdminFlags
	ID            []string   `name:"id" filled:"" placeholder:"ID" help:"Only these jobs; repeatable."`
	Route         string     `filled:"" placeholder:"NAME" help:"Only jobs for this route."`
	Error         string     `filled:"" placeholder:"TEXT" help:"Only jobs whose last error contains this text."`
	CreatedBefore *time.Time `placeholder:"TIME" help:"Only jobs created before this time, such as 2026-01-02T15:04:05Z [now]."`
	JSON          bool       `help:"Print the outcome as JSON."`
}

func (f *sweepFlags) filter(state string, all bool) (wire.Filter, error) {
	filter := wire.Filter{All: all && len(f.ID) == 0, IDs: f.ID, State: state, Route: f.Route, Error: f.Error}
	if f.CreatedBefore != nil {
		// The zero time means now.
		if filter.CreatedBefore = *f.CreatedBefore; filter.CreatedBefore.Unix() <= 0 {
			return filter, cli.Usagef("--created-before: must be after 1970")
		}
	}
	return filter, nil
}

type tenantPurgeCmd struct {
	sweepFlags
	Name   string  `arg:"" optional:"" help:"Name of the tenant; none with --prefix or --tier."`
	Prefix string  `filled:"" placeholder:"TEXT" help:"All tenants whose name begins with TEXT, such as guest:"`
	Tier   string  `filled:"" placeholder:"NAME" help:"All tenants of this tier; with --prefix, those of them."`
	DryRun bool    `help:"Count the jobs, and with --prefix or --tier the tenants, and purge nothing."`
	State  *string `enum:"queued,scheduled,retrying,dead" placeholder:"STATE" help:"Only jobs in this state: queued, scheduled, retrying or dead."`
	All    bool    `help:"Jobs in every state: queued, scheduled, retrying and dead."`
	Yes    bool    `short:"y" help:"Do not ask for confirmation."`
}

func (tenantPurgeCmd) Help() string {
	return `Example:
  sluice tenant purge acme --state dead --error "404" --yes
  sluice tenant purge acme --all --dry-run
  sluice tenant purge acme --all --created-before 2026-01-02T15:04:05Z --yes --json
  sluice tenant purge --prefix guest: --all --dry-run
  sluice tenant purge --tier guest --state scheduled

One of --state, --id or --all (every state) is required; other flags narrow the selection. Leased
jobs are skipped. On a terminal the command asks for confirmation; elsewhere it requires --yes.
After a failure it can be repeated.`
}

func (c *tenantPurgeCmd) Run(a *cli.App) error {
	state := ""
	if c.State != nil {
		state = *c.State
	}
	many := c.Prefix != "" || c.Tier != ""
	switch {
	case many && c.Name != "":
		return cli.Usagef("the name of a tenant and --prefix or --tier exclude each other")
	case many && len(c.ID) > 0:
		return cli.Usagef("--id needs the name of a tenant")
	case c.DryRun && len(c.ID) > 0:
		return cli.Usagef("--dry-run and --id exclude each other: --dry-run counts by state")
	case !many && c.Name == "":
		return cli.Usagef("the name of a tenant, --prefix or --tier is required")
	case !many && strings.HasSuffix(c.Name, "*"):
		return cli.Usagef("a name is no pattern: --prefix %s selects all tenants that begin with it",
			strings.TrimSuffix(c.Name, "*"))
	case c.All && state != "":
		return cli.Usagef("--all and --state exclude each other")
	case !c.All && state == "" && len(c.ID) == 0:
		return cli.Usagef("one of --state, --id or --all is required; --state is queued, scheduled, " +
			"retrying or dead")
	}
	filter, err := c.filter(state, c.All)
	if err != nil {
		return err
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	if many {
		return c.purgeMany(a, remote, filter)
	}
	if c.DryRun {
		s := sweep{Tenant: c.Name, DryRun: true, verb: "count", done: "to purge",
			call: func(ctx context.Context, tenant string, f wire.Filter) (wire.Swept, error) {
				return countToPurge(ctx, remote, tenant, f)
			}}
		return s.run(a, filter, c.JSON)
	}
	if !c.Yes {
		if !cli.Terminal(a.In) || !cli.Terminal(a.Err) {
			return cli.Usagef("purge deletes jobs: --yes is required without a terminal")
		}
		t, err := remote.Tenant(a.Ctx, c.Name)
		if err != nil {
			return fmt.Errorf("read the tenant: %w", err)
		}
		question := fmt.Sprintf("Purge %s of the tenant %s, which has %d waiting and %d dead jobs? They "+
			"cannot be restored. [y/N] ", filterText(filter), c.Name, t.Depth, t.DeadLetters)
		if err := a.Confirm(question); err != nil {
			return err
		}
	}
	s := sweep{Tenant: c.Name, verb: "purge", done: "purged", call: remote.Purge}
	return s.run(a, filter, c.JSON)
}

// countToPurge counts the jobs of a purge of one tenant.
func countToPurge(ctx context.Context, remote *client.Client, tenant string, f wire.Filter) (swept wire.Swept, err error) {
	states := []string{"queued", "scheduled", "retrying", "dead"}
	if f.State != "" {
		states = []string{f.State}
	}
	if swept.CreatedBefore = f.CreatedBefore; swept.CreatedBefore.IsZero() {
		swept.CreatedBefore = time.Now()
	}
	for _, state := range states {
		asked := client.List{Tenant: tenant, State: state, Route: f.Route, Error: f.Error, CreatedBefore: swept.CreatedBefore}
		for _, err := range jobsOf(ctx, remote, asked) {
			if err != nil {
				return swept, err
			}
			swept.Count++
		}
	}
	return swept, nil
}

type tenantReplayCmd struct {
	sweepFlags
	Name       string `arg:"" optional:"" help:"Name of the tenant; none with --all-tenants."`
	All        bool   `help:"All dead jobs."`
	AllTenants bool   `help:"Dead jobs of all tenants, tenant by tenant, after a question."`
	DryRun     bool   `help:"Count the jobs, and replay nothing."`
	Yes        bool   `short:"y" help:"With --all-tenants: do not ask for confirmation."`
}

func (tenantReplayCmd) Help() string {
	return `Example:
  sluice tenant replay acme --error "502"
  sluice tenant replay acme --route default --json
  sluice tenant replay acme --all
  sluice tenant replay --all-tenants --error "502" --dry-run
  sluice tenant replay --all-tenants --error "502" --yes

One of --id, --route, --error, --created-before or --all is required. The jobs get all their
attempts again and leave at the tenant's rate. The command stops when the queue is full, with exit
code 1, and can be repeated. With --all-tenants a tenant whose queue is full does not stop the
others; the output has the count of each. On a terminal it asks for confirmation; elsewhere it
requires --yes.`
}

func (c *tenantReplayCmd) Run(a *cli.App) error {
	switch {
	case c.AllTenants && c.Name != "":
		return cli.Usagef("the name of a tenant and --all-tenants exclude each other")
	case !c.AllTenants && c.Name == "":
		return cli.Usagef("the name of a tenant, or --all-tenants, is required")
	case c.AllTenants && len(c.ID) > 0:
		return cli.Usagef("--id needs the name of a tenant")
	case c.DryRun && len(c.ID) > 0:
		return cli.Usagef("--dry-run and --id exclude each other")
	}
	if !c.All && len(c.ID) == 0 && c.Route == "" && c.Error == "" && c.CreatedBefore == nil {
		return cli.Usagef("one of --id, --route, --error, --created-before or --all is required")
	}
	filter, err := c.filter("", c.All)
	if err != nil {
		return err
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	if c.AllTenants {
		return c.replayAllTenants(a, remote, filter)
	}
	return c.sweepOf(remote, c.Name).run(a, filter, c.JSON)
}

// sweepOf is the replay of one tenant, or with --dry-run the count of its jobs.
func (c *tenantReplayCmd) sweepOf(remote *client.Client, tenant string) *sweep {
	if !c.DryRun {
		return &sweep{Tenant: tenant, verb: "replay", done: "replayed", call: remote.ReplayAll}
	}
	return &sweep{Tenant: tenant, DryRun: true, verb: "count", done: "to replay", call: (&trial{remote: remote}).count}
}

// filterText describes the jobs of a purge.
func filterText(f wire.Filter) string {
	text := "all waiting and dead jobs"
	if f.State != "" {
		text = "the " + f.State + " jobs"
	}
	if len(f.IDs) > 0 {
		text += fmt.Sprintf(" among %d ids", len(f.IDs))
	}
	if f.Route != "" {
		text += " for the route " + f.Route
	}
	if f.Error != "" {
		text += fmt.Sprintf(" with %q in their last error", f.Error)
	}
	if !f.CreatedBefore.IsZero() {
		text += " created before " + f.CreatedBefore.Format(time.RFC3339)
	}
	return text
}

// sweep is one change of many jobs, made in steps, and its summary.
type sweep struct {
	Tenant        string    `json:"tenant"`
	Count         int64     `json:"count"`
	DryRun        bool      `json:"dry_run,omitempty"` // the jobs were counted, and none was changed
	CreatedBefore time.Time `json:"created_before,omitzero"`
	Stopped       string    `json:"stopped,omitempty"`
	StoppedRoute  string    `json:"stopped_route,omitempty"` // of the job that did not fit
	RetryAfterMS  int64     `json:"retry_after_ms,omitempty"`
	Error         string    `json:"error,omitempty"` // why it ended early

	verb, done string
	call       func(ctx context.Context, tenant string, f wire.Filter) (wire.Swept, error)
}

// run makes the steps and prints the summary, after a failure too.
func (s *sweep) run(a *cli.App, filter wire.Filter, asJSON bool) error {
	err := s.steps(a.Ctx, a.Err, filter)
	if err != nil && s.CreatedBefore.IsZero() { // the first step failed
		return fmt.Errorf("%s the jobs: %w", s.verb, err)
	}
	s.Error = cli.EndedEarly(err)
	err = cli.Print(a.Out, s, asJSON, s.print)
	if err == nil && (s.Error != "" || s.Stopped != "") {
		return cli.ErrReported
	}
	return err
}

func (s *sweep) steps(ctx context.Context, w io.Writer, filter wire.Filter) error {
	view, _ := cli.NewProgress(w)
	defer view.Close()
	began := time.Now()
	if cli.Terminal(w) { // a step may take some seconds
		view.Show(s.done, 0, -1, cli.Counts{}, 0)
	}
	for {
		got, err := s.call(ctx, s.Tenant, filter)
		if err != nil {
			return err
		}
		s.Count += got.Count
		s.CreatedBefore = got.CreatedBefore
		s.Stopped, s.StoppedRoute, s.RetryAfterMS = got.Stopped, got.StoppedRoute, got.RetryAfterMS
		if !got.More {
			return nil
		}
		filter.CreatedBefore = got.CreatedBefore
		view.Show(s.done, int(s.Count), -1, cli.Counts{}, time.Since(began))
	}
}

// why says why a replay has stopped, empty if it has not.
func (s *sweep) why() string {
	text := s.Stopped
	if s.StoppedRoute != "" {
		text += " (route " + s.StoppedRoute + ")"
	}
	if s.RetryAfterMS > 0 {
		text += fmt.Sprintf("; capacity is free again in %v", time.Duration(s.RetryAfterMS)*time.Millisecond)
	}
	return text
}

func (s *sweep) print(w io.Writer) error {
	rows := [][]string{{s.done, strconv.FormatInt(s.Count, 10)}}
	if s.Stopped != "" {
		rows = append(rows, []string{"stopped", s.why()})
	}
	if s.Error != "" {
		rows = append(rows, []string{"ended early", s.Error})
	}
	return cli.PrintTable(w, rows)
}
