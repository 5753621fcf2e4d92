package audit

import (
	"fmt"
	"io"
	"os"
	"sync"
)

// Values of the setting audit.log that are no file.
const (
	NoLines = "off"
	Stdout  = "stdout"
)

// OpenLines opens what the setting audit.log names; nil for NoLines. Close it after the Log.
func OpenLines(setting string) (io.WriteCloser, error) {
	switch setting {
	case NoLines, "":
		return nil, nil
	case Stdout:
		return stdout{}, nil
	}
	f := &file{path: setting}
	if err := f.open(); err != nil {
		return nil, err
	}
	return f, nil
}

type stdout struct{}

func (stdout) Write(b []byte) (int, error) { return os.Stdout.Write(b) } //nolint:wrapcheck // as of os

func (stdout) Close() error { return nil }

// file appends to the file at a path. It opens the path again where another file is there, or none:
// a program that rotates logs has renamed it.
type file struct {
	path string
	mu   sync.Mutex
	now  *os.File
}

func (f *file) open() error {
	opened, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("audit.log: %w", err)
	}
	if f.now != nil {
		_ = f.now.Close()
	}
	f.now = opened
	return nil
}

// Write writes a line.
func (f *file) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := os.Stat(f.path)
	mine, mineErr := f.now.Stat()
	if err != nil || mineErr != nil || !os.SameFile(at, mine) {
		if err := f.open(); err != nil {
			return 0, err
		}
	}
	n, err := f.now.Write(line)
	if err != nil {
		return n, fmt.Errorf("audit.log: %w", err)
	}
	return n, nil
}

// Close closes the file.
func (f *file) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.now.Close(); err != nil {
		return fmt.Errorf("audit.log: %w", err)
	}
	return nil
}
