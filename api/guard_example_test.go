package api_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// A login that an address may try twice a minute, and not for an hour after a third time.
// queue.Queue has a store that processes share.
func ExampleGuard_Handler() {
	store, err := limiter.NewMemoryStore(100_000)
	if err != nil {
		panic(err)
	}
	byAddress, err := api.KeyByAddress()
	if err != nil {
		panic(err)
	}
	guard, err := api.NewGuard(store, api.GuardConfig{
		Rule: limiter.Rule{Name: "login", Policy: limiter.Policy{
			Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 2, Period: time.Minute}, Block: time.Hour,
		}},
		Key: byAddress, FailClosed: true,
	})
	if err != nil {
		panic(err)
	}
	login := guard.Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
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
