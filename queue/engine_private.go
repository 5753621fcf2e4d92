package queue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"github.com/7509e464/sluice/queue/subprocess"
)

// Limits of the private redis-server.
const (
	startLimit    = 30 * time.Second // loading a large append-only file takes long
	stopLimit     = 10 * time.Second
	maxSocketPath = 100 // bytes; the system allows 104 to 108
)

// openPrivate starts a redis-server of our own on a unix socket, with its append-only file in the data directory, which it locks so that no
// two processes write there.
func openPrivate(ctx context.Context, program string, o EngineOptions) (*Engine, error) {
	dir, err := filepath.Abs(o.DataDir)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	unlock, err := lockDir(dir)
	if err != nil {
		return nil, err
	}
	socketDir, err := os.MkdirTemp("", "sluice-")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("socket directory: %w", err), unlock())
	}
	cleanUp := func() error { return errors.Join(unlock(), os.RemoveAll(socketDir)) }
	socket := filepath.Join(socketDir, "redis.sock")
	if len(socket) > maxSocketPath {
		return nil, errors.Join(errors.New("the path of the temporary directory is too long for a socket: set TMPDIR to a shorter one"), cleanUp())
	}
	cmd := exec.Command(program, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "700", "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", "redis.log")
	cmd.SysProcAttr = subprocess.Attributes(syscall.SIGTERM)
	exited := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// The child is told of the end of the thread that started it, so that thread must live as long as this process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			exited <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), cleanUp())
	}
	dial := func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", socket)
	}
	e := &Engine{kind: EnginePrivate, fast: local(dial, failFast), patient: local(dial, longTimed)}
	e.stop = func() error {
		err := stopChild(cmd, exited)
		return errors.Join(err, cleanUp())
	}
	if err := awaitChild(ctx, e, exited, dir); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	version, err := check(ctx, e.patient, o.AllowUnsafe, o.Logger)
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.version = version
	e.describe = fmt.Sprintf("private redis %s, data in %s", version, dir)
	return e, nil
}

// awaitChild waits until the child answers, ends, or the time is up.
func awaitChild(ctx context.Context, e *Engine, exited chan error, dir string) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if e.patient.Ping(ctx).Err() == nil {
			return nil
		}
		select {
		case err := <-exited:
			exited <- err // for stopChild
			return fmt.Errorf("%w: redis-server ended at start (%v): see %s", ErrUnavailable, err, filepath.Join(dir, "redis.log"))
		case <-ctx.Done():
			return fmt.Errorf("%w: redis-server did not answer in time: see %s", ErrUnavailable, filepath.Join(dir, "redis.log"))
		case <-ticker.C:
		}
	}
}

// stopChild asks the child to write everything and end, and insists after a while.
func stopChild(cmd *exec.Cmd, exited chan error) error {
	_ = cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended already
	select {
	case <-exited:
		return nil
	case <-time.After(stopLimit):
		_ = cmd.Process.Kill()
		<-exited
		return errors.New("redis-server did not stop in time and was killed")
	}
}

// lockDir takes the data directory for this process.
func lockDir(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: the data directory %s is in use by another process: stop it, or set redis.data_dir to another one", ErrNoEngine, dir), f.Close())
	}
	return f.Close, nil
}
