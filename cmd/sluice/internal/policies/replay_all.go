package policies

import (
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// allReplayed is the summary of a replay of all tenants.
type allReplayed struct {
	Tenants []*sweep `json:"tenants"` // of which jobs were replayed, or which stopped early
	Count   int64    `json:"count"`
	DryRun  bool     `json:"dry_run,omitempty"` // the jobs were counted, and none was replayed
	Error   string   `json:"error,omitempty"`   // why it ended early
}

// replayAllTenants replays dead jobs tenant by tenant. Each tenant's history and the log have its
// part. A tenant whose queue is full does not keep the others waiting.
func (c *tenantReplayCmd) replayAllTenants(a *cli.App, remote *client.Client, filter wire.Filter) error {
	names, dead, err := tenantsWithDead(a, remote)
	if err != nil {
		return fmt.Errorf("list the tenants: %w", err)
	}
	if len(names) == 0 {
		fmt.Fprintln(a.Err, "No tenant has dead letters.")
		return cli.Print(a.Out, &allReplayed{Tenants: []*sweep{}}, c.JSON, (&allReplayed{}).print)
	}
	if !c.Yes && !c.DryRun {
		if !cli.Terminal(a.In) || !cli.Terminal(a.Err) {
			return cli.Usagef("a replay of all tenants: --yes is required without a terminal")
		}
		question := fmt.Sprintf("Replay %s of all tenants? %s %d dead jobs. [y/N] ", replayText(filter),
			cli.Plural(len(names), "tenant has", "tenants have"), dead)
		if err := a.Confirm(question); err != nil {
			return err
		}
	}
	all := allReplayed{Tenants: []*sweep{}, DryRun: c.DryRun}
	unknown := 0
	var stopped bool
	for _, name := range names {
		s := c.sweepOf(remote, name)
		err = s.steps(a.Ctx, a.Err, filter)
		if failed, is := errors.AsType[*client.Error](err); is && failed.Kind() == "unknown-route" {
			if unknown++; unknown < len(names) { // a removed route that another tenant still has jobs of
				err = nil
				continue
			}
		}
		s.Error = cli.EndedEarly(err)
		stopped = stopped || s.Stopped != "" || s.Error != ""
		if all.Count += s.Count; s.Count > 0 || s.Stopped != "" || s.Error != "" {
			all.Tenants = append(all.Tenants, s)
		}
		if err != nil {
			break
		}
	}
	if err != nil && all.Count == 0 {
		return fmt.Errorf("replay the jobs: %w", err)
	}
	all.Error = cli.EndedEarly(err)
	if err := cli.Print(a.Out, &all, c.JSON, all.print); err != nil {
		return err
	}
	if stopped {
		return cli.ErrReported
	}
	return nil
}

// tenantsWithDead returns the tenants that have dead letters, and how many all of them have.
func tenantsWithDead(a *cli.App, remote *client.Client) (names []string, dead int64, err error) {
	seen := map[string]bool{} // a tenant may be listed twice
	for cursor, first := "", true; first || cursor != ""; first = false {
		page, err := remote.Tenants(a.Ctx, cursor, 200)
		if err != nil {
			return nil, 0, err
		}
		for _, t := range page.Items {
			if !seen[t.Tenant] && t.DeadLetters > 0 {
				names, dead = append(names, t.Tenant), dead+t.DeadLetters
			}
			seen[t.Tenant] = true
		}
		cursor = page.NextCursor
	}
	return names, dead, nil
}

func (s *allReplayed) print(w io.Writer) error {
	var rows [][]string
	if len(s.Tenants) > 0 {
		count := "REPLAYED"
		if s.DryRun {
			count = "TO REPLAY"
		}
		rows = append(rows, []string{"TENANT", count, "STOPPED"})
	}
	for _, t := range s.Tenants {
		why := t.why()
		if t.Error != "" {
			why = t.Error
		}
		rows = append(rows, []string{cli.Plain(t.Tenant), strconv.FormatInt(t.Count, 10), cli.OrDash(why)})
	}
	return cli.PrintTable(w, append(rows, []string{"all", strconv.FormatInt(s.Count, 10), ""}))
}

// replayText describes the jobs of a replay.
func replayText(f wire.Filter) string {
	f.State = "dead"
	return filterText(f)
}
