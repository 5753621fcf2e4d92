package jobs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

type jobListCmd struct {
	cli.JobFlags
	State  string `default:"all" enum:"all,queued,scheduled,retrying,leased,succeeded,dead,cancelled,expired" placeholder:"STATE" help:"Only jobs in this state: queued, scheduled, retrying, leased, succeeded, dead, cancelled or expired [all]."`
	Route  string `filled:"" placeholder:"NAME" help:"Only jobs for this route."`
	Type   string `filled:"" placeholder:"TEXT" help:"Only jobs of this type."`
	Key    string `filled:"" placeholder:"TEXT" help:"Only the job with this idempotency key."`
	Error  string `filled:"" placeholder:"TEXT" help:"As operator: only jobs whose last error contains this text: its message, or what the upstream answered."`
	Tenant string `filled:"" placeholder:"NAME" help:"Tenant of the jobs [default, or the tenant of the key]."`

	AllTenants bool `help:"As operator: jobs of all tenants, all of them without --limit."`
	Payload    bool `help:"As operator, with --json: include payloads of up to 64 KiB."`

	CreatedAfter  *time.Time `placeholder:"TIME" help:"Only jobs created at this time or later, such as 2026-01-02T15:04:05Z."`
	CreatedBefore *time.Time `placeholder:"TIME" help:"Only jobs created before this time."`

	cli.ListFlags
}

func (jobListCmd) Help() string {
	return `Example:
  sluice job list --tenant acme
  sluice job list --tenant acme --state dead --type order.create --created-after 2026-01-02T15:04:05Z
  sluice job list --tenant acme --key order-17
  sluice job list --state queued --route default --all --json
  sluice job list --all-tenants --state dead --error 'sku is unknown'
  sluice job list --all-tenants --state dead --json --payload

Jobs are listed newest first within each state and route. --state dead lists dead letters: a
forwarded request that failed is none, and is in the list of all states. Of succeeded, expired and
cancelled jobs, each route keeps the last 1,000. A job that changes its state while the list is read
may be missing.

Next: sluice job show ID.`
}

func (c *jobListCmd) Run(a *cli.App) error {
	asked := client.List{Tenant: c.Tenant, State: c.State, Route: c.Route, Type: c.Type, Key: c.Key, Error: c.Error}
	for _, at := range []struct {
		flag string
		from *time.Time
		to   *time.Time
	}{{"--created-after", c.CreatedAfter, &asked.CreatedAfter}, {"--created-before", c.CreatedBefore,
		&asked.CreatedBefore}} {
		if at.from == nil {
			continue
		}
		if *at.to = *at.from; at.from.Unix() <= 0 { // the zero time means any
			return cli.Usagef("%s: %s: must be after 1970", at.flag, at.from.Format(time.RFC3339))
		}
	}
	c.Operator = c.Operator || c.AllTenants || c.Payload || c.Error != "" // also beside an API key
	switch {
	case c.AllTenants && c.Tenant != "":
		return cli.Usagef("--all-tenants and --tenant exclude each other")
	case c.Payload && !c.JSON:
		return cli.Usagef("--payload needs --json")
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	list := cli.Listed[wire.JobDetail]{
		Most: wire.MaxPage / 2,
		Head: jobLine("ID", "STATE", "POSITION", "ATTEMPTS", "CREATED", "ROUTE", "TYPE"),
		Row: func(j wire.JobDetail) string {
			position := "-"
			if j.Position > 0 {
				position = strconv.FormatInt(j.Position, 10)
			}
			kind := j.Type
			if c.AllTenants {
				kind += " of " + cli.Plain(j.Tenant)
			}
			return jobLine(j.ID, j.State, position, fmt.Sprintf("%d of %d", j.Attempts, j.MaxAttempts),
				j.Created.UTC().Format(time.RFC3339), j.Route, kind+wrongWith(j.Job))
		},
		Fetch: func(cursor string, limit int) ([]wire.JobDetail, string, error) {
			asked.Limit, asked.Cursor = limit, cursor
			return c.page(a.Ctx, remote, asked)
		},
	}
	if c.AllTenants {
		c.All, list.Fetch = c.All || c.Limit == nil, c.ofAllTenants(a.Ctx, remote, asked)
	}
	found, fetch := 0, list.Fetch
	list.Fetch = func(cursor string, limit int) ([]wire.JobDetail, string, error) {
		items, next, err := fetch(cursor, limit)
		found += len(items)
		return items, next, err
	}
	if err := list.Print(a.Out, a.Err, c.ListFlags); err != nil || found > 0 || c.AllTenants {
		return err
	}
	if c.Tenant == "" && c.APIKey == "" && !c.JSON {
		fmt.Fprintln(a.Err, "That is the tenant default. Name another one by --tenant, or use --all-tenants as operator.")
	}
	if c.Tenant != "" && c.OfOperator() {
		a.NoteUnknown(remote, c.Tenant)
	}
	return nil
}

// page reads a page of a tenant's jobs, with payloads if they are requested.
func (c *jobListCmd) page(
	ctx context.Context, remote *client.Client, asked client.List,
) (items []wire.JobDetail, next string, err error) {
	page, err := cli.Jobs(ctx, remote, asked)
	if err != nil {
		return nil, "", fmt.Errorf("list the jobs: %w", err)
	}
	for _, j := range page.Items {
		item := wire.JobDetail{Job: j}
		if c.Payload {
			if item, err = remote.Find(ctx, j.ID); err != nil {
				if gone, is := errors.AsType[*client.Error](err); is && gone.Kind() == "unknown-job" {
					continue // it was purged meanwhile
				}
				return nil, "", fmt.Errorf("read the job: %w", err)
			}
		}
		items = append(items, item)
	}
	return items, page.NextCursor, nil
}

// ofAllTenants returns a function that reads the jobs tenant by tenant. Its cursors are of no use
// to another call.
func (c *jobListCmd) ofAllTenants(
	ctx context.Context, remote *client.Client, asked client.List,
) func(cursor string, limit int) ([]wire.JobDetail, string, error) {
	const pageOfTenants = 200
	var names []string
	begun, next, seen := false, "", map[string]bool{} // a tenant may be listed twice
	return func(_ string, limit int) ([]wire.JobDetail, string, error) {
		for {
			if len(names) == 0 {
				if begun && next == "" {
					return nil, "", nil
				}
				page, err := remote.Tenants(ctx, next, pageOfTenants)
				if err != nil {
					return nil, "", fmt.Errorf("list the tenants: %w", err)
				}
				for _, t := range page.Items {
					if !seen[t.Tenant] && (c.State != "dead" || t.DeadLetters > 0) {
						names = append(names, t.Tenant)
					}
					seen[t.Tenant] = true
				}
				begun, next = true, page.NextCursor
				continue
			}
			asked.Tenant, asked.Limit = names[0], limit
			items, cursor, err := c.page(ctx, remote, asked)
			if err != nil {
				return nil, "", err
			}
			if asked.Cursor = cursor; cursor == "" {
				names = names[1:]
			}
			if len(items) > 0 {
				return items, "more", nil
			}
		}
	}
}

func jobLine(id, state, position, attempts, created, route, kind string) string {
	return fmt.Sprintf("%-28s  %-9s  %8s  %-9s  %-20s  %-12s  %s", id, state, position, attempts, created,
		route, kind)
}

// wrongWith returns what went wrong, to follow the type of the job: an error that the upstream
// answered, or the last error.
func wrongWith(j wire.Job) string {
	if r := j.Response; r != nil && j.State == "succeeded" && r.Status >= http.StatusBadRequest {
		return fmt.Sprintf(" (answered %d)", r.Status)
	}
	if e := j.LastError; e != nil && (j.State == "dead" || j.State == "retrying") {
		return ": " + messageOf(*e)
	}
	return ""
}
