package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

type healthcheckCmd struct {
	Admin   string        `default:"${admin}" env:"SLUICE_ADMIN,SLUICE_ADMIN_LISTEN" placeholder:"ADDR" help:"Admin address of the process, or its URL [${admin}]."`
	Timeout time.Duration `default:"3s" help:"Timeout of the answer [3s]."`
	JSON    bool          `help:"Print JSON."`

	cli.TLSFlags
}

func (healthcheckCmd) Help() string {
	return `Example:
  sluice healthcheck
  sluice healthcheck --admin 127.0.0.1:9091
  sluice healthcheck --admin https://localhost:8081 --ca ca.pem

A process is ready if it reaches Redis and is not stopping. The command asks its admin listener and
is made for health checks of containers. Exit codes: 0 ready, 1 not ready.`
}

func (c *healthcheckCmd) Run(a *cli.App) error {
	ctx, cancel := context.WithTimeout(a.Ctx, c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, cli.BaseURL(c.Admin)+"/readyz", nil)
	if err != nil {
		return cli.Usagef("--admin: %q: must be an address such as %s", c.Admin, cli.DefaultAdmin)
	}
	transport, err := c.Transport()
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusBadRequest && request.URL.Scheme == "http" {
		return fmt.Errorf("not ready: %w", client.ErrHTTPS) // no handler answers so
	}
	if response.StatusCode != http.StatusOK {
		var p struct{ Detail string }                                         // as in wire.Problem
		_ = json.NewDecoder(io.LimitReader(response.Body, 64<<10)).Decode(&p) // a proxy answers something else
		if p.Detail != "" {
			return fmt.Errorf("not ready: %s: %s", response.Status, cli.OneLine(p.Detail))
		}
		return fmt.Errorf("not ready: %s", response.Status)
	}
	if c.JSON {
		return cli.PrintJSON(a.Out, map[string]string{"status": "ready"})
	}
	_, err = fmt.Fprintln(a.Out, "ready")
	return err
}
