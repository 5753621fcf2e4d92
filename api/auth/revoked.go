package auth

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/7509e464/sluice/queue"
)

const (
	revokedEvery   = time.Second // between two reads of what is revoked
	revokedTimeout = 2 * time.Second
)

// Revocations are the instants from which tokens are accepted; *queue.Tokens has them. It must be
// safe for concurrent use.
type Revocations interface {
	// NotBefore returns the instants with their revision. While the revision is the known one, it
	// returns no list.
	NotBefore(ctx context.Context, known string) (revision string, list queue.NotBefore, err error)
}

// revoked is what is known of revoked tokens, at most about a second old. While the store does not
// answer, it stays.
type revoked struct {
	from Revocations
	log  *slog.Logger
	list atomic.Pointer[queue.NotBefore] // nil: not read yet
	at   string                          // its revision
}

func newRevoked(ctx context.Context, from Revocations, log *slog.Logger) *revoked {
	r := &revoked{from: from, log: log}
	r.read(ctx)
	go func() {
		tick := time.NewTicker(revokedEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				r.read(ctx)
			case <-ctx.Done():
				return
			}
		}
	}()
	return r
}

func (r *revoked) read(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, revokedTimeout)
	defer cancel()
	at, list, err := r.from.NotBefore(ctx, r.at)
	switch {
	case err != nil:
		r.log.Debug("the revoked tokens cannot be read; those read before stay", "error", err)
	case list != nil || r.list.Load() == nil:
		r.at = at
		r.list.Store(&list)
	}
}

// check refuses a token that is older than those of its tenant or subject that are accepted.
func (r *revoked) check(tenant string, claims jwt.MapClaims) error {
	if r == nil {
		return nil
	}
	list := r.list.Load()
	if list == nil {
		return fmt.Errorf("auth: the revoked tokens were not read yet: %w", queue.ErrUnavailable)
	}
	subject, _ := claims["sub"].(string)
	limit := (*list).Of(tenant, subject)
	if limit.IsZero() {
		return nil
	}
	if issued, err := claims.GetIssuedAt(); err != nil || issued == nil || issued.Before(limit) {
		return refuse(Revoked)
	}
	return nil
}
