//go:build !linux

package main

import "syscall"

// childAttributes keeps a child out of the terminal's signals. Here a child outlives a bench that is killed.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
