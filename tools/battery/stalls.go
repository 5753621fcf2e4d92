package main

import (
	"context"
	"time"
)

// stalls watches this machine: how often a sleep of a millisecond took more than ten too long.
// With many of them, a figure of time means little for Sluice.
type stalls struct {
	n       int
	longest time.Duration
}

// watchStalls watches until ctx ends; the channel then has the result.
func watchStalls(ctx context.Context) <-chan stalls {
	result := make(chan stalls, 1)
	go func() {
		var s stalls
		for start := time.Now(); pause(ctx, time.Millisecond) == nil; start = time.Now() {
			if late := time.Since(start) - time.Millisecond; late > 10*time.Millisecond {
				s.n++
				s.longest = max(s.longest, late)
			}
		}
		s.longest = s.longest.Round(time.Millisecond)
		result <- s
	}()
	return result
}
