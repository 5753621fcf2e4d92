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
	callTimeout = 10 * time.Second // of one call of the provider
	retryAfter  = 5 * time.Second  // between two reads of the provider's metadata that fail
	maxAnswer   = 1 << 20          // bytes of an answer of the provider
	maxGroups   = 10_000
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
	ErrNoName = errors.New("the provider names you by nothing that can be the name of an operator")
)

// Provider signs in at one provider. It is safe for concurrent use.
type Provider struct {
	of     Config
	client *http.Client

	mu     sync.Mutex
	known  *oidc.Provider // nil: its metadata were not read yet
	failed error          // of the last read
	tried  time.Time
}

// New returns a provider, whose metadata are read at the first sign-in: it may start later than
// this process.
func New(c Config) *Provider {
	direct := http.DefaultTransport.(*http.Transport).Clone()
	direct.Proxy = nil // as for all requests of a process
	client := &http.Client{
		Transport: bounded{direct}, Timeout: callTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
	}
	return &Provider{of: c, client: client}
}

// Close closes the connections to the provider.
func (p *Provider) Close() { p.client.CloseIdleConnections() }

var errRedirect = errors.New("the provider must not redirect")

// bounded refuses URLs that anybody on the network could answer, and long answers.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	if rule := auth.KeySetRule(r.URL.String()); rule != "" {
		return nil, errors.New("a URL of the provider " + rule)
	}
	resp, err := b.next.RoundTrip(r)
	if err == nil {
		resp.Body = http.MaxBytesReader(nil, resp.Body, maxAnswer)
	}
	return resp, err
}

// provider returns what the provider's metadata say.
func (p *Provider) provider(ctx context.Context) (*oidc.Provider, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.known != nil:
		return p.known, nil
	case p.failed != nil && time.Since(p.tried) < retryAfter:
		return nil, p.failed
	}
	known, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.of.Issuer)
	if err == nil {
		for _, at := range []string{known.Endpoint().AuthURL, known.Endpoint().TokenURL} {
			if rule := auth.KeySetRule(at); rule != "" {
				err = errors.New("an endpoint in its metadata " + rule)
			}
		}
	}
	if err != nil {
		// The text may have an answer of any length.
		text := withoutURL(err).Error()
		p.failed, p.tried = fmt.Errorf("signon: metadata of the provider: %.200s", text), time.Now()
		return nil, p.failed
	}
	p.known = known
	return known, nil
}

// withoutURL removes the URL, which may hold a code or a secret.
func withoutURL(err error) error {
	var call *url.Error
	if errors.As(err, &call) {
		return call.Err
	}
	return err
}

func (p *Provider) oauth(known *oidc.Provider) *oauth2.Config {
	return &oauth2.Config{
		ClientID: p.of.ClientID, ClientSecret: p.of.ClientSecret, Endpoint: known.Endpoint(), RedirectURL: p.of.Redirect,
		Scopes: append([]string{oidc.ScopeOpenID}, p.of.Scopes...),
	}
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
	return p.oauth(known).AuthCodeURL(derive(raw, "state"), oidc.Nonce(derive(raw, "nonce")),
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
	if answer.Get("code") == "" { // it has an error, such as access_denied
		return operators.Actor{}, ErrRefused
	}
	known, err := p.provider(ctx)
	if err != nil {
		return operators.Actor{}, err
	}
	ctx = oidc.ClientContext(ctx, p.client)
	token, err := p.oauth(known).Exchange(ctx, answer.Get("code"), oauth2.VerifierOption(derive(raw, "verifier")))
	if refused, is := errors.AsType[*oauth2.RetrieveError](err); is && refused.Response.StatusCode < 500 {
		return operators.Actor{}, ErrRefused // its text repeats the request
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
	if claims[p.of.GroupsClaim] == nil || claims[p.of.NameClaim] == nil {
		p.more(ctx, known, token, proof.Subject, claims)
	}
	return p.operator(claims)
}

// more adds the claims that some providers leave out of the token and show on request.
func (p *Provider) more(ctx context.Context, known *oidc.Provider, token *oauth2.Token, subject string, claims map[string]any) {
	info, err := known.UserInfo(ctx, oauth2.StaticTokenSource(token))
	if err != nil || info.Subject != subject {
		return
	}
	further := map[string]any{}
	if info.Claims(&further) != nil {
		return
	}
	for name, value := range further {
		if _, has := claims[name]; !has {
			claims[name] = value
		}
	}
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// operator returns who the claims are of. Names have only characters that cannot look like others.
func (p *Provider) operator(claims map[string]any) (operators.Actor, error) {
	name, _ := claims[p.of.NameClaim].(string)
	if !operators.IsName(name) {
		return operators.Actor{}, ErrNoName
	}
	if verified, said := claims["email_verified"]; p.of.NameClaim == "email" && said && verified != true && verified != "true" {
		return operators.Actor{}, ErrNoName
	}
	groups := append(groupsOf(claims[p.of.GroupsClaim]), Everybody)
	for _, role := range slices.Backward(operators.Roles()) {
		if slices.ContainsFunc(p.of.Groups[role], func(group string) bool { return slices.Contains(groups, group) }) {
			return operators.Actor{Name: operators.SingleSignOn + name, Role: role}, nil
		}
	}
	return operators.Actor{}, ErrNoRole
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
