//go:build !linux

package subprocess

import "syscall"

// Attributes keep a process out of the terminal's signals. On this system it outlives a killed
// parent.
func Attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
