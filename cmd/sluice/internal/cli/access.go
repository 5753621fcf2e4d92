package cli

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
)

// Default addresses of the listeners, for the server and for client commands.
const (
	DefaultAPI   = "127.0.0.1:8080"
	DefaultAdmin = "127.0.0.1:8081"
)

// BaseURL returns the URL of an address or a URL. For an address of all interfaces it is that of
// loopback.
func BaseURL(address string) string {
	if strings.Contains(address, "://") {
		return strings.TrimRight(address, "/")
	}
	if host, port, err := net.SplitHostPort(address); err == nil &&
		(host == "" || net.ParseIP(host).IsUnspecified()) {
		address = net.JoinHostPort("127.0.0.1", port)
	}
	return "http://" + address
}

// APIFlags are the address of the API and the credentials. The flag of the key is not --key,
// because that is the idempotency key in submit.
type APIFlags struct {
	apiAccess
	TLSFlags
}

type apiAccess struct {
	API    string `name:"api" default:"http://${api}" env:"SLUICE_API" placeholder:"URL" help:"URL of the API [http://${api}]."`
	APIKey string `name:"api-key" env:"SLUICE_KEY" placeholder:"TEXT" help:"API key or token, if the server requires one. The variable keeps it out of the process list."`
}

// AdminFlags are the address of the admin listener and its token.
type AdminFlags struct {
	adminAccess
	TLSFlags
}

type adminAccess struct {
	Admin      string `name:"admin" default:"http://${admin}" env:"SLUICE_ADMIN,SLUICE_ADMIN_LISTEN" placeholder:"URL" help:"URL of the admin listener [http://${admin}]."`
	AdminToken string `name:"admin-token" env:"SLUICE_ADMIN_TOKEN" placeholder:"TEXT" help:"Its token, if it has one. The variable keeps it out of the process list."`
}

// TLSFlags are for a server with an https:// URL. The flag of the key is not --key, because that is
// the idempotency key in submit.
type TLSFlags struct {
	CA      string `name:"ca" env:"SLUICE_CA" placeholder:"FILE" help:"Authorities of the server's certificate (PEM), beside those of the system."`
	Cert    string `name:"cert" env:"SLUICE_CERT" placeholder:"FILE" help:"Certificate of this client (PEM), if the server requires one."`
	CertKey string `name:"cert-key" env:"SLUICE_CERT_KEY" placeholder:"FILE" help:"Key of that certificate (PEM)."`
}

// JobFlags are those of commands on jobs, which clients and operators use: clients ask the API,
// operators the admin listener.
type JobFlags struct {
	apiAccess
	adminAccess
	TLSFlags
	Operator bool `help:"As operator: ask the admin listener, for a job of any tenant [if there is an admin token and no API key]."`
}

// OfOperator reports whether the command asks the admin listener.
func (f JobFlags) OfOperator() bool { return f.Operator || f.AdminToken != "" && f.APIKey == "" }

// Connect returns a client of the API, or for an operator of the admin listener.
func (f JobFlags) Connect(calls int) (*client.Client, error) {
	if !f.OfOperator() {
		return connect("--api", f.API, f.APIKey, f.TLSFlags, calls)
	}
	c, err := connect("--admin", f.Admin, f.AdminToken, f.TLSFlags, calls)
	if err != nil {
		return nil, err
	}
	return c.Operator(), nil
}

// Connect returns a client of the API that keeps a connection for each of calls concurrent calls.
func (f APIFlags) Connect(calls int) (*client.Client, error) {
	return connect("--api", f.API, f.APIKey, f.TLSFlags, calls)
}

// Connect returns a client of the admin listener that keeps a connection for each of calls
// concurrent calls.
func (f AdminFlags) Connect(calls int) (*client.Client, error) {
	return connect("--admin", f.Admin, f.AdminToken, f.TLSFlags, calls)
}

func connect(flag, address, token string, secured TLSFlags, calls int) (*client.Client, error) {
	hc, err := secured.HTTPClient(calls)
	if err != nil {
		return nil, err
	}
	c, err := client.New(BaseURL(address), token, hc)
	if err != nil {
		return nil, Usagef("%s: %v", flag, err)
	}
	return c, nil
}

// HTTPClient returns a client that keeps a connection for each of calls concurrent calls. Its
// timeout is longer than the longest answer that the server delays.
func (f TLSFlags) HTTPClient(calls int) (*http.Client, error) {
	transport, err := f.Transport()
	if err != nil {
		return nil, err
	}
	transport.MaxIdleConnsPerHost = calls
	return &http.Client{Transport: transport, Timeout: 2 * wire.MaxWaitSeconds * time.Second}, nil
}

// Transport returns a transport with these files. Its error names the flag.
func (f TLSFlags) Transport() (*http.Transport, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		content, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, Usagef("--ca: %v", err)
		}
		if secured.RootCAs, err = x509.SystemCertPool(); err != nil { // there is none on this system
			secured.RootCAs = x509.NewCertPool()
		}
		if !secured.RootCAs.AppendCertsFromPEM(content) {
			return nil, Usagef("--ca: %q: must have a certificate in PEM", f.CA)
		}
	}
	if (f.Cert == "") != (f.CertKey == "") {
		return nil, Usagef("--cert and --cert-key: must be given together")
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.CertKey)
		if err != nil {
			return nil, Usagef("--cert: must be a certificate and its key in PEM: %v", err)
		}
		secured.Certificates = []tls.Certificate{pair}
	}
	transport.TLSClientConfig = secured
	return transport, nil
}

// Transient reports whether a retry may succeed: the server was unreachable, or fails at present.
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

// TooOften returns the wait that the server asks for because the tenant reads too often, 0 for any
// other error.
func TooOften(err error) time.Duration {
	var answer *client.Error
	if errors.As(err, &answer) && answer.Kind() == "rate-limited" {
		return max(answer.RetryAfter, time.Second)
	}
	return 0
}

// Jobs reads a page of jobs. A long list reads more than may be read at once: then it waits for as
// long as the server says.
func Jobs(ctx context.Context, remote *client.Client, asked client.List) (wire.JobList, error) {
	for {
		page, err := remote.Jobs(ctx, asked)
		refused, is := errors.AsType[*client.Error](err)
		if !is || refused.Status != http.StatusTooManyRequests || refused.RetryAfter == 0 {
			return page, err
		}
		select {
		case <-ctx.Done():
			return page, err
		case <-time.After(refused.RetryAfter):
		}
	}
}
