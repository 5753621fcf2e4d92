package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/cmd/sluice/internal/process"
	"github.com/7509e464/sluice/internal/config"
	"github.com/7509e464/sluice/shaper"
)

type devCmd struct {
	API      string `name:"api" default:"${api}" placeholder:"ADDR" help:"Address of the listener for clients [${api}]."`
	Admin    string `name:"admin" default:"${admin}" placeholder:"ADDR" help:"Address of the listener for operators [${admin}]."`
	Rate     string `default:"2/s" placeholder:"LIMIT/PERIOD" help:"Rate of every tenant [2/s, slow enough to watch]."`
	Capacity string `default:"1000" placeholder:"N" help:"Jobs of a tenant that may wait [1000]."`
	Upstream string `filled:"" placeholder:"URL" help:"Deliver to this URL instead of the built-in upstream."`
	Forward  string `filled:"" placeholder:"URL" help:"Forward requests to this API: each path of the listener for them is one of its paths."`
	Listen   string `name:"forward-listen" placeholder:"ADDR" help:"Address of the listener for --forward [127.0.0.1:8090]."`
	LogLevel string `default:"info" enum:"debug,info,warn,error" placeholder:"LEVEL" help:"Lowest level that is logged: debug, info, warn or error [info]."`
}

// forwardAddress is where the listener for --forward is, unless a flag says otherwise.
const forwardAddress = "127.0.0.1:8090"

func (devCmd) Help() string {
	return `Example:
  sluice dev
  sluice dev --rate 10/s --api 127.0.0.1:9090
  sluice dev --upstream http://127.0.0.1:9000/orders
  sluice dev --forward http://localhost:3000

One process runs the API, a worker and an upstream. The upstream answers each delivery with its
content, and logs it; --upstream replaces it. There is no configuration, no authentication, and the
environment is not read. Jobs are in memory and are lost on exit.

Next: paste the commands that it prints. For production use sluice serve.`
}

func (c *devCmd) Run(a *cli.App) error {
	log := cli.NewLogger(a.Err, c.LogLevel)
	from := config.Sources{Flags: map[string]string{
		"api.listen": c.API, "admin.listen": c.Admin, "admin.submit": "true", "log.level": c.LogLevel,
		"tenants.defaults.rate": c.Rate, "tenants.defaults.capacity": c.Capacity,
	}}
	upstream, what := c.Upstream, "--upstream"
	if upstream == "" {
		echo, err := startEcho("127.0.0.1:0", echoHandler(log), log)
		if err != nil {
			return err
		}
		defer echo.close()
		upstream, what = echo.url(), "built in, echoes deliveries"
	}
	from.Routes = []string{"default=" + upstream}
	if c.Forward == "" && c.Listen != "" {
		return cli.Usagef("--forward-listen needs --forward")
	}
	if c.Forward != "" {
		from.Preset = map[string]any{
			"routes":  map[string]any{"forward": map[string]any{"forward": c.Forward}},
			"forward": []any{map[string]any{"listen": cmp.Or(c.Listen, forwardAddress), "route": "forward"}},
		}
	}
	cfg, err := config.Load(from)
	if err != nil {
		return c.inFlags(err)
	}
	p := &process.Process{
		Config: cfg, Version: build(), Roles: process.Roles{API: true,
			Worker: true}, Embedded: true, Log: log,
		Ready: func(r process.Running) { c.welcome(a.Out, r, upstream+" ("+what+")") },
	}
	return p.Run(a.Ctx)
}

// inFlags replaces the names of settings in problems by the flags of dev.
func (c *devCmd) inFlags(err error) error {
	var problems shaper.Problems
	if errors.As(err, &problems) {
		names := strings.NewReplacer("tenants.defaults.rate (--tenants-defaults-rate)", "--rate",
			"tenants.defaults.capacity (--tenants-defaults-capacity)", "--capacity",
			"routes.default.url (--route)", "--upstream", "routes.forward.forward", "--forward",
			"forward[0].listen", "--forward-listen")
		problems = slices.DeleteFunc(problems, func(p shaper.Problem) bool {
			return p.Field == "forward[0].route" // it only follows from a mistake in --forward
		})
		for i := range problems {
			problems[i].Field = names.Replace(problems[i].Field)
		}
		return problems
	}
	return err
}

// welcome prints the addresses and commands to paste.
func (c *devCmd) welcome(w io.Writer, r process.Running, upstream string) {
	api, admin := "http://"+r.API.String(), "http://"+r.Admin.String()
	where := ""
	if r.API.String() != cli.DefaultAPI {
		where += " --api " + api
	}
	forward := ""
	if len(r.Forward) > 0 {
		forward = fmt.Sprintf("\nSend a request to %s through the queue; use any path, method and body:\n  curl -i http://%s/\n",
			c.Forward, r.Forward[0])
	}
	fmt.Fprintf(w, `
Sluice is running.

  dashboard  %[2]s/ (open it in a browser)
  api        %[1]s
  admin      %[2]s
  upstream   %[3]s
  rate       %[4]s for every tenant
  storage    in memory: jobs are lost on exit
%[7]s
Submit a job:
  curl -s -H 'Content-Type: application/json' -d '{"type":"order.create","payload":{"sku":1}}' %[1]s/v1/jobs

Submit a job and wait for its end:
  curl -s -H 'Prefer: wait=10' -H 'Content-Type: application/json' -d '{"type":"order.create","payload":{"sku":2}}' %[1]s/v1/jobs

Read a job; replace ID by the id of the answer:
  curl -s %[1]s/v1/jobs/ID

Submit many, and watch them leave at the rate:
  %[6]s burst -n 60%[5]s

Meanwhile, in another terminal, change the rate:
  curl -s -X PATCH -H 'Content-Type: application/json' -d '{"rate":"20/s"}' %[2]s/v1/tenants/default

Ctrl-C stops it.

`, api, admin, upstream, c.Rate, where, cli.Invoked(os.Args[0]), forward)
}
