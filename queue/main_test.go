package queue_test

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/7509e464/sluice/internal/redistest"
	"github.com/7509e464/sluice/queue"
)

// servers are lent to tests that neither end their server nor change its settings.
var servers redistest.Pool

// lent is a Redis that other tests have used, and is empty.
func lent(t *testing.T) queue.EngineOptions { return queue.EngineOptions{URL: servers.Lend(t).URL()} }

// Whatever a queue or an engine runs in the background must end with its Close.
func TestMain(m *testing.M) { goleak.VerifyTestMain(tests{m}) }

// tests are those of the package, after which the lent servers end.
type tests struct{ *testing.M }

func (t tests) Run() int {
	code := t.M.Run()
	if err := servers.Close(); err != nil {
		os.Stderr.WriteString(err.Error() + "\n")
		return max(code, 1)
	}
	return code
}
