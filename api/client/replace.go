package client

import (
	"context"
	"net/http"
	"strconv"

	"github.com/7509e464/sluice/api/client/wire"
)

// Replacement holds the new overrides of a tenant for Replace.
type Replacement struct {
	wire.Settings
	Revision int64 // that the tenant must have; see wire.Tenant
	DryRun   bool  // only check, and return the tenant as it would be
}

// Replace is like Put for callers that have read the tenant before. If its revision has changed,
// the error is an *Error with the status 412.
func (c *Client) Replace(ctx context.Context, name string, r Replacement) (t wire.Tenant, err error) {
	path := "/v1/tenants/" + segment(name) + dryRunQuery(r.DryRun)
	h := http.Header{"If-Match": {strconv.Quote(strconv.FormatInt(r.Revision, 10))}}
	_, err = c.call(ctx, http.MethodPut, path, h, r.Settings, &t)
	return t, err
}
