package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestShortenSlices(t *testing.T) {
	before, err := unix.SchedGetAttr(0, 0)
	if err != nil || before.Policy != unix.SCHED_NORMAL {
		t.Skipf("threads here are scheduled otherwise: %+v, %v", before, err)
	}
	shortenSlices()
	after, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	// An older kernel tells 0 as before.
	if after.Policy != before.Policy || after.Nice != before.Nice || after.Runtime != before.Runtime && after.Runtime != uint64(slice) {
		t.Errorf("was %+v, is %+v", before, after)
	}
}
