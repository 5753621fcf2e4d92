// Package redistest starts real redis-servers for tests: each on a unix socket of its own, in a
// directory of its own, ended with its test. A missing redis-server fails the test; `make test`
// installs it.
package redistest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Server is a redis-server that belongs to one test at a time.
type Server struct {
	t      testing.TB
	dir    string
	socket string
	extra  []string
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a redis-server as Sluice wants it: append-only file, no eviction. It does not wait
// for the disk, for what it has written outlives its process without that. Arguments come after
// ours, so they may change that. It is killed when the test ends.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := prepare(t, args...)
	t.Cleanup(func() {
		if err := s.remove(); err != nil {
			t.Errorf("remove the directory of redis-server: %v", err)
		}
	})
	s.Restart()
	return s
}

// prepare makes the directory of a server that is not started yet.
func prepare(t testing.TB, args ...string) *Server {
	t.Helper()
	// Not t.TempDir: its path may be too long for a socket.
	dir, err := os.MkdirTemp("", "redistest-")
	if err != nil {
		t.Fatalf("directory for redis-server: %v", err)
	}
	return &Server{t: t, dir: dir, socket: filepath.Join(dir, "s"), extra: args}
}

// remove kills the server and removes its directory. A child that writes a copy for a replica there
// outlives the server for a moment.
func (s *Server) remove() error {
	s.Kill()
	err := os.RemoveAll(s.dir)
	for begun := time.Now(); err != nil && time.Since(begun) < 5*time.Second; err = os.RemoveAll(s.dir) {
		time.Sleep(10 * time.Millisecond)
	}
	return err
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
		"--port", "0", "--unixsocket", s.socket, "--dir", s.dir, "--save", "", "--appendonly", "yes", "--appendfsync", "no",
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
	answer := s.ask("PING", time.Second)
	return answer == "+PONG" || strings.HasPrefix(answer, "-NOAUTH") // one that wants a password is up, too
}

// ask sends a command over a connection of its own and returns the line of the answer, empty
// without one.
func (s *Server) ask(command string, within time.Duration) string {
	c, err := net.Dial("unix", s.socket)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }() // it has served its purpose
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return ""
	}
	if _, err := c.Write([]byte(command + "\r\n")); err != nil {
		return ""
	}
	answer, _ := bufio.NewReader(c).ReadString('\n')
	return strings.TrimRight(answer, "\r\n")
}

func (s *Server) log() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// TLS names the files, in PEM, by which a server speaks TLS, also with other servers. It demands
// certificates of the CA. The zero value is for a server without TLS.
type TLS struct{ Cert, Key, CA string }

// listen has a server listen at the port.
func (with TLS) listen(port int) []string {
	if with.CA == "" {
		return []string{"--bind", "127.0.0.1", "--port", strconv.Itoa(port)}
	}
	return []string{"--bind", "127.0.0.1", "--port", "0", "--tls-port", strconv.Itoa(port), "--tls-cert-file", with.Cert,
		"--tls-key-file", with.Key, "--tls-ca-cert-file", with.CA, "--tls-replication", "yes"}
}

// StartSentinel starts a sentinel that fails a master over by itself, and returns its address.
func StartSentinel(t testing.TB, name string, masterPort int) string {
	t.Helper()
	return StartTLSSentinel(t, name, masterPort, TLS{})
}

// StartTLSSentinel is StartSentinel for one that speaks TLS with clients and with the master.
func StartTLSSentinel(t testing.TB, name string, masterPort int, with TLS) string {
	t.Helper()
	dir, port := t.TempDir(), freePort(t)
	path := filepath.Join(dir, "sentinel.conf")
	text := strings.NewReplacer(" --", "\n", "--", "").Replace(strings.Join(with.listen(port), " "))
	text += fmt.Sprintf("\ndir %q\nlogfile %q\nsentinel monitor %s 127.0.0.1 %d 1\n"+
		"sentinel failover-timeout %[3]s 4000\n", dir, filepath.Join(dir, "log"), name, masterPort)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("redis-server", path, "--sentinel")
	if err := cmd.Start(); err != nil {
		t.Fatalf("redis-server is needed by the tests (make test installs it): %v", err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // an error means that it has ended already
		_ = cmd.Wait()
	})
	return fmt.Sprint("127.0.0.1:", port)
}

// StartTLS is Start for a server that others reach by a port of 127.0.0.1, by TLS.
func StartTLS(t testing.TB, with TLS) (s *Server, port int) {
	t.Helper()
	port = freePort(t)
	return Start(t, with.listen(port)...), port
}

// StartTCP is Start for a server that others reach by a port of 127.0.0.1, too.
func StartTCP(t testing.TB, args ...string) (s *Server, port int) {
	t.Helper()
	port = freePort(t)
	return startTCP(t, port, args...), port
}

func startTCP(t testing.TB, port int, args ...string) *Server {
	t.Helper()
	return Start(t, append([]string{"--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--repl-diskless-sync-delay", "0"}, args...)...)
}
