package api

import (
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/api/internal/codec"
	"github.com/7509e464/sluice/api/internal/problem"
	"github.com/7509e464/sluice/internal/operators"
	session "github.com/7509e464/sluice/internal/sessions"
)

// getSelf is GET /v1/self.
func (s *Server) getSelf(c *call) (*answer, error) {
	who := operators.Of(c.r.Context())
	return ok(wire.Self{Name: who.Name, Role: string(who.Role), Credential: who.Credential, Address: who.Address}), nil
}

// visible returns the sessions that the operator of a request may see and end.
func (s *Server) visible(c *call) ([]session.Session, error) {
	all, err := s.queue.ListSessions(c.r.Context())
	if err != nil {
		return nil, err
	}
	who := operators.Of(c.r.Context())
	seen := all[:0]
	for _, one := range all {
		if who.Role.May(operators.Admin) || one.Operator == who.ID && one.Name == who.Name {
			seen = append(seen, one)
		}
	}
	return seen, nil
}

// listSessions is GET /v1/sessions.
func (s *Server) listSessions(c *call) (*answer, error) {
	all, err := s.visible(c)
	if err != nil {
		return nil, err
	}
	own, signedIn := s.board.Session(c.r)
	out := wire.SessionList{Items: make([]wire.Session, len(all))}
	for i, one := range all {
		out.Items[i] = wire.Session{
			ID: hex.EncodeToString(one.ID[:]), Name: one.Name, Role: string(one.Role), Address: one.Address,
			Created: codec.UTC(one.Created), Expires: codec.UTC(one.Until), Current: signedIn && own.ID == one.ID,
		}
	}
	return ok(out), nil
}

// endSession is DELETE /v1/sessions/{session}. A session that the operator may not see does not
// exist.
func (s *Server) endSession(c *call) (*answer, error) {
	id, err := hex.DecodeString(c.param("session"))
	if err != nil || len(id) != sha256.Size {
		return nil, noSuchSession
	}
	all, err := s.visible(c)
	if err != nil {
		return nil, err
	}
	for _, one := range all {
		if one.ID != [sha256.Size]byte(id) {
			continue
		}
		if err := s.board.End(c.r.Context(), one.ID); err != nil {
			return nil, err
		}
		s.log.LogAttrs(c.r.Context(), slog.LevelInfo, "session ended", slog.String("of", one.Name),
			slog.String("by", operators.Of(c.r.Context()).Name))
		return &answer{status: http.StatusNoContent}, nil
	}
	return nil, noSuchSession
}

var noSuchSession = problem.UnknownSession.With("it has ended, or is that of another operator")
