//go:build !linux

package worker

// ReserveProcessor does nothing here: this pacer sleeps by the runtime's timers.
func ReserveProcessor() {}

// ShortenTurns does nothing here: no other kernel than Linux heeds it.
func ShortenTurns() {}
