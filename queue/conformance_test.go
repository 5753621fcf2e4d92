package queue_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/queuetest"
	"github.com/7509e464/sluice/queue"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			queuetest.Run(t, func(t *testing.T) *queue.Engine { return openEngine(t, options(t)) })
		})
	}
}

func TestConformanceEncrypted(t *testing.T) {
	queuetest.Long(t)
	t.Parallel()
	queuetest.RunEncrypted(t, func(t *testing.T) *queue.Engine { return openEngine(t, lent(t)) })
}

// openEngine opens an engine, which is closed with the test.
func openEngine(t *testing.T, o queue.EngineOptions, hooks ...redis.Hook) *queue.Engine {
	t.Helper()
	e, err := queue.OpenEngine(t.Context(), o)
	if err != nil {
		t.Fatalf("OpenEngine: %v", err)
	}
	for _, h := range hooks {
		e.AddHook(h)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return e
}
