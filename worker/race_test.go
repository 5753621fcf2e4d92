//go:build race

package worker

import "runtime"

// One processor: goroutines of a synctest bubble that receive from timers at the same instant run
// those timers with one context of the race detector (runtime.unlockAndRun of Go 1.26), and at once
// on two processors they crash it. The shards here do so.
func init() { runtime.GOMAXPROCS(1) }
