// Under the race detector the suites run on Redis alone: their scripts take the embedded engine ten
// times as long as Redis, and make test runs them on it.

//go:build race

package queue_test

func init() { delete(engines, "embedded") }
