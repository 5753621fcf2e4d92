// Package routes holds the commands that read routes.
package routes

import (
	"fmt"
	"strconv"

	"github.com/7509e464/sluice/cmd/sluice/internal/access"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
)

// Cmd is the command route with its subcommands.
type Cmd struct {
	List listCmd `cmd:"" help:"List the routes and how their deliveries fail."`
}

func (Cmd) Help() string {
	return `Example:
  sluice route list

A route is an upstream. The configuration file declares routes. The commands ask the admin listener.`
}

type listCmd struct {
	access.AdminFlags
	JSON bool `help:"Print JSON: {\"items\": […]}."`
}

func (listCmd) Help() string {
	return `Example:
  sluice route list
  sluice route list --json

The list has for each route, over all workers: the state of the circuit breaker, deliveries under
way, those that ended and those that failed in the last minute, and the last failure of it with its
tenant and job. Routes in trouble come first.

Next: sluice job find JOB; sluice tenant get TENANT; sluice tenant pause TENANT --route ROUTE.`
}

func (c *listCmd) Run(a *console.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	list, err := remote.Routes(a.Ctx)
	if err != nil {
		return fmt.Errorf("list the routes: %w", err)
	}
	if c.JSON {
		return console.PrintJSON(a.Out, list)
	}
	rows := [][]string{{"ROUTE", "BREAKER", "IN FLIGHT", "ENDED", "FAILED", "LAST TENANT", "LAST JOB", "LAST FAILURE"}}
	for _, r := range list.Items {
		row := []string{console.Plain(r.Route), r.Breaker, strconv.FormatInt(r.InFlight, 10), strconv.FormatInt(r.Ended, 10),
			strconv.FormatInt(r.Failed, 10)}
		if f := r.Last; f != nil {
			message := f.Message
			if f.Detail != "" {
				message += ": " + f.Detail
			}
			row = append(row, console.Plain(f.Tenant), f.Job, console.OneLine(message))
		} else {
			row = append(row, "-", "-", "-")
		}
		rows = append(rows, row)
	}
	return console.PrintTable(a.Out, rows)
}
