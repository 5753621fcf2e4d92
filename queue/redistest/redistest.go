// Package redistest starts real redis-servers for tests: each on a unix socket of its own, in a
// directory of its own, ended with its test. A missing redis-server fails the test; `make test`
// installs it.
package redistest

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// Server is a redis-server that belongs to one test.
type Server struct {
	t      testing.TB
	dir    string
	socket string
	extra  []string
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a redis-server as Sluice wants it: append-only file (fsync always), no eviction.
// Arguments come after ours, so they may change that. It is killed when the test ends.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	// Not t.TempDir: its path may be too long for a socket.
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		t.Fatalf("directory for redis-server: %v", err)
	}
	s := &Server{t: t, dir: dir, socket: filepath.Join(dir, "s"), extra: args}
	t.Cleanup(func() {
		s.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the directory of redis-server: %v", err)
		}
	})
	s.Restart()
	return s
}

// URL returns the URL of the server.
func (s *Server) URL() string { return "unix://" + s.socket }

// Kill ends the server with SIGKILL and waits for its end.
func (s *Server) Kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill() // an error means that it has ended already
	<-s.exited
	s.cmd = nil
}

// Freeze stops the server until Thaw: connections stay open and nothing is answered.
func (s *Server) Freeze() { s.signal(syscall.SIGSTOP) }

// Thaw continues a frozen server.
func (s *Server) Thaw() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(which syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(which); err != nil {
		s.t.Fatalf("send %v to redis-server: %v", which, err)
	}
}

// Restart starts the server on its data again, after a Kill, and waits until it answers.
func (s *Server) Restart() {
	s.t.Helper()
	args := append([]string{
		"--port", "0", "--unixsocket", s.socket, "--dir", s.dir, "--save", "", "--appendonly", "yes",
		"--appendfsync", "always",
		"--maxmemory-policy", "noeviction", "--logfile", filepath.Join(s.dir, "log"),
	}, s.extra...)
	cmd := exec.Command("redis-server", args...)
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("redis-server is needed by the tests (make test installs it): %v", err)
	}
	s.cmd, s.exited = cmd, make(chan struct{})
	go func() {
		_ = cmd.Wait() // ended by Kill
		close(s.exited)
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !s.answers() {
		select {
		case <-ticker.C:
		case <-s.exited:
			s.t.Fatalf("redis-server ended at start: %s", s.log())
		case <-ctx.Done():
			s.t.Fatalf("redis-server did not answer: %s", s.log())
		}
	}
}

func (s *Server) answers() bool {
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }() // only asked a question
	if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return false
	}
	if _, err := c.Write([]byte("PING\r\n")); err != nil {
		return false
	}
	answer := make([]byte, 7)
	n, _ := c.Read(answer)
	// A server that requires a password is up, too.
	return string(answer[:n]) == "+PONG\r\n" || string(answer[:n]) == "-NOAUTH"
}

func (s *Server) log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}
