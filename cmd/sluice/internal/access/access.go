// Package access connects commands to a running server.
package access

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
)

// Where the listeners of dev are, and where the client commands look by default.
const (
	DefaultAPI   = "127.0.0.1:8080"
	DefaultAdmin = "127.0.0.1:8081"
)

// BaseURL makes a URL of an address or a URL; an address that stands for every interface is reached
// on loopback.
func BaseURL(address string) string {
	if strings.Contains(address, "://") {
		return strings.TrimRight(address, "/")
	}
	if host, port, err := net.SplitHostPort(address); err == nil && (host == "" || net.ParseIP(host).IsUnspecified()) {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + address
}

// APIFlags say where the API is and who asks. The flag is not called --key, which names a job in
// submit.
type APIFlags struct {
	API    string `name:"api" default:"http://${api}" env:"SLUICE_API" placeholder:"URL" help:"Where the API is [http://${api}]."`
	APIKey string `name:"api-key" env:"SLUICE_KEY" placeholder:"TEXT" help:"API key or token, if clients must have one; the variable keeps it out of the list of processes."`
}

// AdminFlags say where the admin listener is.
type AdminFlags struct {
	Admin      string `name:"admin" default:"http://${admin}" env:"SLUICE_ADMIN,SLUICE_ADMIN_LISTEN" placeholder:"URL" help:"Where the admin listener is [http://${admin}]."`
	AdminToken string `name:"admin-token" env:"SLUICE_ADMIN_TOKEN" placeholder:"TEXT" help:"Its token, if it has one; the variable keeps it out of the list of processes."`
}

// Connect returns a client of the API that keeps a connection for each of calls concurrent calls.
func (f APIFlags) Connect(calls int) (*client.Client, error) {
	return connect("--api", f.API, f.APIKey, calls)
}

// Connect returns a client of the admin listener that keeps a connection for each of calls
// concurrent calls.
func (f AdminFlags) Connect(calls int) (*client.Client, error) {
	return connect("--admin", f.Admin, f.AdminToken, calls)
}

func connect(flag, address, token string, calls int) (*client.Client, error) {
	c, err := client.New(BaseURL(address), token, HTTPClient(calls))
	if err != nil {
		return nil, console.Usagef("%s: %v", flag, err)
	}
	return c, nil
}

// HTTPClient keeps a connection for each call at once; a held answer comes well within its bound.
func HTTPClient(calls int) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = calls
	return &http.Client{Transport: transport, Timeout: 2 * wire.MaxWaitSeconds * time.Second}
}

// Transient reports whether the call may go well when it is made again: the server was not reached,
// or does not work now.
func Transient(err error) bool {
	var answer *client.Error
	if !errors.As(err, &answer) {
		return true
	}
	switch answer.Status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// TooOften is how long the server asks to wait because its tenant reads too often, 0 if that is not
// what it says.
func TooOften(err error) time.Duration {
	var answer *client.Error
	if errors.As(err, &answer) && answer.Kind() == "rate-limited" {
		return max(answer.RetryAfter, time.Second)
	}
	return 0
}
