// Package signon signs operators in at an OpenID Connect provider: the code flow of OpenID Connect
// Core 1.0 (section 3.1) with PKCE (RFC 7636), state and nonce.
package signon

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/internal/operators"
)

const (
	retryAfter  = 5 * time.Second // between two reads of the provider's metadata that fail
	readEvery   = time.Hour       // after which they are read again: endpoints move
	maxAnswer   = 1 << 20         // bytes of an answer of the provider
	maxGroups   = 10_000
	maxEnding   = 32              // sign-ins that end at once: strangers can make them, with any code
	maxSkew     = 5 * time.Minute // that the provider's clock is ahead, as nbf may be
	ticketBytes = 32
)

// Everybody is the name of the group that all have who can sign in.
const Everybody = "*"

// Config holds the settings of a Provider. All but ClientSecret and Scopes are required.
type Config struct {
	Issuer       string // as the provider's metadata name it
	ClientID     string
	ClientSecret string   // empty: a client without a secret, whose proof is PKCE alone
	Redirect     string   // URL to which the provider sends the browser back
	Scopes       []string // beside openid
	NameClaim    string   // whose value, after "oidc:", is the name of the operator
	GroupsClaim  string   // whose values are the operator's groups
	Groups       map[operators.Role][]string
	Timeout      time.Duration // of all calls of the provider for one Begin or End
}

// Errors of End. Its other errors are of the provider or the network.
var (
	// ErrElsewhere: the answer belongs to no sign-in of this browser.
	ErrElsewhere = errors.New("the sign-in began in another browser, or more than ten minutes ago")
	// ErrRefused: the provider's answer is no proof of who signed in.
	ErrRefused = errors.New("the provider has not confirmed who you are")
	// ErrNoRole: none of the operator's groups has a role.
	ErrNoRole = errors.New("none of your groups at the provider has a role here")
	// ErrNoName: the claim of the name cannot be the name of an operator.
	ErrNoName = errors.New("the provider gives you no name that an operator can have: it has only letters, digits and ._@+-, " +
		"and is the claim that admin.oidc.name_claim names")
	// ErrUnverified: the claim of the name is an address that the provider has not verified.
	ErrUnverified = errors.New("the provider says that your address is not verified: have it verified there, or set admin.oidc.name_claim")
)

// Provider signs in at one provider. It is safe for concurrent use.
type Provider struct {
	of     Config
	client *http.Client
	ending chan struct{} // has one for each End that calls the provider

	mu     sync.Mutex
	known  *metadata // nil: they were not read yet
	read   time.Time // when
	failed error     // of the last read
	tried  time.Time // when it failed
}

// metadata is what the provider says of itself.
type metadata struct {
	*oidc.Provider
	oauth oauth2.Config
	iss   bool // it sends its name beside each code (RFC 9207)
}

// New returns a provider, whose metadata are read at the first sign-in: it may start later than
// this process.
func New(c Config) *Provider {
	direct := http.DefaultTransport.(*http.Transport).Clone()
	direct.Proxy = nil // as for all requests of a process
	client := &http.Client{
		Transport: bounded{direct}, Timeout: c.Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
	}
	return &Provider{of: c, client: client, ending: make(chan struct{}, maxEnding)}
}

// Close closes the connections to the provider.
func (p *Provider) Close() { p.client.CloseIdleConnections() }

var errRedirect = errors.New("the provider must not redirect")

// bounded refuses URLs that anybody on the network could answer, and long answers. The text of an
// answer that is a fault of the provider may repeat the request, so it is dropped.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if rule := auth.KeySetRule(r.URL.String()); rule != "" {
		return nil, errors.New("a URL of the provider " + rule)
	}
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= http.StatusInternalServerError {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("it answered %d", resp.StatusCode)
	}
	resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	return resp, nil
}

// provider returns what the provider's metadata say. The read is for all sign-ins, so it goes on if
// the browser that began it leaves. If it fails, those that were read before stay.
func (p *Provider) provider(ctx context.Context) (*metadata, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := p.known != nil && time.Since(p.read) < readEvery
	if !fresh && (p.failed == nil || time.Since(p.tried) >= retryAfter) {
		known, err := p.metadata(context.WithoutCancel(ctx))
		if err == nil {
			p.known, p.read, p.failed = known, time.Now(), nil
		} else { // whose text may have an answer of any length
			p.failed, p.tried = fmt.Errorf("signon: metadata of the provider: %.200s", withoutURL(err).Error()), time.Now()
		}
	}
	if p.known == nil {
		return nil, p.failed
	}
	return p.known, nil
}

func (p *Provider) metadata(ctx context.Context) (*metadata, error) {
	known, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.of.Issuer)
	if err != nil {
		return nil, err
	}
	endpoint := known.Endpoint()
	for _, at := range []string{endpoint.AuthURL, endpoint.TokenURL} {
		if rule := auth.KeySetRule(at); rule != "" {
			return nil, errors.New("an endpoint in its metadata " + rule)
		}
	}
	var more struct {
		Methods []string `json:"token_endpoint_auth_methods_supported"`
		Iss     bool     `json:"authorization_response_iss_parameter_supported"`
	}
	if err := known.Claims(&more); err != nil {
		return nil, err
	}
	// Of the two ways to send the secret one is chosen. To try both would double each wrong code.
	endpoint.AuthStyle = oauth2.AuthStyleInHeader
	basic, post := slices.Contains(more.Methods, "client_secret_basic"), slices.Contains(more.Methods, "client_secret_post")
	if p.of.ClientSecret == "" || post && !basic {
		endpoint.AuthStyle = oauth2.AuthStyleInParams
	}
	return &metadata{known, oauth2.Config{
		ClientID: p.of.ClientID, ClientSecret: p.of.ClientSecret, Endpoint: endpoint, RedirectURL: p.of.Redirect,
		Scopes: append([]string{oidc.ScopeOpenID}, p.of.Scopes...),
	}, more.Iss}, nil
}

// withoutURL removes the URL, which may hold a code or a secret.
func withoutURL(err error) error {
	var call *url.Error
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

// refusals are the errors that providers name (RFC 6749, OpenID Connect Core 3.1.2.6).
var refusals = []string{
	"access_denied", "account_selection_required", "consent_required", "interaction_required", "invalid_client",
	"invalid_grant", "invalid_request", "invalid_scope", "login_required", "server_error", "temporarily_unavailable",
	"unauthorized_client", "unsupported_grant_type", "unsupported_response_type",
}

// refused is ErrRefused with the provider's reason for the log. Other words than those of refusals
// may repeat the request, or be of a stranger.
func refused(code string) error {
	if !slices.Contains(refusals, code) {
		code = "an unknown error"
	}
	return fmt.Errorf("%w: it says %s", ErrRefused, code)
}

// Begin returns the URL at which the operator signs in, and a ticket that only the browser must
// keep, for End. Nothing is stored, so any process can end the sign-in.
func (p *Provider) Begin(ctx context.Context) (to, ticket string, err error) {
	known, err := p.provider(ctx)
	if err != nil {
		return "", "", err
	}
	raw := make([]byte, ticketBytes)
	_, _ = rand.Read(raw) // never fails
	return known.oauth.AuthCodeURL(derive(raw, "state"), oidc.Nonce(derive(raw, "nonce")),
		oauth2.S256ChallengeOption(derive(raw, "verifier"))), base64.RawURLEncoding.EncodeToString(raw), nil
}

// derive makes the state, the nonce and the verifier of a ticket: 43 characters of base64url, which
// say nothing about the ticket and each other.
func derive(ticket []byte, label string) string {
	mac := hmac.New(sha256.New, ticket)
	mac.Write([]byte(label))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// End takes what the provider sent the browser back with, and returns the operator: its name and
// role.
func (p *Provider) End(ctx context.Context, ticket string, answer url.Values) (operators.Actor, error) {
	raw, err := base64.RawURLEncoding.Strict().DecodeString(ticket)
	if err != nil || len(raw) != ticketBytes || !same(answer.Get("state"), derive(raw, "state")) {
		return operators.Actor{}, ErrElsewhere
	}
	if issuer, named := answer["iss"]; named && (len(issuer) != 1 || issuer[0] != p.of.Issuer) { // RFC 9207
		return operators.Actor{}, ErrElsewhere
	}
	if answer.Get("code") == "" || answer.Has("error") {
		return operators.Actor{}, refused(answer.Get("error"))
	}
	ctx, cancel := context.WithTimeout(oidc.ClientContext(ctx, p.client), p.of.Timeout)
	defer cancel()
	select {
	case p.ending <- struct{}{}:
		defer func() { <-p.ending }()
	case <-ctx.Done():
		return operators.Actor{}, fmt.Errorf("signon: %d other sign-ins wait for the provider", maxEnding)
	}
	known, err := p.provider(ctx)
	if err != nil {
		return operators.Actor{}, err
	}
	if known.iss && !answer.Has("iss") {
		return operators.Actor{}, ErrElsewhere
	}
	token, err := known.oauth.Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(derive(raw, "verifier")))
	if no, is := errors.AsType[*oauth2.RetrieveError](err); is {
		return operators.Actor{}, refused(no.ErrorCode)
	}
	if err != nil {
		return operators.Actor{}, fmt.Errorf("signon: token of the provider: %w", withoutURL(err))
	}
	text, _ := token.Extra("id_token").(string)
	proof, err := known.VerifierContext(ctx, &oidc.Config{ClientID: p.of.ClientID}).Verify(ctx, text)
	if err != nil {
		return operators.Actor{}, fmt.Errorf("%w: %w", ErrRefused, withoutURL(err))
	}
	if !same(proof.Nonce, derive(raw, "nonce")) {
		return operators.Actor{}, ErrElsewhere
	}
	claims := map[string]any{}
	if err := proof.Claims(&claims); err != nil {
		return operators.Actor{}, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if fault := p.fault(proof, claims["azp"]); fault != "" {
		return operators.Actor{}, fmt.Errorf("%w: the ID token %s", ErrRefused, fault)
	}
	if claims[p.of.GroupsClaim] == nil || claims[p.of.NameClaim] == nil {
		if err := more(ctx, known.Provider, token, proof.Subject, claims); err != nil {
			return operators.Actor{}, err
		}
	}
	return p.operator(claims)
}

// fault returns the rule of OpenID Connect Core 3.1.3.7 that an ID token breaks, of those that
// Verify does not check; empty if none.
func (p *Provider) fault(proof *oidc.IDToken, party any) string {
	switch {
	case proof.Subject == "":
		return "has no sub"
	case proof.IssuedAt.IsZero():
		return "has no iat"
	case time.Until(proof.IssuedAt) > maxSkew:
		return "has an iat in the future"
	case party == nil && len(proof.Audience) > 1:
		return "is for several clients, and has no azp"
	case party != nil && party != any(p.of.ClientID):
		return "has the azp of another client"
	}
	return ""
}

// more adds the claims that some providers leave out of the token and show on request. A refusal
// adds none. A fault of the provider is an error: without its groups an operator would have a lower
// role for the whole session.
func more(ctx context.Context, known *oidc.Provider, token *oauth2.Token, subject string, claims map[string]any) error {
	info, err := known.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if call, is := errors.AsType[*url.Error](err); is {
		return fmt.Errorf("signon: userinfo of the provider: %w", call.Err)
	}
	if err != nil || info.Subject != subject {
		return nil
	}
	further := map[string]any{}
	if info.Claims(&further) != nil {
		return nil
	}
	if claims["email"] == nil { // whether it is verified, who names it says
		delete(claims, "email_verified")
	}
	for name, value := range further {
		if _, has := claims[name]; !has {
			claims[name] = value
		}
	}
	return nil
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// operator returns who the claims are of. Names have only characters that cannot look like others.
func (p *Provider) operator(claims map[string]any) (operators.Actor, error) {
	name, _ := claims[p.of.NameClaim].(string)
	if !operators.IsName(name) {
		return operators.Actor{}, fmt.Errorf("%w: the claim %s %s", ErrNoName, p.of.NameClaim, operators.NameRule)
	}
	if verified, said := claims["email_verified"]; p.of.NameClaim == "email" && said && verified != true && verified != "true" {
		return operators.Actor{}, fmt.Errorf("%w (the email of %s)", ErrUnverified, name)
	}
	groups := append(groupsOf(claims[p.of.GroupsClaim]), Everybody)
	for _, role := range slices.Backward(operators.Roles()) {
		if slices.ContainsFunc(p.of.Groups[role], func(group string) bool { return slices.Contains(groups, group) }) {
			return operators.Actor{Name: operators.SingleSignOn + name, Role: role}, nil
		}
	}
	return operators.Actor{}, fmt.Errorf("%w: %s, who has %d groups", ErrNoRole, name, len(groups)-1)
}

// groupsOf reads a claim that is a list of texts, or one text. A group that is named "*" is none:
// that name is for everybody.
func groupsOf(claim any) (groups []string) {
	add := func(value any) {
		if text, is := value.(string); is && text != Everybody && len(groups) < maxGroups {
			groups = append(groups, text)
		}
	}
	if list, is := claim.([]any); is {
		for _, one := range list {
			add(one)
		}
		return groups
	}
	add(claim)
	return groups
}

// ScopeRule returns the rule that the name of a scope breaks, empty if none (RFC 6749, section
// 3.3).
func ScopeRule(scope string) string {
	if scope == "" || strings.ContainsFunc(scope, func(r rune) bool { return r <= ' ' || r > '~' || r == '"' || r == '\\' }) {
		return "must be visible ASCII without quotes and backslashes"
	}
	return ""
}
