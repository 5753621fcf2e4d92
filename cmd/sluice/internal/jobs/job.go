// Package jobs holds the commands that submit, read and change jobs.
package jobs

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// Cmd is the command job with its subcommands.
type Cmd struct {
	Get    jobGetCmd    `cmd:"" help:"Print a job."`
	Find   jobFindCmd   `cmd:"" help:"Find a job of any tenant by its id."`
	Show   jobShowCmd   `cmd:"" help:"Print a job as a timeline."`
	Wait   jobWaitCmd   `cmd:"" help:"Wait until a job has ended."`
	List   jobListCmd   `cmd:"" help:"List the jobs of a tenant."`
	Cancel jobCancelCmd `cmd:"" help:"Cancel a waiting job."`
	Replay jobReplayCmd `cmd:"" help:"Queue a dead job again."`
}

func (Cmd) Help() string {
	return `Example:
  sluice job list --tenant acme --state dead
  sluice job get --tenant acme ID

Clients ask the API, with --api-key if it requires one. With --admin-token (SLUICE_ADMIN_TOKEN), or
with --operator, the commands ask the admin listener, for the jobs of any tenant.`
}

// jobFlags name one job.
type jobFlags struct {
	cli.JobFlags
	ID     string `arg:"" help:"Id of the job."`
	Tenant string `filled:"" placeholder:"NAME" help:"Tenant of the job [default, the tenant of the key, or for operators any]."`
	JSON   bool   `help:"Print the job as JSON."`
}

// run calls the API and prints the job. verb names the call in an error.
func (f *jobFlags) run(a *cli.App, verb string, call func(*client.Client) (wire.Job, error)) error {
	remote, err := f.Connect(1)
	if err != nil {
		return err
	}
	job, err := call(remote)
	if err != nil {
		return fmt.Errorf("%s the job: %w", verb, err)
	}
	return printJob(a.Out, job, f.JSON)
}

type jobGetCmd struct {
	jobFlags
	Wait time.Duration `help:"Wait at most this time for its end; up to 30s."`
}

func (jobGetCmd) Help() string {
	return `Example:
  sluice job get --tenant acme ID
  sluice job get --tenant acme --wait 10s ID

The output has the state, the position while the job is queued, the failed deliveries, and the
response of the upstream.

Next: sluice job show ID prints the same as a timeline.`
}

func (c *jobGetCmd) Run(a *cli.App) error {
	return c.run(a, "read", func(remote *client.Client) (wire.Job, error) {
		return remote.Job(a.Ctx, c.Tenant, c.ID, c.Wait)
	})
}

type jobFindCmd struct {
	cli.AdminFlags
	ID   string `arg:"" help:"Id of the job."`
	JSON bool   `help:"Print the job as JSON, with its payload or its forwarded request."`
	Body bool   `help:"With the first 4 KiB of the body of a forwarded request."`
}

func (jobFindCmd) Help() string {
	return `Example:
  sluice job find ID
  sluice job find --json ID

The command asks the admin listener. The output includes the tenant of the job and, while it has not
ended, a forwarded request. Credentials in its headers and query are hidden. --body shows its body.`
}

func (c *jobFindCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	find := remote.Find
	if c.Body {
		find = remote.FindWithBody
	}
	job, err := find(a.Ctx, c.ID)
	if err != nil {
		return fmt.Errorf("find the job: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, job)
	}
	if err := printJob(a.Out, job.Job, false); err != nil || job.Request == nil {
		return err
	}
	w := bufio.NewWriter(a.Out)
	showRequest(w, *job.Request)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

type jobCancelCmd struct{ jobFlags }

func (jobCancelCmd) Help() string {
	return `Example:
  sluice job cancel --tenant acme ID

The job must be scheduled, queued or retrying. Its capacity is free at once. A leased job cannot be
cancelled.`
}

func (c *jobCancelCmd) Run(a *cli.App) error {
	return c.run(a, "cancel", func(remote *client.Client) (wire.Job, error) {
		return remote.Cancel(a.Ctx, c.Tenant, c.ID)
	})
}

type jobReplayCmd struct{ jobFlags }

func (jobReplayCmd) Help() string {
	return `Example:
  sluice job replay --tenant acme ID

The job gets all its attempts again and leaves at the rate of its flow.

Next: sluice job wait ID.`
}

func (c *jobReplayCmd) Run(a *cli.App) error {
	return c.run(a, "replay", func(remote *client.Client) (wire.Job, error) {
		return remote.Replay(a.Ctx, c.Tenant, c.ID)
	})
}

// printJob prints the fields of the job that are set.
func printJob(w io.Writer, job wire.Job, asJSON bool) error {
	if asJSON {
		return cli.PrintJSON(w, job)
	}
	rows := [][]string{{"id", job.ID}, {"tenant", job.Tenant}, {"route", job.Route}, {"type", job.Type},
		{"state", job.State}}
	add := func(label, value string, applies bool) {
		if applies {
			rows = append(rows, []string{label, value})
		}
	}
	instant := func(label string, t time.Time) { add(label, t.UTC().Format(time.RFC3339Nano), !t.IsZero()) }
	add("position", strconv.FormatInt(job.Position, 10), job.Position > 0)
	instant("estimated start", job.EstimatedStart)
	if cost := job.ActualCost; cost != nil {
		add("cost", fmt.Sprintf("%d estimated, %d actual", job.Cost, *cost), true)
	} else {
		add("cost", strconv.FormatInt(job.Cost, 10), job.Cost > 1)
	}
	for _, line := range headerLines(job.Headers) {
		add("header", line, true)
	}
	add("attempts", fmt.Sprintf("%d of %d", job.Attempts, job.MaxAttempts), true)
	instant("created", job.Created)
	instant("scheduled", job.Scheduled)
	instant("started", job.Started)
	instant("finished", job.Finished)
	if e := job.LastError; e != nil {
		add("last error", messageOf(*e), true)
	}
	if r := job.Response; r != nil {
		add("response", strconv.Itoa(r.Status), true)
		add("body", cmp.Or(messageOfResponse(*r).summary(), cli.Printable(r.Body)),
			r.Body != "" && (r.BodyEncoding == "" || messageOfResponse(*r).summary() != ""))
	}
	if err := cli.PrintTable(w, rows); err != nil {
		return err
	}
	return printAttempts(w, job.AttemptLog)
}

// printAttempts prints an empty line and the outcome of each delivery, nothing if none has failed.
func printAttempts(w io.Writer, log []wire.Attempt) error {
	if len(log) == 0 {
		return nil
	}
	rows := [][]string{{"ATTEMPT", "OUTCOME", "AT", "STATUS", "MESSAGE"}}
	for _, a := range log {
		status := "-"
		if a.Status > 0 {
			status = strconv.Itoa(a.Status)
		}
		rows = append(rows, []string{strconv.Itoa(a.Attempt), a.Outcome, cli.InstantText(a.At), status,
			cli.OneLine(a.Message)})
	}
	fmt.Fprintln(w)
	return cli.PrintTable(w, rows)
}
