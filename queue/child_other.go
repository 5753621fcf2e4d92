//go:build !linux

package queue

import "syscall"

// childAttributes keeps the child out of our terminal's signals, so that it outlives a Ctrl-C until we have finished.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
