package policies

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// manyPurged is the summary of a purge of many tenants.
type manyPurged struct {
	Prefix        string    `json:"prefix,omitempty"`
	Tier          string    `json:"tier,omitempty"`
	DryRun        bool      `json:"dry_run,omitempty"`
	Tenants       int64     `json:"tenants"`
	Waiting       int64     `json:"waiting,omitempty"`
	DeadLetters   int64     `json:"dead_letters,omitempty"`
	Count         int64     `json:"count"`
	CreatedBefore time.Time `json:"created_before,omitzero"`
	Note          string    `json:"note,omitempty"`
	Error         string    `json:"error,omitempty"` // why it ended early
}

// purgeMany purges the jobs of all selected tenants. It counts them first, to ask for confirmation
// or for a dry run.
func (c *tenantPurgeCmd) purgeMany(a *cli.App, remote *client.Client, filter wire.Filter) error {
	of := wire.TenantsPurge{
		Prefix: c.Prefix, Tier: c.Tier, State: filter.State, Route: filter.Route, Error: filter.Error,
		CreatedBefore: filter.CreatedBefore,
	}
	if c.DryRun || !c.Yes {
		if !c.DryRun && (!cli.Terminal(a.In) || !cli.Terminal(a.Err)) {
			return cli.Usagef("purge deletes jobs: --yes is required without a terminal")
		}
		of.DryRun = true
		counted := manyPurged{Prefix: c.Prefix, Tier: c.Tier, DryRun: true}
		if err := counted.steps(a.Ctx, a.Err, remote, of); err != nil {
			return fmt.Errorf("count the tenants: %w", err)
		}
		if c.DryRun {
			return cli.Print(a.Out, &counted, c.JSON, counted.print)
		}
		question := fmt.Sprintf("Purge %s of %d tenants, which have %d waiting and %d dead jobs? They cannot be "+
			"restored. [y/N] ", filterText(filter), counted.Tenants, counted.Waiting, counted.DeadLetters)
		if err := a.Confirm(question); err != nil {
			return err
		}
		of.DryRun = false
	}
	s := manyPurged{Prefix: c.Prefix, Tier: c.Tier}
	err := s.steps(a.Ctx, a.Err, remote, of)
	if err != nil && s.CreatedBefore.IsZero() { // nothing was purged
		return fmt.Errorf("purge the jobs: %w", err)
	}
	s.Error = cli.EndedEarly(err)
	err = cli.Print(a.Out, &s, c.JSON, s.print)
	if err == nil && s.Error != "" {
		return cli.ErrReported
	}
	return err
}

func (s *manyPurged) steps(ctx context.Context, w io.Writer, remote *client.Client, of wire.TenantsPurge) error {
	view, _ := cli.NewProgress(w)
	defer view.Close()
	began, done := time.Now(), "purged"
	if of.DryRun {
		done = "counted"
	}
	for {
		got, err := remote.PurgeTenants(ctx, of)
		if err != nil {
			return err
		}
		s.Tenants, s.Count = s.Tenants+got.Tenants, s.Count+got.Count
		s.Waiting, s.DeadLetters = s.Waiting+got.Waiting, s.DeadLetters+got.DeadLetters
		if got.Note != "" && s.Note == "" {
			s.Note = got.Note
			fmt.Fprintln(w, got.Note)
		}
		if of.Cursor = got.Cursor; !got.CreatedBefore.IsZero() {
			s.CreatedBefore, of.CreatedBefore = got.CreatedBefore, got.CreatedBefore
		}
		if !got.More {
			return nil
		}
		view.Show(done, int(s.Count+s.Waiting+s.DeadLetters), -1, cli.Counts{}, time.Since(began))
	}
}

func (s *manyPurged) print(w io.Writer) error {
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	rows := [][]string{{"tenants", number(s.Tenants)}}
	if s.DryRun {
		rows = append(rows, []string{"waiting", number(s.Waiting)}, []string{"dead", number(s.DeadLetters)})
	} else {
		rows = append(rows, []string{"purged", number(s.Count)})
	}
	if s.Error != "" {
		rows = append(rows, []string{"ended early", s.Error})
	}
	return cli.PrintTable(w, rows)
}
