//go:build unix

package sealed

import (
	"os/exec"
	"syscall"
)

// endWithChildren has a program that is ended end with those that it has started.
func endWithChildren(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
