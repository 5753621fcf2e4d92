// Package top is the command top: the live view of a server, on a terminal or as lines.
package top

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	tea "charm.land/bubbletea/v2"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// Cmd is the command top.
type Cmd struct {
	cli.AdminFlags
	Name     string        `arg:"" optional:"" help:"Show the chart of this tenant."`
	Pool     string        `filled:"" placeholder:"POOL" help:"Show who gets which part of the rate of this pool."`
	Search   string        `placeholder:"TEXT" help:"Only tenants whose name contains this."`
	Sort     string        `enum:"depth,oldest_wait,refused,dead,name" default:"depth" placeholder:"ORDER" help:"Order of the tenants: depth, oldest_wait, refused, dead or name [depth]."`
	Limit    int           `default:"20" placeholder:"N" help:"Maximum number of tenants in lines and JSON, up to 500 [20]."`
	Count    int           `short:"n" filled:"" placeholder:"N" help:"Print N samples as lines, then end."`
	Lines    bool          `help:"Print lines, on a terminal too."`
	JSON     bool          `help:"Print each sample as a JSON object on one line."`
	Patience time.Duration `default:"1m" help:"With lines and JSON, give up if the server is unreachable for this time; 0s is never [1m]."`
}

func (Cmd) Help() string {
	return `Example:
  sluice top
  sluice top acme
  sluice top --pool erp
  sluice top -n 1 --sort oldest_wait
  sluice top --json -n 5 --search acme

The screen shows arrivals, departures and refusals, the lateness of departures, the state of Redis,
and the tenants with their depths and rates. On a terminal you can show the chart of a tenant, pause
and resume it, and change its rate. Each change asks for confirmation and has the reason "sluice
top" in the history.

Keys: up, down, page up and page down choose a tenant; enter shows its chart and esc goes back; /
searches by a part of the name and s changes the order; tab shows the pools and goes back; p pauses,
r resumes, + and - change the rate; ? explains the columns, q quits.

Without a terminal, and with --lines, -n or --json, the command prints the figures every second:
first those of all tenants, then those of each pool and tenant. With --pool they are those of the
pool and of its flows. Rates are of the last second, parts of a pool of the last ten. A broken
connection is opened again.

Exit codes: 0 after q, -n samples or an interrupt; 1 if the server refuses, does not answer at the
start, or is unreachable for longer than --patience.`
}

func (c *Cmd) Run(a *cli.App) error {
	switch {
	case c.Count < 0:
		return cli.Usagef("-n: %d: must be at least 1", c.Count)
	case c.Limit < 1 || c.Limit > 500:
		return cli.Usagef("--limit: %d: must be from 1 to 500", c.Limit)
	}
	if c.Name != "" && c.Pool != "" {
		return cli.Usagef("--pool: cannot be given with the name of a tenant")
	}
	hc, err := streamClient(c.TLSFlags)
	if err != nil {
		return err
	}
	stream, err := client.New(cli.BaseURL(c.Admin), c.AdminToken, hc)
	if err != nil {
		return cli.Usagef("--admin: %v", err)
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	if c.Pool != "" { // an unknown one would have no events
		if _, err := remote.Pool(a.Ctx, c.Pool); err != nil {
			return fmt.Errorf("read the pool: %w", err)
		}
	}
	view := client.View{Tenant: c.Name, Pool: c.Pool, Search: c.Search, Sort: c.Sort, Limit: c.Limit}
	if c.Name != "" {
		a.NoteUnknown(remote, c.Name)
	}
	if c.JSON || c.Lines || c.Count > 0 || !cli.Terminal(a.Out) || a.Env("TERM", "") == "dumb" {
		return c.print(a, newLiveFeed(stream, c.Patience), view)
	}
	view.Limit = topRows
	return c.live(a, newLiveFeed(stream, 0), view, remote)
}

// streamClient returns a client for endless answers: only the response header has a timeout.
func streamClient(secured cli.TLSFlags) (*http.Client, error) {
	transport, err := secured.Transport()
	if err != nil {
		return nil, err
	}
	transport.ResponseHeaderTimeout = 10 * time.Second
	return &http.Client{Transport: transport}, nil
}

// live runs the full screen. It opens the screen only after the server has answered.
func (c *Cmd) live(a *cli.App, f *liveFeed, view client.View, remote *client.Client) error {
	ctx, cancel := context.WithCancel(a.Ctx)
	defer cancel()
	model := newTopModel(ctx, cli.BaseURL(c.Admin), view,
		topPorts{view: f.ask, change: applyChange(remote)})
	environ := a.Environ
	if a.Env("NO_COLOR", "") != "" {
		environ = append(slices.Clone(environ),
			"NO_COLOR=1") // any value counts; the library requires a boolean
	}
	program := tea.NewProgram(model, tea.WithContext(ctx), tea.WithInput(a.In), tea.WithOutput(cli.Raw(a.Out)),
		tea.WithEnvironment(environ), tea.WithoutSignalHandler(), tea.WithFPS(20))
	met := make(chan struct{}) // closed with the first event
	first := true
	f.send = func(news any) {
		if first {
			first = false
			close(met)
		}
		program.Send(news)
	}
	fed := make(chan error, 1)
	go func() {
		err := f.run(ctx, view)
		cancel()
		fed <- err
	}()
	select {
	case err := <-fed:
		return err
	case <-met:
	}
	_, err := program.Run()
	cancel()
	if failed := <-fed; failed != nil {
		return failed
	}
	if errors.Is(err, tea.ErrProgramKilled) {
		return nil // ctx ended
	}
	return err
}
