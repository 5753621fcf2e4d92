// Package operators says who acts on the admin listener, and what they may do.
package operators

import (
	"context"
	"slices"
)

// Role is what an operator may do. Each role may also do what those before it may.
type Role string

// The roles.
const (
	Viewer   Role = "viewer"   // read all but what clients wrote
	Operator Role = "operator" // change tenants and pools, read payloads
	Admin    Role = "admin"    // make operators, read the audit, erase tenants
)

// Roles returns all roles, the least first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// May reports whether the role may do what needs at least the other one. An unknown role may do
// nothing, and nobody may do what needs one.
func (r Role) May(least Role) bool {
	need := slices.Index(Roles(), least)
	return need >= 0 && slices.Index(Roles(), r) >= need
}

// Actor is who sent a request to the admin listener.
type Actor struct {
	ID         string // of the operator; empty for admin.token and without a token
	Name       string // unique: admin for admin.token, local without a token
	Role       Role
	Address    string // of the client, without its port
	Credential string // token, session or none
}

type actorKey struct{}

// With returns a context whose request the actor sent.
func With(ctx context.Context, a Actor) context.Context { return context.WithValue(ctx, actorKey{}, a) }

// Of returns who sent the request of a context. The zero Actor, who may do nothing, means that
// nobody is known.
func Of(ctx context.Context) Actor {
	a, _ := ctx.Value(actorKey{}).(Actor)
	return a
}
