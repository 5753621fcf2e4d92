//go:build !linux

package subprocess

import "syscall"

// Attributes keep a process out of the terminal's signals, so that it outlives a Ctrl-C until its parent has finished with it. On this system
// it outlives a parent that is killed, too.
func Attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
