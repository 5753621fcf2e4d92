package worker

import (
	"time"

	"golang.org/x/sys/unix"
)

// kernelWaiter sleeps in the kernel, with a timer slack of a nanosecond: it wakes some 50 µs after the instant, ten times closer than the
// runtime's timers. An eventfd cuts the sleep short.
type kernelWaiter struct {
	event int
	poll  [1]unix.PollFd
}

// newWaiter is the best waiter that the system can give.
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
	// The slack is the thread's, which may be another each time. Refused in some sandboxes; the default of 50 µs is the only harm.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
	// An error is a signal of the runtime that came between: the pacer looks at the clock again and comes back.
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
