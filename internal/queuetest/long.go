package queuetest

import (
	"os"
	"testing"
)

// Long leaves a test that takes ten seconds or more to make test-race, which sets
// SLUICE_TEST_LONG: make test shall take minutes.
func Long(t *testing.T) {
	t.Helper()
	if testing.Short() && os.Getenv("SLUICE_TEST_LONG") == "" {
		t.Skip("takes long: make test-long runs it")
	}
}
