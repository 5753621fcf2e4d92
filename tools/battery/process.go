package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/7509e464/sluice/internal/subprocess"
)

// nursery starts processes and ends those that are left. Processes are started by one thread that
// lives as long as the battery: Linux ends a child with the thread that started it, so none
// outlives the battery, even if that panics or is killed itself.
type nursery struct {
	starts chan func()

	mu      sync.Mutex
	running map[*process]bool
}

func newNursery() *nursery {
	n := &nursery{starts: make(chan func()), running: map[*process]bool{}}
	go func() {
		runtime.LockOSThread()
		for start := range n.starts {
			start()
		}
	}()
	return n
}

// process is one child; its output goes to a file.
type process struct {
	name    string
	cmd     *exec.Cmd
	log     string
	exited  chan struct{}
	nursery *nursery
}

// start runs the program with its output in dir/name.log; line, unless nil, sees every line of it.
func (n *nursery) start(
	dir, name string, line func([]byte), program string, args ...string,
) (*process, error) {
	log := filepath.Join(dir, name+".log")
	f, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = dir
	cmd.SysProcAttr = subprocess.Attributes(syscall.SIGKILL)
	cmd.Stdout = io.Writer(f)
	if line != nil {
		cmd.Stdout = io.MultiWriter(f, &lines{each: line})
	}
	cmd.Stderr = cmd.Stdout
	cmd.WaitDelay = time.Second // a grandchild may hold the output open
	p := &process{name: name, cmd: cmd, log: log, exited: make(chan struct{}), nursery: n}
	started := make(chan error)
	n.starts <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", name, err), f.Close())
	}
	n.mu.Lock()
	n.running[p] = true
	n.mu.Unlock()
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		_ = f.Close()
		n.mu.Lock()
		delete(n.running, p)
		n.mu.Unlock()
		close(p.exited)
	}()
	return p, nil
}

// clear kills every process that still runs and waits for it.
func (n *nursery) clear() {
	n.mu.Lock()
	left := make([]*process, 0, len(n.running))
	for p := range n.running {
		left = append(left, p)
	}
	n.mu.Unlock()
	for _, p := range left {
		p.signal(syscall.SIGKILL)
	}
	for _, p := range left {
		<-p.exited
	}
}

// signal sends s; a process that has ended already does not get it.
func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process with SIGKILL, also one that is stopped, and waits until it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.exited
}

// stop halts the process in its tracks, until cont. It returns when all threads have stopped, which
// a busy machine may take a while for.
func (p *process) stop() {
	p.signal(syscall.SIGSTOP)
	for range 1000 {
		if stopped(p.cmd.Process.Pid) {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// stopped reports whether every thread of a process has stopped, by /proc; true where there
// is none.
func stopped(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, stat := range stats {
		text, err := os.ReadFile(stat)
		// The state comes after the name, which is in parentheses and may hold some.
		_, state, found := bytes.Cut(text[bytes.LastIndexByte(text, ')')+1:], []byte(" "))
		if err == nil && found && state[0] != 'T' {
			return false
		}
	}
	return true
}

// cont lets a stopped process go on where it was.
func (p *process) cont() { p.signal(syscall.SIGCONT) }

// alive reports whether the process has not ended.
func (p *process) alive() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// wait waits for the end of the process and returns its exit code.
func (p *process) wait(ctx context.Context) (int, error) {
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return -1, fmt.Errorf("%s did not end: %w", p.name, ctx.Err())
	}
}

// tail is the end of the log.
func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(text[max(0, len(text)-1500):]))
}

// lines splits its input into lines.
type lines struct {
	each func([]byte)
	rest []byte
}

func (l *lines) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, found := bytes.Cut(l.rest, []byte("\n"))
		if !found {
			return len(p), nil
		}
		l.each(line)
		l.rest = rest
	}
}

// pause waits for d or the end of ctx, whose error it returns.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// until polls every few milliseconds until the answer is yes or an error, or ctx ends; what names
// the condition.
func until(ctx context.Context, what string, every time.Duration, yes func() (bool, error)) error {
	for {
		ok, err := yes()
		if ok || err != nil {
			return err
		}
		if pause(ctx, every) != nil {
			return fmt.Errorf("waited in vain until %s", what)
		}
	}
}
