package queue_test

import (
	"testing"

	"go.uber.org/goleak"
)

// Whatever a queue or an engine runs in the background must end with its Close.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
