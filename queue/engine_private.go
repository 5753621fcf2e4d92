package queue

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue/subprocess"
)

// Limits of the private redis-server.
const (
	startLimit    = 30 * time.Second // loading a large append-only file takes long
	stopLimit     = 10 * time.Second
	maxSocketPath = 100 // bytes; the system allows 104 to 108
)

// openPrivate starts a redis-server on a unix socket, with its append-only file in the data
// directory. It locks the directory, so that no two processes write there.
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
		err := errors.New("the temporary directory's path is too long for a socket: set TMPDIR to a shorter one")
		return nil, errors.Join(err, cleanUp())
	}
	c, err := startChild(o.Logger, func() *exec.Cmd {
		cmd := exec.Command(program, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "700",
			"--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
			"--maxmemory-policy", "noeviction", "--daemonize", "no", "--logfile", "redis.log")
		cmd.SysProcAttr = subprocess.Attributes(syscall.SIGTERM)
		return cmd
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), cleanUp())
	}
	client := func(p patience) redis.UniversalClient {
		return oneRedis(redis.Options{Network: "unix", Addr: socket}, p, plain(p, nil))
	}
	e := &Engine{kind: EnginePrivate, fast: client(failFast), patient: client(longTimed), child: c}
	e.stop = func() error { return errors.Join(c.end(), cleanUp()) }
	if err := awaitChild(ctx, e, dir); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e.accept(ctx, o, "private redis", ", data in "+dir)
}

// awaitChild waits until the child answers, ends, or the time is up.
func awaitChild(ctx context.Context, e *Engine, dir string) error {
	log := filepath.Join(dir, "redis.log")
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if e.patient.Ping(ctx).Err() == nil {
			e.child.answered.Store(true)
			return nil
		}
		select {
		case err := <-e.child.failed:
			return fmt.Errorf("%w: redis-server ended at start (%w): see %s", ErrNoEngine, err, log)
		case <-ctx.Done():
			return fmt.Errorf("%w: redis-server did not answer in time: see %s", ErrUnavailable, log)
		case <-ticker.C:
		}
	}
}

// lockDir takes the data directory for this process.
func lockDir(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: the data directory %s is in use by another process: "+
			"stop it, or set redis.data_dir to another one", ErrNoEngine, dir), f.Close())
	}
	return f.Close, nil
}
