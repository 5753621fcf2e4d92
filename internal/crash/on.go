//go:build crashpoints

package crash

import (
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
)

// point is where the process ends when it passes there left more times.
var (
	point string
	left  atomic.Int64
)

func init() {
	label, nth, counted := strings.Cut(os.Getenv("SLUICE_CRASH_AT"), ":")
	n := int64(1)
	if counted {
		var err error
		if n, err = strconv.ParseInt(nth, 10, 64); err != nil || n < 1 {
			panic("crash: SLUICE_CRASH_AT is LABEL or LABEL:N, N from 1 on")
		}
	}
	point = label
	left.Store(n)
}

// At marks a point, which SLUICE_CRASH_AT can name. Where it is the chosen one, At kills the
// process and does not return.
func At(label string) {
	if label != point || left.Add(-1) != 0 {
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // until the signal arrives
}
