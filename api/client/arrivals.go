package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/7509e464/sluice/api/wire"
)

// Arrivals opens the stream of what comes for the tenant to this server, from now on; with a route,
// for that one alone. Its events are named "arrivals" and have wire.Arrivals as data. The transport
// of the client must not bound the time of a whole answer. A stream on which nothing comes for idle
// ends with ErrQuiet; the server sends a sign every 15 s.
func (c *Client) Arrivals(ctx context.Context, tenant, route string, idle time.Duration) (*Stream, error) {
	path := "/v1/tenants/" + segment(tenant) + "/arrivals"
	if route != "" {
		path += "?" + url.Values{"route": {route}}.Encode()
	}
	return c.stream(ctx, path, idle)
}

// Predict asks what the patch, as of Patch, would make of the tenant's latest arrivals. It changes
// nothing.
func (c *Client) Predict(ctx context.Context, name string, patch any) (p wire.Prediction, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(name)+"/predict", nil, patch, &p)
	return p, err
}
