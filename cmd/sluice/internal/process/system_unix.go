//go:build unix

package process

import (
	"os/signal"
	"syscall"
)

// descriptorsMost returns how many file descriptors the process may have; 0 if that is unknown. Go
// has raised the soft limit to the hard one.
func descriptorsMost() int64 {
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil || limit.Cur > 1<<40 {
		return 0
	}
	return int64(limit.Cur)
}

// ignorePipes makes a write to standard output or error whose reader has gone an error, as it is
// for other files.
func ignorePipes() { signal.Ignore(syscall.SIGPIPE) }
