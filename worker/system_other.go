//go:build !linux

package worker

func newWaiter() waiter { return newTimerWaiter() }

// ReserveProcessor does nothing here: this pacer sleeps by the runtime's timers.
func ReserveProcessor() {}

// ShortenSlices does nothing here: only Linux supports it.
func ShortenSlices() {}
