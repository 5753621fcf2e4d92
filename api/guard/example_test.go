package guard_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/7509e464/sluice/api/guard"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// An address may log in twice a minute. A third attempt blocks it for an hour. Processes share the
// store that queue.Queue.Limits returns.
func ExampleGuard_Handler() {
	store, err := limiter.NewMemoryStore(100_000)
	if err != nil {
		panic(err)
	}
	byAddress, err := guard.KeyByAddress()
	if err != nil {
		panic(err)
	}
	g, err := guard.New(store, guard.Config{
		Rule: limiter.Rule{Name: "login", Policy: limiter.Policy{
			Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 2, Period: time.Minute}, Block: time.Hour,
		}},
		Key: byAddress, FailClosed: true,
	})
	if err != nil {
		panic(err)
	}
	login := g.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	}))
	for range 3 {
		w := httptest.NewRecorder()
		login.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/login", nil))
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 204 1
	// 204 0
	// 429 0
}
