package api

import (
	"context"
	"crypto/sha256"
	"time"
)

func (f *fakeQueue) SaveSession(_ context.Context, id [sha256.Size]byte, life time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == nil {
		f.sessions[id] = time.Now().Add(life)
	}
	return f.failure
}

func (f *fakeQueue) FindSession(_ context.Context, id [sha256.Size]byte) (time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return max(0, time.Until(f.sessions[id])), f.failure
}

func (f *fakeQueue) EndSession(_ context.Context, id [sha256.Size]byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == nil {
		delete(f.sessions, id)
	}
	return f.failure
}

// SessionsAsked is the number of calls of FindSession.
func (f *fakeQueue) SessionsAsked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}
