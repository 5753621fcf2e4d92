package queuetest

import (
	"bytes"
	"log/slog"
	"sync"
)

// Log is a log that a test reads while others write it. Its zero value is empty.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write appends to the log.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Logger returns a logger that writes lines of key=value pairs from a level on.
func (l *Log) Logger(from slog.Leveler) *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: from}))
}
