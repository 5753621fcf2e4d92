package queue

import (
	"context"
	"crypto/sha256"
	"time"
)

// SaveSession keeps an operator's session for the given time. Errors: ErrUnavailable.
func (q *Queue) SaveSession(ctx context.Context, id [sha256.Size]byte, life time.Duration) error {
	return unavailable(q.engine.fast.Set(ctx, sessionKey(id), "1", life).Err())
}

// FindSession returns the remaining time of a session, 0 if there is none. Errors: ErrUnavailable.
func (q *Queue) FindSession(ctx context.Context, id [sha256.Size]byte) (time.Duration, error) {
	left, err := q.engine.fast.PTTL(ctx, sessionKey(id)).Result()
	return max(0, left), unavailable(err) // -2: no such key
}

// EndSession forgets a session. Errors: ErrUnavailable.
func (q *Queue) EndSession(ctx context.Context, id [sha256.Size]byte) error {
	return unavailable(q.engine.fast.Del(ctx, sessionKey(id)).Err())
}
