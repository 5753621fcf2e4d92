package client

import (
	"context"
	"net/http"
	"net/url"

	"github.com/7509e464/sluice/api/client/wire"
)

// Pools lists the pools of the configuration, by name.
func (c *Client) Pools(ctx context.Context) (list wire.PoolList, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/pools", nil, nil, &list)
	return list, err
}

// Pool reads a pool's policy and figures.
func (c *Client) Pool(ctx context.Context, name string) (p wire.Pool, err error) {
	_, err = c.call(ctx, http.MethodGet, poolPath(name, ""), nil, nil, &p)
	return p, err
}

// PatchPool changes some of a pool's settings. The patch is a JSON merge patch: wire.PoolSettings
// for values, a map with nil values to reset settings. A dry run only checks it, and returns the
// pool as it would be.
func (c *Client) PatchPool(ctx context.Context, name string, patch any, dryRun bool) (p wire.Pool,
	err error) {
	_, err = c.call(ctx, http.MethodPatch, poolPath(name, dryRunQuery(dryRun)), nil, patch, &p)
	return p, err
}

// PutPool replaces all of a pool's overrides.
func (c *Client) PutPool(ctx context.Context, name string, s wire.PoolSettings) (p wire.Pool, err error) {
	_, err = c.call(ctx, http.MethodPut, poolPath(name, ""), nil, s, &p)
	return p, err
}

// PausePool keeps the jobs of the pool from leaving.
func (c *Client) PausePool(ctx context.Context, name, reason string) (p wire.Pool, err error) {
	_, err = c.call(ctx, http.MethodPost, poolPath(name, "/pause"), nil, wire.Reason{Reason: reason}, &p)
	return p, err
}

// ResumePool ends a pause.
func (c *Client) ResumePool(ctx context.Context, name, reason string) (p wire.Pool, err error) {
	_, err = c.call(ctx, http.MethodPost, poolPath(name, "/resume"), nil, wire.Reason{Reason: reason}, &p)
	return p, err
}

// UnholdPool ends the hold of the pool.
func (c *Client) UnholdPool(ctx context.Context, name, reason string) (p wire.Pool, err error) {
	_, err = c.call(ctx, http.MethodPost, poolPath(name, "/unhold"), nil, wire.Reason{Reason: reason}, &p)
	return p, err
}

// EndPoolCharge ends the hold of the pool, and its wait for costs that were charged.
func (c *Client) EndPoolCharge(ctx context.Context, name, reason string) (p wire.Pool, err error) {
	_, err = c.call(ctx, http.MethodPost, poolPath(name, "/unhold"), nil, wire.Unhold{Reason: reason, Charge: true}, &p)
	return p, err
}

// PoolHistory reads the last changes of a pool's settings, the newest first.
func (c *Client) PoolHistory(ctx context.Context, name string) (h wire.History, err error) {
	_, err = c.call(ctx, http.MethodGet, poolPath(name, "/history"), nil, nil, &h)
	return h, err
}

// PoolFlows lists flows that wait in a pool, those that may leave next first. A limit of 0 is the
// server's.
func (c *Client) PoolFlows(ctx context.Context, name string, limit int) (f wire.PoolFlows, err error) {
	_, err = c.call(ctx, http.MethodGet, pagePath(poolPath(name, "/flows"), url.Values{}, "", limit), nil,
		nil, &f)
	return f, err
}

func poolPath(name, rest string) string { return "/v1/pools/" + segment(name) + rest }

func dryRunQuery(dryRun bool) string {
	if dryRun {
		return "?dry_run=true"
	}
	return ""
}
