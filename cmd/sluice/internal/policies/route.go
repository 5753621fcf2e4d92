package policies

import (
	"fmt"
	"strconv"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// RouteCmd is the command route with its subcommands.
type RouteCmd struct {
	List routeListCmd `cmd:"" help:"List the routes and how their deliveries fail."`
}

func (RouteCmd) Help() string {
	return `Example:
  sluice route list

A route is an upstream. The configuration file declares routes. The commands ask the admin listener.`
}

type routeListCmd struct {
	cli.AdminFlags
	JSON bool `help:"Print JSON: {\"items\": […]}."`
}

func (routeListCmd) Help() string {
	return `Example:
  sluice route list
  sluice route list --json

The list has for each route, over all workers: the state of the circuit breaker, deliveries under
way, those that ended and those that failed in the last minute, and the last failure of it with its
tenant and job. Routes in trouble come first.

Next: sluice job find JOB; sluice tenant get TENANT; sluice tenant pause TENANT --route ROUTE.`
}

func (c *routeListCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	list, err := remote.Routes(a.Ctx)
	if err != nil {
		return fmt.Errorf("list the routes: %w", err)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, list)
	}
	rows := [][]string{{"ROUTE", "BREAKER", "IN FLIGHT", "ENDED", "FAILED", "LAST TENANT", "LAST JOB", "LAST FAILURE"}}
	for _, r := range list.Items {
		row := []string{cli.Plain(r.Route), r.Breaker, strconv.FormatInt(r.InFlight, 10), strconv.FormatInt(r.Ended, 10),
			strconv.FormatInt(r.Failed, 10)}
		if f := r.Last; f != nil {
			message := f.Message
			if f.Detail != "" {
				message += ": " + f.Detail
			}
			row = append(row, cli.Plain(f.Tenant), f.Job, cli.OneLine(message))
		} else {
			row = append(row, "-", "-", "-")
		}
		rows = append(rows, row)
	}
	return cli.PrintTable(a.Out, rows)
}
