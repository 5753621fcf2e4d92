//go:build !linux

package main

import "syscall"

// childAttributes keeps a child out of the terminal's signals.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
