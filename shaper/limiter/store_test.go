package limiter_test

import (
	"testing"

	"github.com/7509e464/sluice/internal/limitertest"
	"github.com/7509e464/sluice/shaper/limiter"
)

func TestMemoryStoreConformance(t *testing.T) {
	limitertest.Run(t, func(t *testing.T) limiter.Store {
		s, err := limiter.NewMemoryStore(1000)
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestMemoryStoreRefusesBadSettings(t *testing.T) {
	if _, err := limiter.NewMemoryStore(0); err == nil {
		t.Error("a store without room")
	}
}
