package wire_test

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
)

// The body of POST /v1/jobs. Fields that are not set are absent; durations are milliseconds.
func ExampleSubmission() {
	body, err := json.Marshal(wire.Submission{
		Type: "order.create", Payload: []byte(`{"sku":1}`), DelayMS: (5 * time.Second).Milliseconds(),
	})
	fmt.Println(string(body), err)
	// Output: {"type":"order.create","payload":{"sku":1},"delay_ms":5000} <nil>
}

// The body of a refusal. Absent figures are nil, so that a depth of 0 differs from none.
func ExampleProblem() {
	var p wire.Problem
	err := json.Unmarshal([]byte(`{"type":"urn:sluice:problem:queue-full","title":"The tenant's queue is full",
		"status":429,"depth":1000,"capacity":1000,"retry_after_ms":100}`), &p)
	fmt.Println(p.Status, p.Type, *p.Depth, p.RetryAfterMS, p.CapacityBytes == nil, err)
	// Output: 429 urn:sluice:problem:queue-full 1000 100 true <nil>
}
