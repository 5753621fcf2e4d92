package subprocess

import "syscall"

// Attributes keep a process out of the terminal's signals, so that it outlives a Ctrl-C until its
// parent has finished with it. It gets the signal when the thread that started it ends, as with a
// parent that is killed. On other systems it outlives that.
func Attributes(end syscall.Signal) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: end}
}
