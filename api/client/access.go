package client

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// CreateKey makes an API key of the tenant. Only this answer has its secret.
func (c *Client) CreateKey(
	ctx context.Context, tenant string, wanted wire.KeyRequest,
) (k wire.NewKey, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(tenant)+"/keys", nil, wanted, &k)
	return k, err
}

// Keys lists the API keys of the tenant, the oldest first.
func (c *Client) Keys(ctx context.Context, tenant string) (list wire.KeyList, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/tenants/"+segment(tenant)+"/keys", nil, nil, &list)
	return list, err
}

// RevokeKey revokes an API key of the tenant by its id.
func (c *Client) RevokeKey(ctx context.Context, tenant, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/tenants/"+segment(tenant)+"/keys/"+segment(id), nil, nil, nil)
	return err
}

// RevokeTokens has older tokens of the tenant, or of one subject of it, refused.
func (c *Client) RevokeTokens(ctx context.Context, tenant string, what wire.Revocation) (r wire.Revoked, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(tenant)+"/tokens/revoke", nil, what, &r)
	return r, err
}

// CreateCallbackSecret makes a secret that signs the callbacks of the tenant. Only this answer has
// it.
func (c *Client) CreateCallbackSecret(
	ctx context.Context, tenant string, wanted wire.CallbackSecretRequest,
) (s wire.NewCallbackSecret, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/tenants/"+segment(tenant)+"/callbacks/secrets", nil, wanted, &s)
	return s, err
}

// CallbackSecrets lists the secrets of callbacks of the tenant, the newest first.
func (c *Client) CallbackSecrets(ctx context.Context, tenant string) (list wire.CallbackSecretList, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/tenants/"+segment(tenant)+"/callbacks/secrets", nil, nil, &list)
	return list, err
}

// RevokeCallbackSecret revokes a secret of callbacks of the tenant by its id.
func (c *Client) RevokeCallbackSecret(ctx context.Context, tenant, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/tenants/"+segment(tenant)+"/callbacks/secrets/"+segment(id), nil, nil, nil)
	return err
}

// CallbackEndpoints reads the endpoints of callbacks of the tenant.
func (c *Client) CallbackEndpoints(ctx context.Context, tenant string) (e wire.CallbackEndpoints, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/tenants/"+segment(tenant)+"/callbacks/endpoints", nil, nil, &e)
	return e, err
}

// PutCallbackEndpoints replaces the endpoints of callbacks of the tenant.
func (c *Client) PutCallbackEndpoints(
	ctx context.Context, tenant string, wanted wire.CallbackEndpoints,
) (e wire.CallbackEndpoints, err error) {
	_, err = c.call(ctx, http.MethodPut, "/v1/tenants/"+segment(tenant)+"/callbacks/endpoints", nil, wanted, &e)
	return e, err
}

// CreateOperator makes an operator. Only this answer has the token.
func (c *Client) CreateOperator(ctx context.Context, wanted wire.OperatorRequest) (o wire.NewOperator, err error) {
	_, err = c.call(ctx, http.MethodPost, "/v1/operators", nil, wanted, &o)
	return o, err
}

// Operators lists the operators, the oldest first.
func (c *Client) Operators(ctx context.Context) (list wire.OperatorList, err error) {
	_, err = c.call(ctx, http.MethodGet, "/v1/operators", nil, nil, &list)
	return list, err
}

// RevokeOperator revokes the token of an operator by its id.
func (c *Client) RevokeOperator(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodDelete, "/v1/operators/"+segment(id), nil, nil, nil)
	return err
}

// AuditQuery selects entries of the audit. Empty fields select all.
type AuditQuery struct {
	Since, Until           time.Time
	Actor, Action, Subject string // an action that ends with a dot selects all that begin so
	Cursor                 string
	Limit                  int // 0: the server's default
}

// Audit reads a page of the audit, the newest entries first. A page may be empty although there are
// more: follow the cursor.
func (c *Client) Audit(ctx context.Context, q AuditQuery) (page wire.AuditList, err error) {
	query := url.Values{}
	for name, text := range map[string]string{"actor": q.Actor, "action": q.Action, "subject": q.Subject} {
		if text != "" {
			query.Set(name, text)
		}
	}
	for name, t := range map[string]time.Time{"since": q.Since, "until": q.Until} {
		if !t.IsZero() {
			query.Set(name, t.UTC().Format(time.RFC3339Nano))
		}
	}
	_, err = c.call(ctx, http.MethodGet, pagePath("/v1/audit", query, q.Cursor, q.Limit), nil, nil, &page)
	return page, err
}
