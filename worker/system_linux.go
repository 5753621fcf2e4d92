package worker

import (
	"os"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// kernelWaiter sleeps in the kernel, with a timer slack of a nanosecond: it wakes some 50 µs after
// the instant, ten times closer than the runtime's timers. An eventfd cuts the sleep short.
type kernelWaiter struct {
	event int
	poll  [1]unix.PollFd
}

// newWaiter returns the best waiter of the system.
func newWaiter() waiter {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return newTimerWaiter() // out of descriptors: less precise is better than not at all
	}
	return &kernelWaiter{event: event, poll: [1]unix.PollFd{{Fd: int32(event), Events: unix.POLLIN}}}
}

func (w *kernelWaiter) wait(d time.Duration) {
	var timeout *unix.Timespec
	if d >= 0 {
		ts := unix.NsecToTimespec(int64(d))
		timeout = &ts
	}
	// The slack is the thread's, which may be another each time. Where a sandbox refuses it, it is
	// 50 µs.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	// An error is a signal of the runtime: the pacer reads the clock again and waits again.
	n, err := unix.Ppoll(w.poll[:], timeout, nil)
	if err == nil && n > 0 {
		var count [8]byte
		_, _ = unix.Read(w.event, count[:])
	}
}

func (w *kernelWaiter) wake() {
	one := [8]byte{1} // either byte order makes it a positive count
	_, _ = unix.Write(w.event, one[:])
}

func (w *kernelWaiter) close() { _ = unix.Close(w.event) }

// ReserveProcessor gives the Go runtime one processor (GOMAXPROCS) more, once, unless the
// environment sets GOMAXPROCS. A program that runs a Worker on few cores calls it at its start:
// while a pacer sleeps in the kernel, the runtime keeps a processor for its thread for up to ten
// milliseconds. Of two processors, only one was left for deliveries and replies.
func ReserveProcessor() { reserve() }

var reserve = sync.OnceFunc(func() {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	}
})

// slice is how long a thread of this process may run at a time while others wait. The shorter it
// is, the sooner the thread runs when it wakes. It is the least that the kernel accepts.
const slice = 100 * time.Microsecond

// ShortenSlices requests short time slices for all threads of the process, and so for those that
// they start. A program that runs a Worker, or runs beside one, calls it at its start, so that a
// departure does not wait for a neighbour's slice of some milliseconds. Older kernels than Linux
// 6.12 (EEVDF) ignore it, and so does a sandbox that refuses it.
func ShortenSlices() {
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
