package worker

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestShortenTurns(t *testing.T) {
	before, err := unix.SchedGetAttr(0, 0)
	ShortenSlices()
	if err != nil {
		return // a sandbox that does not tell: all that is asked for is that it does no harm
	}
	after, err := unix.SchedGetAttr(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	short := *before
	if before.Policy == unix.SCHED_NORMAL {
		short.Runtime = uint64(slice)
	}
	if *after != short && *after != *before { // an older kernel does not heed it
		t.Errorf("was %+v, is %+v", before, after)
	}
}
