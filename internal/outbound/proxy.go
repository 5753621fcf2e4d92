package outbound

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// Proxy returns the proxy for a URL, nil for none. A nil Proxy is none for all.
type Proxy func(*url.URL) (*url.URL, error)

// Values of a proxy's setting beside its URL.
const (
	NoProxy  = "none"
	EnvProxy = "env"
)

// ParseProxy reads the setting of a proxy: "none" or empty; "env", for HTTPS_PROXY, HTTP_PROXY and
// NO_PROXY; or a URL such as http://proxy.internal:3128, perhaps with a user and a password. Its
// error is a rule, and does not quote the text.
func ParseProxy(setting string) (Proxy, error) {
	switch setting {
	case "", NoProxy:
		return nil, nil
	case EnvProxy:
		return httpproxy.FromEnvironment().ProxyFunc(), nil
	}
	u, err := url.Parse(setting)
	if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("must be none, env or the http:// URL of a proxy, such as http://proxy.internal:3128")
	}
	return func(*url.URL) (*url.URL, error) { return u, nil }, nil
}

// proxyFor returns the proxy for requests to a URL, nil for none.
func (c *Client) proxyFor(u *url.URL) (*url.URL, error) {
	if c.proxy == nil {
		return nil, nil
	}
	proxy, err := c.proxy(u)
	if err != nil { // it may quote a password
		return nil, errors.New("the proxy in the environment is not a valid URL")
	}
	if proxy != nil && (proxy.Scheme != "http" || proxy.Hostname() == "") {
		return nil, fmt.Errorf("the proxy %s cannot be used: it must be an http:// URL", proxy.Host)
	}
	return proxy, nil
}

// HasProxy reports whether requests to a URL go through a proxy, or should and cannot.
func (c *Client) HasProxy(raw string) bool {
	u, err := url.Parse(raw)
	if err != nil {
		return false
	}
	proxy, err := c.proxyFor(u)
	return proxy != nil || err != nil
}

// proxyOfPlain returns the proxy of a request without TLS for net/http, which sends it the whole
// URL. Connections with TLS are made by dialThrough.
func (c *Client) proxyOfPlain(req *http.Request) (*url.URL, error) {
	if req.URL.Scheme != "http" {
		return nil, nil
	}
	return c.proxyFor(req.URL)
}

// viaProxy makes a request for a proxy have its whole URL, also where its path is sent as the
// client encoded it.
func (c *Client) viaProxy(req *http.Request) {
	if proxy, err := c.proxyOfPlain(req); err != nil || proxy == nil || req.URL.Opaque == "" {
		return
	}
	u := *req.URL
	u.Opaque = "//" + u.Host + u.Opaque
	req.URL = &u
}

// proxyRefused reports whether an answer is that of a proxy which wants other credentials.
func (c *Client) proxyRefused(req *http.Request, resp *http.Response) bool {
	if resp == nil || resp.StatusCode != http.StatusProxyAuthRequired {
		return false
	}
	proxy, _ := c.proxyOfPlain(req)
	return proxy != nil
}

// dialThrough makes a connection to the address, through the proxy for it if there is one (RFC
// 9110, section 9.3.6).
func (c *Client) dialThrough(ctx context.Context, network, address string) (net.Conn, error) {
	proxy, err := c.proxyFor(&url.URL{Scheme: "https", Host: address})
	if err != nil {
		return nil, err
	}
	if proxy == nil {
		return c.Transport.DialContext(ctx, network, address)
	}
	port := proxy.Port()
	if port == "" {
		port = "80"
	}
	conn, err := c.Transport.DialContext(ctx, network, net.JoinHostPort(proxy.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("the proxy: %w", err)
	}
	unwatch := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	err = tunnel(conn, proxy, address)
	if !unwatch() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("the proxy %s: %w", proxy.Host, err)
	}
	return conn, nil
}

// tunnel asks a proxy for a connection to the address.
func tunnel(conn net.Conn, proxy *url.URL, address string) error {
	req := &http.Request{Method: http.MethodConnect, URL: &url.URL{Opaque: address}, Host: address, Header: http.Header{}}
	if u := proxy.User; u != nil {
		password, _ := u.Password()
		req.Header.Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(u.Username()+":"+password)))
	}
	if err := req.Write(conn); err != nil {
		return err
	}
	answer := bufio.NewReader(io.LimitReader(conn, maxHeaderBytes))
	resp, err := http.ReadResponse(answer, req)
	for err == nil && resp.StatusCode < 200 && resp.StatusCode != http.StatusSwitchingProtocols {
		resp, err = http.ReadResponse(answer, req)
	}
	if network, is := errors.AsType[*net.OpError](err); is {
		return network
	}
	switch {
	case err != nil: // without its text, which may quote the answer, and that the password
		return errors.New("its answer to CONNECT is not valid HTTP")
	case resp.StatusCode < 200 || resp.StatusCode > 299:
		return fmt.Errorf("it answered CONNECT with %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))
	case answer.Buffered() > 0:
		return errors.New("it sent bytes before the upstream could")
	}
	return nil
}
