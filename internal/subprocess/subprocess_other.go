//go:build !linux

package subprocess

import "syscall"

// Attributes returns attributes that keep a process out of the signals of the terminal. On this
// system the process outlives a killed parent, so the signal is not used.
func Attributes(syscall.Signal) *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
