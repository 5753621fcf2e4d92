// Package subprocess ties a process to the one that starts it: to the one that serves, its private Redis; to the benchmarks and the battery, all
// that they start.
package subprocess
