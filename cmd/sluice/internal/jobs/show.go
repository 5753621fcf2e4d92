package jobs

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

type jobShowCmd struct{ jobFlags }

func (jobShowCmd) Help() string {
	return `Example:
  sluice job show --tenant acme ID

The output has the events of the job in order, its failed deliveries (the last 20), and the response
of the upstream. Operators also see the headers that the job sets, and what limits a flow whose job
waits.

Next: sluice job replay ID queues a dead job again.`
}

func (c *jobShowCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	job, err := remote.Job(a.Ctx, c.Tenant, c.ID, 0)
	if err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, job)
	}
	var of wire.Flow // in which the job waits
	if job.State == "queued" && c.OfOperator() {
		if t, err := remote.Tenant(a.Ctx, job.Tenant); err == nil { // else the job alone is shown
			of = t.Routes[job.Route]
		}
	}
	return showJob(a.Out, job, of)
}

// moment is one line of the timeline of a job.
type moment struct {
	at   time.Time
	what string
}

// storyOf returns the past and planned events of a job in order.
func storyOf(job wire.Job) []moment {
	var story []moment
	add := func(at time.Time, format string, args ...any) {
		if !at.IsZero() {
			story = append(story, moment{at, fmt.Sprintf(format, args...)})
		}
	}
	add(job.Created, "created")
	add(job.Started, "started, attempt %d of %d", max(job.Attempts, 1), job.MaxAttempts)
	if e := job.LastError; e != nil {
		add(e.At, "failed: %s", errorText(*e))
	}
	add(job.Finished, "finished: %s", job.State)
	switch job.State {
	case "scheduled":
		add(job.Scheduled, "will be queued")
	case "retrying":
		add(job.Scheduled, "will be queued again, attempt %d of %d", job.Attempts+1, job.MaxAttempts)
	}
	add(job.EstimatedStart, "estimated start")
	slices.SortStableFunc(story, func(a, b moment) int { return a.at.Compare(b.at) })
	return story
}

// afterText is how long after the creation something is, such as +9.000s or +66h40m0s.
func afterText(d time.Duration) string {
	if d.Abs() < time.Minute {
		return fmt.Sprintf("%+.3fs", d.Seconds())
	}
	text := d.Round(time.Second).String()
	if d > 0 {
		text = "+" + text
	}
	return text
}

func errorText(e wire.JobError) string {
	message := messageOf(e)
	if e.Status == 0 {
		return message
	}
	return fmt.Sprintf("%s (status %d)", message, e.Status)
}

// messageOf returns the message, with the detail if the server included it.
func messageOf(e wire.JobError) string {
	if e.Detail == "" {
		return cli.OneLine(e.Message)
	}
	return cli.OneLine(e.Message + ": " + e.Detail)
}

// limitText is what limits a flow and, if that is its pool, what the pool gives it.
func limitText(of wire.Flow) string {
	text := strings.TrimSuffix(of.LimitedBy+" "+cli.HeldText(of.Figures), " ")
	switch {
	case of.LimitedBy != "pool":
		return text
	case of.PoolRate == 0:
		return text + " " + cli.Plain(of.Pool) + ", which is paused"
	}
	return fmt.Sprintf("%s %s, whose part for this flow is %s", text, cli.Plain(of.Pool), cli.PerSecond(of.PoolPart*of.PoolRate))
}

func showJob(out io.Writer, job wire.Job, of wire.Flow) error {
	w := bufio.NewWriter(out) // Flush returns the error of any write
	fmt.Fprintf(w, "job %s of %s: %s on route %s\n%s", job.ID, job.Tenant, job.Type, job.Route,
		cmp.Or(job.State, "past retention"))
	if job.Position > 0 {
		fmt.Fprintf(w, ", position %d", job.Position)
	}
	fmt.Fprintf(w, ", attempts %d of %d", job.Attempts, job.MaxAttempts)
	if job.Cost > 1 {
		fmt.Fprintf(w, ", cost %d", job.Cost)
	}
	fmt.Fprintln(w)
	if of.LimitedBy != "" {
		fmt.Fprintf(w, "limited by %s\n", limitText(of))
	}
	fmt.Fprintln(w)
	var rows [][]string
	for _, m := range storyOf(job) {
		after := ""
		if !job.Created.IsZero() && !m.at.Equal(job.Created) {
			after = afterText(m.at.Sub(job.Created))
		}
		rows = append(rows, []string{cli.InstantText(m.at), after, m.what})
	}
	if err := cli.PrintTable(w, rows); err != nil {
		return err
	}
	if err := printAttempts(w, job.AttemptLog); err != nil {
		return err
	}
	if len(job.Headers) > 0 {
		fmt.Fprintf(w, "\nheaders\n  %s\n", strings.Join(headerLines(job.Headers), "\n  "))
	}
	if r := job.Response; r != nil {
		showResponse(w, *r)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
