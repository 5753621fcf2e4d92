package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
	"github.com/7509e464/sluice/internal/subprocess"
)

// Limits of the private redis-server. The pause before a restart doubles up to restartPauseMost. It
// begins anew after a process that lived for restartSteady.
const (
	startMost        = 30 * time.Second // loading a large append-only file takes long
	stopMost         = 10 * time.Second
	maxSocketPath    = 100 // bytes; the system allows 104 to 108
	restartPauseMost = 5 * time.Second
	restartSteady    = time.Minute
	restartsMost     = 8 // restarts in a row that may fail, which takes about 20 s
)

// RestartPause is the first pause before a restart; tests shorten it.
var RestartPause = 100 * time.Millisecond

// Server is the private redis-server of this process. It is restarted when it ends by itself.
type Server struct {
	Failed   chan error   // receives one error, when it cannot be restarted
	Restarts atomic.Int64 // number of restarts

	command  func() *exec.Cmd
	log      *slog.Logger
	answered atomic.Bool // once it has answered, it is restarted
	stop     chan struct{}
	ended    chan error // receives how the last process was stopped
}

// OpenPrivate starts a redis-server on a unix socket, with its append-only file in the data
// directory. It locks the directory, so that no two processes write there. Errors: ErrNoEngine,
// ErrUnsafe, or that of the directory.
func OpenPrivate(ctx context.Context, program, dataDir string, o Options) (*Engine, error) {
	dir, err := filepath.Abs(dataDir)
	if err == nil {
		err = os.MkdirAll(dir, 0o700)
	}
	if err != nil {
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
	s, err := startServer(o.Logger, func() *exec.Cmd {
		cmd := exec.Command(program, "--port", "0", "--unixsocket", socket, "--unixsocketperm", "700",
			"--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", "everysec",
			"--maxmemory-policy", "noeviction", "--lazyfree-lazy-expire", "yes", "--lazyfree-lazy-user-del", "yes",
			"--daemonize", "no", "--logfile", "redis.log")
		cmd.SysProcAttr = subprocess.Attributes(syscall.SIGTERM)
		return cmd
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", program, err), cleanUp())
	}
	client := func(p patience) redis.UniversalClient {
		return oneRedis(redis.Options{Network: "unix", Addr: socket}, p, plain(p, nil))
	}
	e := newEngine(client)
	e.Server = s
	e.stop = func() error { return errors.Join(s.end(), cleanUp()) }
	if err := s.await(ctx, e.Patient, dir); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	return e.accept(ctx, o, "private redis", ", data in "+dir)
}

// lockDir takes the data directory for this process.
func lockDir(dir string) (unlock func() error, err error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: the data directory %s is in use by another process: "+
			"stop it, or for another store set redis.data_dir to another one", ErrNoEngine, dir), f.Close())
	}
	return f.Close, nil
}

// await waits until the server answers, ends, or the time is up.
func (s *Server) await(ctx context.Context, c redis.UniversalClient, dir string) error {
	log := filepath.Join(dir, "redis.log")
	ctx, cancel := context.WithTimeout(ctx, startMost)
	defer cancel()
	for c.Ping(ctx).Err() != nil {
		select {
		case err := <-s.Failed:
			return fmt.Errorf("%w: redis-server ended at start (%w): see %s", ErrNoEngine, err, log)
		case <-ctx.Done():
			return fmt.Errorf("%w: redis-server did not answer in time: see %s", store.ErrUnavailable, log)
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.answered.Store(true)
	return nil
}

// startServer starts the command and supervises it. Its error is that of the first start.
func startServer(log *slog.Logger, command func() *exec.Cmd) (*Server, error) {
	s := &Server{
		command: command, log: log, Failed: make(chan error, 1), stop: make(chan struct{}),
		ended: make(chan error, 1),
	}
	started := make(chan error, 1)
	go func() {
		// The kernel signals a child when the thread that started it ends. So that thread must live
		// as long as this process.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		cmd := command()
		err := cmd.Start()
		started <- err
		if err == nil {
			s.ended <- s.supervise(cmd)
		}
	}()
	return s, <-started
}

// supervise waits for the end of the command, and starts it again until it is stopped or has failed
// too often. Its error is that of stopping.
func (s *Server) supervise(cmd *exec.Cmd) error {
	pause, restarts := RestartPause, 0
	var err error // of the start
	for {
		begun := time.Now()
		if err == nil {
			var stopped bool
			if err, stopped = s.wait(cmd); stopped {
				return err
			}
		}
		if !s.answered.Load() {
			s.Failed <- err
			return nil
		}
		if time.Since(begun) >= restartSteady {
			pause, restarts = RestartPause, 0
		}
		if restarts++; restarts > restartsMost {
			s.Failed <- fmt.Errorf("the private redis-server cannot be started again: it ended %d times in a row: %w",
				restarts, err)
			return nil
		}
		s.log.Error("the private redis-server ended and is started again", "error", err, "in", pause.String())
		select {
		case <-s.stop:
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, restartPauseMost)
		s.Restarts.Add(1)
		cmd = s.command()
		err = cmd.Start()
	}
}

// wait returns how the command ended. When stopped, it gets SIGTERM, on which it writes everything
// and ends, and SIGKILL after stopMost.
func (s *Server) wait(cmd *exec.Cmd) (err error, stopped bool) {
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		if err == nil {
			err = errors.New("exit status 0") // by SHUTDOWN
		}
		return err, false
	case <-s.stop:
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended already
	select {
	case <-exited:
		return nil, true
	case <-time.After(stopMost):
		_ = cmd.Process.Kill()
		<-exited
		return errors.New("redis-server did not stop in time and was killed"), true
	}
}

// end stops the server for good.
func (s *Server) end() error {
	close(s.stop)
	return <-s.ended
}
