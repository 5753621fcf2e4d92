package api

import (
	"context"
	"crypto/sha256"
	"maps"
	"slices"

	session "github.com/7509e464/sluice/internal/sessions"
)

func (f *fakeQueue) SaveSession(_ context.Context, made session.Session) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.failure == nil {
		f.sessions[made.ID] = made
	}
	return f.failure
}

func (f *fakeQueue) FindSession(_ context.Context, id [sha256.Size]byte) (session.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	return f.sessions[id], f.failure
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

func (f *fakeQueue) ListSessions(context.Context) ([]session.Session, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Collect(maps.Values(f.sessions)), f.failure
}
