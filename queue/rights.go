package queue

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// Scope is a kind of request that a credential allows.
type Scope string

// The scopes.
const (
	ScopeSubmit  Scope = "submit"  // jobs, alone and in batches
	ScopeRead    Scope = "read"    // jobs, lists, answers, event streams and waits
	ScopeCancel  Scope = "cancel"  // waiting jobs
	ScopeReplay  Scope = "replay"  // dead jobs
	ScopeForward Scope = "forward" // requests to routes that forward them
	ScopeWork    Scope = "work"    // reserved: no request needs it yet
)

// Scopes returns all scopes.
func Scopes() []Scope { return append(DefaultScopes(), ScopeWork) }

// DefaultScopes returns the scopes of a credential that names none.
func DefaultScopes() []Scope {
	return []Scope{ScopeSubmit, ScopeRead, ScopeCancel, ScopeReplay, ScopeForward}
}

// Rights limits what a credential may do. A nil pointer is the default. Every nil field is, too.
type Rights struct {
	Scopes   []Scope        `json:"scopes,omitempty"`   // nil: DefaultScopes; empty: none
	Routes   []string       `json:"routes,omitempty"`   // nil: all
	Types    []string       `json:"types,omitempty"`    // of jobs; nil: all
	Networks []netip.Prefix `json:"networks,omitempty"` // of clients; nil: all
}

// Has reports whether requests of the scope are allowed.
func (r *Rights) Has(s Scope) bool {
	if r == nil || r.Scopes == nil {
		return s != "" && s != ScopeWork
	}
	return slices.Contains(r.Scopes, s)
}

// Narrow reports whether some routes or types are excluded.
func (r *Rights) Narrow() bool { return r != nil && (r.Routes != nil || r.Types != nil) }

// AllowsRoute reports whether jobs of the route are allowed.
func (r *Rights) AllowsRoute(name string) bool {
	return r == nil || r.Routes == nil || slices.Contains(r.Routes, name)
}

// AllowsType reports whether jobs of the type are allowed.
func (r *Rights) AllowsType(name string) bool {
	return r == nil || r.Types == nil || slices.Contains(r.Types, name)
}

// From reports whether a client at the address may use the credential.
func (r *Rights) From(a netip.Addr) bool {
	a = a.Unmap().WithZone("")
	return r == nil || r.Networks == nil ||
		slices.ContainsFunc(r.Networks, func(p netip.Prefix) bool { return p.Contains(a) })
}

// encode returns the stored form; empty for the default.
func (r *Rights) encode() string {
	if r == nil {
		return ""
	}
	text, _ := json.Marshal(r) // always possible
	return string(text)
}

// rightsOf decodes the stored form.
func rightsOf(text string) (*Rights, error) {
	if text == "" {
		return nil, nil
	}
	r := new(Rights)
	if err := json.Unmarshal([]byte(text), r); err != nil {
		return nil, fmt.Errorf("the rights of a key: %w", err)
	}
	return r, nil
}
