package queue_test

import (
	"context"
	"fmt"
	"time"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/limiter"
)

// An address may log in twice a minute, counted in Redis for all processes. A third attempt blocks
// it for an hour, unless an operator clears it. The store also serves a guard.Guard.
func ExampleQueue_Limits() {
	ctx := context.Background()
	q, err := queue.Connect(ctx, queue.EngineOptions{Embedded: true}, queue.Options{})
	if err != nil {
		panic(err)
	}
	defer q.Close()
	store := q.Limits()
	login := limiter.Rule{Name: "login", Policy: limiter.Policy{
		Algorithm: limiter.SlidingLog, Rate: shaper.Rate{Limit: 2, Period: time.Minute}, Block: time.Hour,
	}}
	for range 3 {
		d, err := store.Take(ctx, login, "192.0.2.7", 1)
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter, err)
	}
	blocked, _ := store.Blocked(ctx, login, 100)
	fmt.Println(len(blocked), blocked[0].Key)
	cleared, err := store.Clear(ctx, login, "192.0.2.7")
	fmt.Println(cleared, err)
	// Output:
	// true 1 0s <nil>
	// true 0 0s <nil>
	// false 0 1h0m0s <nil>
	// 1 192.0.2.7
	// true <nil>
}
