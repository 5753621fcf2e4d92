package queue_test

import (
	"testing"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/queue/queuetest"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	for name, options := range engines {
		t.Run(name, func(t *testing.T) {
			queuetest.Run(t, func(t *testing.T) *queue.Engine {
				e, err := queue.OpenEngine(t.Context(), options(t))
				if err != nil {
					t.Fatalf("OpenEngine: %v", err)
				}
				t.Cleanup(func() {
					if err := e.Close(); err != nil {
						t.Errorf("Close: %v", err)
					}
				})
				return e
			})
		})
	}
}
