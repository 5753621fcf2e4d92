package policies

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// RouteCmd is the command route with its subcommands.
type RouteCmd struct {
	List routeListCmd `cmd:"" help:"List the routes, how their upstreams are called and how deliveries fail."`
	Test routeTestCmd `cmd:"" help:"Make one request to the upstream of a route, by the configuration file."`
}

func (RouteCmd) Help() string {
	return `Example:
  sluice route list
  sluice route test partner --config sluice.yaml

A route is an upstream. The configuration file declares routes. list asks the admin listener; test
calls the upstream itself.`
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
way, answers that are passed on while they come and for how long the oldest does, the deliveries
that ended and those that failed in the last minute, and the last failure of it with its tenant and
job. Unhealthy routes come first. It also has how the upstream is called: method, URL,
names of the headers that the route sets, the kind of authentication, and when its token and its
client certificate end. It never has their values.

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
	rows := [][]string{{"ROUTE", "BREAKER", "IN FLIGHT", "STREAMS", "ENDED", "FAILED", "LAST TENANT", "LAST JOB", "LAST FAILURE", "CALLS", "AUTH"}}
	for _, r := range list.Items {
		row := []string{cli.Plain(r.Route), r.Breaker, strconv.FormatInt(r.InFlight, 10), cli.StreamsText(r), strconv.FormatInt(r.Ended, 10),
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
		rows = append(rows, append(row, callText(r), authText(r)))
	}
	return cli.PrintTable(a.Out, rows)
}

// callText returns the method and the URL of the upstream of a route, with the headers that it
// sets.
func callText(r wire.RouteLine) string {
	if r.URL == "" {
		return "-"
	}
	text := strings.TrimSpace(r.Method + " " + cli.Plain(r.URL))
	if len(r.Headers) > 0 {
		text += " with " + cli.Plain(strings.Join(r.Headers, ", "))
	}
	if r.Proxy != "" {
		text += " by proxy " + cli.Plain(r.Proxy)
	}
	if len(r.JobHeaders) > 0 {
		text += ", jobs set " + cli.Plain(strings.Join(r.JobHeaders, ", "))
	}
	return text
}

// authText returns how requests to the upstream of a route are authenticated.
func authText(r wire.RouteLine) string {
	var parts []string
	for _, kind := range r.Auth {
		end := map[string]*time.Time{"oauth2": r.TokenEnd, "certificate": r.CertificateEnd}[kind]
		switch {
		case kind == "oauth2" && r.TokenProblem != "":
			kind += " (no token: " + cli.OneLine(r.TokenProblem) + ")"
		case end != nil && end.Before(time.Now()):
			kind += " ended " + end.UTC().Format(time.RFC3339)
		case end != nil:
			kind += " until " + end.UTC().Format(time.RFC3339)
		}
		parts = append(parts, kind)
	}
	return cmp.Or(strings.Join(parts, ", "), "-")
}
