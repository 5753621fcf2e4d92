//go:build !linux

package worker

// newWaiter is the best waiter that the system can give.
func newWaiter() waiter { return newTimerWaiter() }
