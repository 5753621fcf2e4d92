package worker

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ReserveProcessor gives the Go runtime one processor (GOMAXPROCS) more than it has, once, unless the environment says how many. A program
// that runs a Worker on few cores calls it at its start: while a worker's pacer sleeps in the kernel, the runtime keeps a processor for its
// thread for up to ten milliseconds, so that of two only one was left for deliveries and replies.
func ReserveProcessor() { reserve() }

var reserve = sync.OnceFunc(func() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
})

// slice is how long a thread of this process may run at a time where others wait. The shorter it says, the sooner it runs when it wakes; its
// share of the processor stays the same. The least that the kernel takes.
const slice = 100 * time.Microsecond

// ShortenTurns asks for short turns on the processors for all threads of the process, and so for those that they start. A program that runs a
// Worker, or runs beside one, calls it at its start: what is to leave in time should not wait until a neighbour's turn of some milliseconds is
// over. Linux heeds it since 6.12 (EEVDF); an older one changes nothing. Where a sandbox refuses it, nothing is lost but that.
func ShortenTurns() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		id, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		attr, err := unix.SchedGetAttr(id, 0)
		if err != nil || attr.Policy != unix.SCHED_NORMAL {
			continue // the operator has chosen otherwise
		}
		attr.Runtime = uint64(slice)
		_ = unix.SchedSetAttr(id, attr, 0)
	}
}
