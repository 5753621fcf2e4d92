package queue

import (
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"
)

// Bounds of the restarts of the private redis-server: the pause before one doubles up to
// childPauseMost, and begins anew after a process that lived for childSteady.
const (
	childPauseMost = 5 * time.Second
	childSteady    = time.Minute
	childStarts    = 8 // restarts in a row that may fail, which takes about 20 s
)

// childPause is the first of the pauses; a test shortens it.
var childPause = 100 * time.Millisecond

// child is the redis-server of this process. It is started again when it ends by itself.
type child struct {
	command  func() *exec.Cmd
	log      *slog.Logger
	answered atomic.Bool  // the first one did: from then on it is started again
	restarts atomic.Int64 // after it ended by itself
	failed   chan error   // receives why it cannot be started again, once
	stop     chan struct{}
	ended    chan error // receives how the last one was stopped
}

// startChild starts the command and supervises it. Its error is that of the first start.
func startChild(log *slog.Logger, command func() *exec.Cmd) (*child, error) {
	c := &child{command: command, log: log, failed: make(chan error, 1), stop: make(chan struct{}), ended: make(chan error, 1)}
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
			c.ended <- c.supervise(cmd)
		}
	}()
	return c, <-started
}

// supervise waits for the end of the command, and starts it again until it is to stop or has failed
// too often. Its error is that of stopping.
func (c *child) supervise(cmd *exec.Cmd) error {
	pause, starts := childPause, 0
	var err error // of the start
	for {
		begun := time.Now()
		if err == nil {
			var stopped bool
			if err, stopped = c.wait(cmd); stopped {
				return err
			}
		}
		if !c.answered.Load() {
			c.failed <- err
			return nil
		}
		if time.Since(begun) >= childSteady {
			pause, starts = childPause, 0
		}
		if starts++; starts > childStarts {
			c.failed <- fmt.Errorf("the private redis-server cannot be started again: it ended %d times in a row: %w", starts, err)
			return nil
		}
		c.log.Error("the private redis-server ended and is started again", "error", err, "in", pause.String())
		select {
		case <-c.stop:
			return nil
		case <-time.After(pause):
		}
		pause = min(2*pause, childPauseMost)
		c.restarts.Add(1)
		cmd = c.command()
		err = cmd.Start()
	}
}

// wait returns how the command ended. When it is to stop, it is asked to write everything and end,
// and killed after a while.
func (c *child) wait(cmd *exec.Cmd) (err error, stopped bool) {
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	select {
	case err := <-exited:
		if err == nil {
			err = errors.New("exit status 0") // it was told to, by SHUTDOWN
		}
		return err, false
	case <-c.stop:
	}
	_ = cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended already
	select {
	case <-exited:
		return nil, true
	case <-time.After(stopLimit):
		_ = cmd.Process.Kill()
		<-exited
		return errors.New("redis-server did not stop in time and was killed"), true
	}
}

// end stops the child for good.
func (c *child) end() error {
	close(c.stop)
	return <-c.ended
}
