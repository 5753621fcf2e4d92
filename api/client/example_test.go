package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
)

// A refusal is an *Error, which says when to retry. The server here always refuses.
func ExampleClient_Submit() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/problem+json")
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusTooManyRequests)
		_, _ = fmt.Fprint(w, `{"type":"urn:sluice:problem:queue-full",`+
			`"title":"The queue is full","status":429}`)
	}))
	defer server.Close()
	c, err := client.New(server.URL, "", server.Client())
	if err != nil {
		panic(err)
	}
	_, err = c.Submit(context.Background(), client.Submission{
		Tenant: "acme", Submission: wire.Submission{Type: "order.create", Payload: []byte(`{"sku":1}`)},
	})
	var refused *client.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.Kind(), "retry after", refused.RetryAfter)
	}
	// Output: queue-full retry after 2s
}
