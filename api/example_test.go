package api_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/7509e464/sluice/api"
	"github.com/7509e464/sluice/queue"
)

// The intake in front of an embedded store: a submission is answered with 202 and the path of the
// job. Errors are dropped for brevity.
func ExampleNew() {
	ctx := context.Background()
	q, _ := queue.Connect(ctx, queue.EngineOptions{Embedded: true}, queue.Options{})
	defer q.Close()
	server, err := api.New(q, api.Config{Routes: map[string]api.RouteInfo{"default": {MaxAttempts: 5}}})
	if err != nil {
		panic(err)
	}
	defer server.End()

	r := httptest.NewRequest(http.MethodPost, "/v1/jobs",
		strings.NewReader(`{"type":"order.create","payload":{"sku":1}}`))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	server.Intake().ServeHTTP(w, r)
	fmt.Println(w.Code, strings.HasPrefix(w.Header().Get("Location"), "/v1/jobs/"),
		w.Header().Get("X-RateLimit-Remaining"))
	// Output: 202 true 999
}
