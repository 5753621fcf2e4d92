package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/wire"
)

type jobListCmd struct {
	apiFlags
	State  string `required:"" enum:"queued,scheduled,retrying,leased,dead,done" placeholder:"STATE" help:"queued, scheduled, retrying, leased, dead, or done: all that ended otherwise."`
	Route  string `filled:"" placeholder:"NAME" help:"Only jobs for this route."`
	Tenant string `filled:"" placeholder:"NAME" help:"Whose jobs [default, or that of the key]."`
	listFlags
}

func (jobListCmd) Help() string {
	return `Lists the jobs of a tenant that are in one state, newest first. Of the jobs that are done, the most recent 1,000 of each route are kept. Jobs that move on while the list is read may be missing.

Example:
  sluice job list --tenant acme --state dead
  sluice job list --state queued --route default --all --json`
}

func (c *jobListCmd) Run(a *app) error {
	remote, err := c.connect(1)
	if err != nil {
		return err
	}
	list := listed[wire.Job]{
		most: wire.MaxPage / 2,
		head: jobLine("ID", "STATE", "POSITION", "ATTEMPTS", "CREATED", "ROUTE", "TYPE"),
		row: func(j wire.Job) string {
			position := "-"
			if j.Position > 0 {
				position = strconv.FormatInt(j.Position, 10)
			}
			return jobLine(j.ID, j.State, position, fmt.Sprintf("%d of %d", j.Attempts, j.MaxAttempts), j.Created.UTC().Format(time.RFC3339), j.Route, j.Type)
		},
		fetch: func(cursor string, limit int) ([]wire.Job, string, error) {
			page, err := remote.Jobs(a.ctx, client.List{Tenant: c.Tenant, State: c.State, Route: c.Route, Limit: limit, Cursor: cursor})
			if err != nil {
				return nil, "", fmt.Errorf("list the jobs: %w", err)
			}
			return page.Items, page.NextCursor, nil
		},
	}
	return list.print(a.Out, a.Err, c.listFlags)
}

func jobLine(id, state, position, attempts, created, route, kind string) string {
	return fmt.Sprintf("%-28s  %-9s  %8s  %-9s  %-20s  %-12s  %s", id, state, position, attempts, created, route, kind)
}
