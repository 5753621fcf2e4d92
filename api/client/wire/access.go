package wire

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// KeyRequest is the optional body of POST /v1/tenants/{tenant}/keys.
type KeyRequest struct {
	Name     string    `json:"name,omitempty" maxLength:"255" example:"ci" doc:"Purpose of the key. At most 255 bytes, no control characters."`
	Expires  time.Time `json:"expires_at,omitzero" doc:"When the key expires; absent: after auth.keys.max_age of the configuration, or never without that. It may not be later than that."`
	Scopes   []string  `json:"scopes,omitempty" minItems:"1" maxItems:"6" enum:"submit,read,cancel,replay,forward,work" doc:"What requests with the key may do; absent: all but work. submit: jobs and batches. read: jobs, lists, answers, event streams and waits. cancel and replay: jobs. forward: requests to routes that forward. work is reserved: no request needs it."`
	Routes   []string  `json:"routes,omitempty" minItems:"1" maxItems:"100" doc:"The configured routes whose jobs the key may submit, read, cancel and replay; absent: all."`
	Types    []string  `json:"types,omitempty" minItems:"1" maxItems:"100" doc:"The types of these jobs; absent: all."`
	Networks []string  `json:"networks,omitempty" minItems:"1" maxItems:"100" example:"[\"192.0.2.0/24\"]" doc:"Addresses, or prefixes of them, of the clients that may use the key; absent: all."`
}

// Key is an API key of a tenant, without its secret.
type Key struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Created  time.Time `json:"created_at"`
	Expires  time.Time `json:"expires_at,omitzero" doc:"When the key expires; absent: never. An expired key stays in the list for at least a day."`
	Scopes   []string  `json:"scopes" nullable:"false" doc:"What requests with the key may do."`
	Routes   []string  `json:"routes,omitempty" doc:"The routes of the jobs that they may concern; absent: all."`
	Types    []string  `json:"types,omitempty" doc:"The types of these jobs; absent: all."`
	Networks []string  `json:"networks,omitempty" doc:"The prefixes of addresses of clients that may use the key; absent: all."`
	LastUsed time.Time `json:"last_used_at,omitzero" doc:"When the key was last used, at most a minute behind; absent: never."`
}

// NewKey is a new key with its secret.
type NewKey struct {
	Key
	Secret string `json:"key" doc:"The whole key, to be sent as Authorization: Bearer or X-API-Key. It is returned only once and is not stored."`
}

// KeyList lists the keys of a tenant, the oldest first.
type KeyList struct {
	Items []Key `json:"items" nullable:"false"`
}

// CallbackSecretRequest is the optional body of POST /v1/tenants/{tenant}/callbacks/secrets.
type CallbackSecretRequest struct {
	Kind string `json:"kind,omitempty" enum:"hmac,ed25519" doc:"hmac: signatures v1, which receivers verify with the secret. ed25519: signatures v1a, which they verify with the public key. Absent: hmac."`
}

// CallbackSecret signs the callbacks of a tenant. This has not the secret itself.
type CallbackSecret struct {
	ID        string    `json:"id"`
	Kind      string    `json:"kind" enum:"hmac,ed25519"`
	Created   time.Time `json:"created_at"`
	By        string    `json:"created_by" doc:"Name of the operator who created it."`
	PublicKey string    `json:"public_key,omitempty" doc:"The public key that verifies signatures, whpk_ and base64; only of the kind ed25519."`
}

// NewCallbackSecret is a new secret of callbacks.
type NewCallbackSecret struct {
	CallbackSecret
	Secret string `json:"secret,omitempty" doc:"The secret that verifies signatures, whsec_ and base64; only of the kind hmac. It is returned only once."`
}

// CallbackSecretList lists the secrets of a tenant, the newest first.
type CallbackSecretList struct {
	Items []CallbackSecret `json:"items" nullable:"false"`
}

// CallbackEndpoints are the endpoints that the callbacks of a tenant may go to.
type CallbackEndpoints struct {
	Endpoints []string `json:"endpoints" nullable:"false" maxItems:"50" example:"[\"https://partner.example/hooks/\"]" doc:"Prefixes of URLs: a scheme, a host, perhaps a port, and a path that must match up to the end of one of its segments."`
}

// OperatorRequest is the body of POST /v1/operators.
type OperatorRequest struct {
	Name     string    `json:"name" minLength:"1" maxLength:"255" example:"olaf" doc:"Unique. admin, local and names that begin with oidc: are reserved. At most 255 bytes, no control characters."`
	Role     string    `json:"role" enum:"viewer,operator,admin" doc:"viewer: reads all but what clients wrote. operator: also changes tenants and pools, and reads payloads. admin: also manages operators."`
	Expires  time.Time `json:"expires_at,omitzero" doc:"When the token expires; absent: never."`
	Networks []string  `json:"networks,omitzero" nullable:"false" maxItems:"100" example:"[\"10.1.0.0/16\"]" doc:"Addresses and prefixes from which the token is accepted; absent: any."`
}

// Operator is an operator with a token, without the token.
type Operator struct {
	ID       string    `json:"id"`
	Name     string    `json:"name"`
	Role     string    `json:"role" enum:"viewer,operator,admin"`
	Created  time.Time `json:"created_at"`
	By       string    `json:"created_by" doc:"Name of the operator who created it."`
	Expires  time.Time `json:"expires_at,omitzero" doc:"When the token expires; absent: never. An expired one stays in the list for at least a day."`
	Networks []string  `json:"networks,omitempty" doc:"Prefixes from which the token is accepted; absent: any."`
	Used     time.Time `json:"last_used_at,omitzero" doc:"The last use of the token, at most a minute late; absent: never."`
}

// NewOperator is a new operator with the token.
type NewOperator struct {
	Operator
	Token string `json:"token" doc:"The token, to be sent as Authorization: Bearer. It is returned only once and is not stored."`
}

// OperatorList lists the operators, the oldest first.
type OperatorList struct {
	Items []Operator `json:"items" nullable:"false"`
}

// Revocation is the optional body of POST /v1/tenants/{tenant}/tokens/revoke.
type Revocation struct {
	Subject   string    `json:"subject,omitempty" minLength:"1" maxLength:"255" doc:"The subject (sub) whose tokens are refused; absent: all of the tenant."`
	NotBefore time.Time `json:"not_before,omitzero" doc:"Tokens issued (iat) before this instant are refused, and those without iat; absent: now. It may not be in the future."`
}

// Revoked is the answer to a Revocation.
type Revoked struct {
	Tenant    string    `json:"tenant"`
	Subject   string    `json:"subject,omitempty"`
	NotBefore time.Time `json:"not_before" doc:"The instant in force: the one of the request, or a later one of an earlier request."`
}

// Session is a session of an operator on the dashboard.
type Session struct {
	ID      string    `json:"id" doc:"It does not open the session."`
	Name    string    `json:"name" doc:"Name of the operator."`
	Role    string    `json:"role" enum:"viewer,operator,admin"`
	Address string    `json:"address,omitempty" doc:"Address of the client that signed in."`
	Created time.Time `json:"created_at"`
	Expires time.Time `json:"expires_at" doc:"When the session ends, used or not."`
	Current bool      `json:"current,omitempty" doc:"True for the session of the request."`
}

// SessionList lists sessions, the oldest first.
type SessionList struct {
	Items []Session `json:"items" nullable:"false"`
}

// Self is the operator of a request.
type Self struct {
	Name       string `json:"name" doc:"admin for admin.token, local without a token."`
	Role       string `json:"role" enum:"viewer,operator,admin"`
	Credential string `json:"credential" enum:"token,session,none"`
	Address    string `json:"address,omitempty"`
}

// Guard is a limiter in front of the intake, as configured.
type Guard struct {
	Guard     string      `json:"guard"`
	Algorithm string      `json:"algorithm" example:"sliding-log"`
	Rate      shaper.Rate `json:"rate"`
	Limit     int64       `json:"limit" doc:"Requests of one key at once: the limit of the rate, or the burst."`
	BlockMS   int64       `json:"block_ms,omitempty" doc:"How long a key is refused after it exceeded the limit."`
	By        []string    `json:"by" nullable:"false" doc:"The parts of the key: tenant, guest, endpoint, address, network, route, type."`
	Endpoints []string    `json:"endpoints,omitempty" doc:"Operations that the guard covers; all if absent."`
	Routes    []string    `json:"routes,omitempty" doc:"Counts only jobs for these routes; all if absent."`
	Types     []string    `json:"types,omitempty" doc:"Counts only jobs of these types; all if absent."`
	OnError   string      `json:"on_error" example:"open" doc:"open: requests pass while Redis fails. closed: they are refused."`
	Shadow    bool        `json:"shadow" doc:"The guard refuses nothing, and counts the requests that it would refuse."`
}

// GuardList lists the guards.
type GuardList struct {
	Items []Guard `json:"items" nullable:"false"`
}

// BlockedKey is a key that a guard refuses for a while.
type BlockedKey struct {
	Key    string `json:"key" example:"guest:192.0.2.7"`
	LeftMS int64  `json:"left_ms" doc:"Milliseconds until the key is free."`
}

// BlockedList lists the blocked keys of a guard, those that are free soonest first.
type BlockedList struct {
	Items []BlockedKey `json:"items" nullable:"false"`
}
