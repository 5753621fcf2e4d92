package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"syscall"
	"time"

	"github.com/7509e464/sluice/internal/subprocess"
)

// child is a process that the bench has started. On Linux it ends with the bench, however that
// ends.
type child struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	log    string
	exited chan struct{}
}

// spawn starts cmd with its output in dir/name.log.
func spawn(cmd *exec.Cmd, dir, name string) (*child, error) {
	c := &child{name: name, cmd: cmd, log: filepath.Join(dir, name+".log"), exited: make(chan struct{})}
	f, err := os.Create(c.log)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = f, f, subprocess.Attributes(syscall.SIGKILL)
	if c.stdin, err = cmd.StdinPipe(); err != nil {
		_ = f.Close()
		return nil, err
	}
	started := make(chan error, 1)
	go func() {
		// Linux ends a child with the thread that started it, so that thread waits for it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer f.Close()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in ProcessState
			close(c.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// awaitLine waits until a line of the child's output matches, and returns the matches of the groups
// of the expression.
func (c *child) awaitLine(ctx context.Context, line *regexp.Regexp) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		gone := c.gone() // before the search: the last output counts, too
		text, err := os.ReadFile(c.log)
		if err != nil {
			return nil, err
		}
		if found := line.FindSubmatch(text); found != nil {
			groups := make([]string, len(found)-1)
			for i, g := range found[1:] {
				groups[i] = string(g)
			}
			return groups, nil
		}
		if gone {
			return nil, fmt.Errorf("%s ended: %s", c.name, c.tail())
		}
		select {
		case <-c.exited:
		case <-ctx.Done():
			return nil, fmt.Errorf("%s is not ready: %w: %s", c.name, ctx.Err(), c.tail())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// pid is the child's process id.
func (c *child) pid() int { return c.cmd.Process.Pid }

// gone reports whether the child has ended.
func (c *child) gone() bool {
	select {
	case <-c.exited:
		return true
	default:
		return false
	}
}

// tail is the end of the child's output.
func (c *child) tail() string {
	text, err := os.ReadFile(c.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-1500):])
}

// end terminates the child, kills it after a while, and returns when it has ended. A nil or ended
// child is no error.
func (c *child) end() {
	if c == nil {
		return
	}
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // an error means that it has ended already
	select {
	case <-c.exited:
	case <-time.After(30 * time.Second):
		_ = c.cmd.Process.Kill()
		<-c.exited
	}
}

// complete runs cmd to its end; an error has the end of its output.
func complete(ctx context.Context, cmd *exec.Cmd, dir, name string) error {
	c, err := spawn(cmd, dir, name)
	if err != nil {
		return err
	}
	select {
	case <-c.exited:
	case <-ctx.Done():
		c.end()
		return fmt.Errorf("%s: %w", name, ctx.Err())
	}
	if !cmd.ProcessState.Success() {
		return fmt.Errorf("%s: %s: %s", name, cmd.ProcessState, c.tail())
	}
	return nil
}

var redisReady = regexp.MustCompile(`[Rr]eady to accept connections`)

// startRedis starts a redis-server with the settings that Sluice requires and returns the path of
// its socket. Its data is in dir.
func startRedis(ctx context.Context, dir string, args ...string) (*child, string, error) {
	socket := filepath.Join(dir, "redis.sock")
	c, err := spawn(exec.Command("redis-server", append([]string{
		"--port", "0", "--unixsocket", socket, "--unixsocketperm", "700", "--dir", dir,
		"--save", "", "--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage",
		"0", "--maxmemory-policy", "noeviction",
	}, args...)...), dir, "redis")
	if err != nil {
		return nil, "", err
	}
	if _, err := c.awaitLine(ctx, redisReady); err != nil {
		c.end()
		return nil, "", err
	}
	return c, socket, nil
}

// asChild runs the part of the bench that the arguments name as a child process, and reports
// whether they name one.
func asChild(args []string) bool {
	if len(args) < 2 {
		return false
	}
	var err error
	switch args[0] {
	case peerChild:
		err = runPeer(args[1])
	case floorChild:
		err = runFloor(args[1])
	case asynqChild:
		err = runAsynq(args[1])
	case crowdChild:
		err = runCrowd(args[1])
	case stallsChild:
		err = runStalls()
	default:
		return false
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

// self starts the bench as a child of its own, with its orders as JSON.
func self(dir, name, what string, orders []byte) (*child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return spawn(exec.Command(program, what, string(orders)), dir, name)
}
