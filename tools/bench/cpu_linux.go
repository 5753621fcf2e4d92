package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"time"
)

// cpuOf is the processor time that a process has used, to 10 ms.
func cpuOf(pid int) (time.Duration, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := bytes.Cut(raw, []byte(") ")) // the name may hold spaces
	fields := bytes.Fields(rest)
	const user, system, tick = 11, 12, 10 * time.Millisecond // counted from the state on
	if len(fields) <= system {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var total time.Duration
	for _, f := range [][]byte{fields[user], fields[system]} {
		n, err := strconv.ParseInt(string(f), 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(n) * tick
	}
	return total, nil
}
