package main

import "syscall"

// childAttributes keeps a child out of the terminal's signals and ends it with the bench.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
