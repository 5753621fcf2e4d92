package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// Arrivals opens the stream of the tenant's arrivals at this server, from now on; with a route,
// only those for that route. Its events are named "arrivals" and have wire.Arrivals as data. The
// transport of the client must not bound the time of a whole answer. A stream that is silent for
// idle ends with ErrQuiet; the server sends a heartbeat every 15 s.
func (c *Client) Arrivals(ctx context.Context, tenant, route string, idle time.Duration) (*Stream, error) {
	path := "/v1/tenants/" + segment(tenant) + "/arrivals"
	if route != "" {
		path += "?" + url.Values{"route": {route}}.Encode()
	}
	return c.stream(ctx, path, idle)
}

// Predict simulates the tenant's latest arrivals with a patch, as of Patch. It changes nothing.
func (c *Client) Predict(ctx context.Context, name string, patch any) (p wire.Prediction, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(name)+"/predict", nil, patch, &p)
	return p, err
}
