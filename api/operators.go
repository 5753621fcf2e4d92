package api

import (
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/7509e464/sluice/api/auth"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/contract"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
)

// allow refuses an operation of the admin listener to an operator whose role does not suffice.
func allow(r *http.Request, op contract.Operation) error {
	if slices.Contains(openPaths, op.Path) {
		return nil
	}
	return allowRole(r, op.LeastRole())
}

func allowRole(r *http.Request, least operators.Role) error {
	if actor := operators.Of(r.Context()); !actor.Role.May(least) {
		return problem.Forbidden.With("this needs the role " + string(least) + "; " + actor.Name + " has the role " +
			string(actor.Role))
	}
	return nil
}

// shown is the body of an answer, or the data of an event, as the role of the operator allows.
func shown(r *http.Request, body any) any {
	if operators.Of(r.Context()).Role.May(operators.Operator) {
		return body
	}
	return codec.ForViewer(body)
}

// restrict serves a page of the admin listener that is no operation.
func restrict(least operators.Role, page http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := allowRole(r, least); err != nil {
			problem.Of(err).Write(w, r)
			return
		}
		page.ServeHTTP(w, r)
	})
}

// holder returns the operator who has the token.
func (s *Server) holder(r *http.Request, text string) (operators.Actor, *problem.Problem) {
	wrong := func() *problem.Problem {
		if many := s.cfg.Guesses.Wrong(auth.PeerNetwork(r.RemoteAddr)); many != nil {
			return problem.Of(many)
		}
		return unknownToken()
	}
	token, ok := operators.ParseToken(text)
	if !ok {
		return operators.Actor{}, wrong()
	}
	account, err := s.operators.Find(r.Context(), token.ID(), func() error {
		return s.cfg.Guesses.Allow(r.Context(), token.ID(), func() string { return auth.PeerNetwork(r.RemoteAddr) })
	})
	switch {
	case errors.Is(err, operators.ErrUnknown):
		return operators.Actor{}, wrong()
	case err != nil:
		return operators.Actor{}, problem.Of(err)
	case !token.Opens(account):
		return operators.Actor{}, wrong()
	case account.Expired(time.Now()):
		return operators.Actor{}, unknownToken()
	}
	return s.actor(r, account, "token")
}

// signsIn returns the operator whose token was given to the form of the dashboard.
func (s *Server) signsIn(r *http.Request, token string) (operators.Actor, error) {
	actor := operators.Actor{Name: operators.AdminName, Role: operators.Admin, Address: text(s.clientIP(r))}
	if s.cfg.AdminToken == "" || !equal(token, s.cfg.AdminToken) {
		var p *problem.Problem
		if actor, p = s.holder(r, token); p != nil {
			return operators.Actor{}, p
		}
	}
	noteSignIn(r, actor)
	return actor, nil
}

// noteSignIn tells the audit who a request has signed in.
func noteSignIn(r *http.Request, actor operators.Actor) {
	if who, audited := r.Context().Value(signingKey{}).(*operators.Actor); audited {
		*who = actor
	}
}

// actor is the operator of an account, where its networks allow the client's address.
func (s *Server) actor(r *http.Request, a operators.Account, credential string) (operators.Actor, *problem.Problem) {
	address := s.clientIP(r)
	if !a.From(address) {
		return operators.Actor{}, problem.Forbidden.With("the networks of the operator do not contain the address of the client")
	}
	s.operators.Use(r.Context(), a)
	return operators.Actor{ID: a.ID, Name: a.Name, Role: a.Role, Address: text(address), Credential: credential}, nil
}

// stillOperator reports whether the request would be accepted again, of the same operator.
func (s *Server) stillOperator(r *http.Request) bool {
	actor, p := s.operator(r)
	return p == nil && actor.Name == operators.Of(r.Context()).Name && actor.ID == operators.Of(r.Context()).ID
}

// text is an address; empty for none.
func text(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return address.String()
}

// unknownToken is the answer to a request without a valid credential.
func unknownToken() *problem.Problem {
	return problem.Unauthorized.With("send the admin token, or the token of an operator, as Authorization: Bearer; "+
		onAdmin).SetHeader("WWW-Authenticate", `Bearer realm="sluice admin"`)
}

// createOperator is POST /v1/operators. Only this answer contains the token.
func (s *Server) createOperator(c *call) (*answer, error) {
	account, err := codec.DecodeOperator(c.body)
	if err != nil {
		return nil, err
	}
	token := operators.NewToken()
	account.ID, account.Hash = token.ID(), token.Hash()
	account.Created = time.Now().UTC().Truncate(time.Millisecond)
	account.By = operators.Of(c.r.Context()).Name
	account.Expires = account.Expires.Truncate(time.Millisecond)
	if err := s.operators.Create(c.r.Context(), account); err != nil {
		return nil, err
	}
	c.about(account.Name)
	c.changed(nil, codec.Operator(account))
	s.log.LogAttrs(c.r.Context(), slog.LevelInfo, "operator created", slog.String("operator", account.ID),
		slog.String("name", account.Name), slog.String("role", string(account.Role)), slog.String("by", account.By))
	return &answer{status: http.StatusCreated,
		body: wire.NewOperator{Operator: codec.Operator(account), Token: token.Reveal()}}, nil
}

// listOperators is GET /v1/operators.
func (s *Server) listOperators(c *call) (*answer, error) {
	all, err := s.operators.List(c.r.Context())
	if err != nil {
		return nil, err
	}
	out := wire.OperatorList{Items: make([]wire.Operator, len(all))}
	for i, a := range all {
		out.Items[i] = codec.Operator(a)
	}
	return ok(out), nil
}

// revokeOperator is DELETE /v1/operators/{operator}.
func (s *Server) revokeOperator(c *call) (*answer, error) {
	id := c.param("operator")
	if !codec.IsID(id) {
		return nil, operators.ErrUnknown
	}
	account, err := s.operators.Revoke(c.r.Context(), id)
	if err != nil {
		return nil, err
	}
	c.about(account.Name)
	c.changed(codec.Operator(account), nil)
	s.log.LogAttrs(c.r.Context(), slog.LevelInfo, "operator revoked", slog.String("operator", account.ID),
		slog.String("name", account.Name), slog.String("by", operators.Of(c.r.Context()).Name))
	return &answer{status: http.StatusNoContent}, nil
}
