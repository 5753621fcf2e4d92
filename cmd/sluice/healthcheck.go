package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
)

type healthcheckCmd struct {
	Admin   string        `default:"${admin}" env:"SLUICE_ADMIN_LISTEN" placeholder:"ADDR" help:"Admin address of the process [${admin}]."`
	Timeout time.Duration `default:"3s" help:"How long to wait for the answer [3s]."`
	JSON    bool          `help:"Print JSON."`
}

func (healthcheckCmd) Help() string {
	return `Asks the admin listener of a running process whether it is ready: it reaches Redis, and is not about to stop. Made for the health checks of containers. Exit codes: 0 ready, 1 not.

Example:
  sluice healthcheck
  sluice healthcheck --admin 127.0.0.1:9091`
}

func (c *healthcheckCmd) Run(a *app) error {
	ctx, cancel := context.WithTimeout(a.ctx, c.Timeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, baseURL(c.Admin)+"/readyz", nil)
	if err != nil {
		return usagef("--admin: must be an address such as %s", defaultAdmin)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("not ready: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("not ready: %s", response.Status)
	}
	if c.JSON {
		return printJSON(a.Out, map[string]string{"status": "ready"})
	}
	_, err = fmt.Fprintln(a.Out, "ready")
	return err
}

// baseURL makes a URL of an address or a URL; an address that stands for every interface is reached
// on loopback.
func baseURL(address string) string {
	if strings.Contains(address, "://") {
		return strings.TrimRight(address, "/")
	}
	if host, port, err := net.SplitHostPort(address); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + address
}
