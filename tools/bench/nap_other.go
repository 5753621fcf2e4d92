//go:build !linux

package main

import "time"

// sharpen does nothing: here the runtime's timers are all there is.
func sharpen() {}

// nap sleeps until the instant.
func nap(until time.Time) { time.Sleep(time.Until(until)) }
