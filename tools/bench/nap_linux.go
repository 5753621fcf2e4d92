package main

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// sharpen takes the thread for good and lets it sleep as exactly as the kernel can: with a timer
// slack of a nanosecond.
func sharpen() {
	runtime.LockOSThread()
	// Refused in some sandboxes; the default slack of 50 µs is the only harm.
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0)
}

// nap sleeps in the kernel until the instant. A signal of the runtime may end a sleep early, so nap
// checks the clock again.
func nap(until time.Time) {
	for left := time.Until(until); left > 0; left = time.Until(until) {
		ts := unix.NsecToTimespec(int64(left))
		_ = unix.Nanosleep(&ts, nil)
	}
}
