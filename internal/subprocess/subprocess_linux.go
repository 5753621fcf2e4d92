package subprocess

import "syscall"

// Attributes returns attributes that keep a process out of the signals of the terminal, so that it
// survives a Ctrl-C until its parent ends it. The process gets the signal end when the thread that
// started it ends, as it does when the parent is killed.
func Attributes(end syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
}
