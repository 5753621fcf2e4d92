package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"regexp"
	"time"

	"github.com/hibiken/asynq"
	limit "golang.org/x/time/rate"
)

// asynqChild is the argument that makes a process of the bench an asynq server with asynq's
// documented rate limit.
const asynqChild = "child-asynq"

// asynqOrders are what that process is to do.
type asynqOrders struct {
	Socket    string    `json:"socket"` // of Redis
	URL       string    `json:"url"`
	PerSecond float64   `json:"per_second"`
	Arrivals  []arrival `json:"arrivals"`
}

var asynqReady = regexp.MustCompile(`(?m)^ready`)

// prepareAsynq starts an asynq server in a process of its own.
func prepareAsynq(ctx context.Context, r race) (contender, error) {
	store, socket, err := startRedis(ctx, r.dir)
	if err != nil {
		return contender{}, err
	}
	orders, err := json.Marshal(asynqOrders{
		socket, r.url, float64(r.rate.Limit) / r.rate.Period.Seconds(), r.arrivals,
	})
	if err != nil {
		store.end()
		return contender{}, err
	}
	c, err := self(r.dir, "asynq", asynqChild, orders)
	end := func() { c.end(); store.end() }
	if err == nil {
		_, err = c.awaitLine(ctx, asynqReady)
	}
	if err != nil {
		end()
		return contender{}, err
	}
	return contender{about: "asynq 0.26.0", end: end, begin: func(context.Context) error {
		_, err := fmt.Fprintln(c.stdin, "go")
		return err
	}}, nil
}

// limited is the error with which the recipe delays a task.
type limited struct{ retryIn time.Duration }

func (l limited) Error() string { return fmt.Sprintf("rate limited, retry in %v", l.retryIn) }

// runAsynq is the process: the recipe of https://github.com/hibiken/asynq/wiki/Rate-Limiting, with
// a burst of 1, because an even pace is what is asked for.
func runAsynq(text string) error {
	var o asynqOrders
	if err := json.Unmarshal([]byte(text), &o); err != nil {
		return err
	}
	store := asynq.RedisClientOpt{Network: "unix", Addr: o.Socket}
	limiter := limit.NewLimiter(limit.Limit(o.PerSecond), 1)
	server := asynq.NewServer(store, asynq.Config{
		Concurrency: 64,
		LogLevel:    asynq.WarnLevel,
		IsFailure:   func(err error) bool { _, ok := errors.AsType[limited](err); return !ok },
		RetryDelayFunc: func(n int, err error, task *asynq.Task) time.Duration {
			if l, ok := errors.AsType[limited](err); ok {
				return l.retryIn
			}
			return asynq.DefaultRetryDelayFunc(n, err, task)
		},
	})
	if err := server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error {
		if !limiter.Allow() {
			return limited{time.Duration(rand.IntN(10)) * time.Second}
		}
		return post(http.DefaultClient, o.URL)
	})); err != nil {
		return err
	}
	defer server.Shutdown()
	client := asynq.NewClient(store)
	defer client.Close()
	if err := awaitGo(); err != nil {
		return err
	}
	if err := (race{arrivals: o.Arrivals}).arrive(context.Background(), func(jobs int) error {
		for range jobs {
			if _, err := client.Enqueue(asynq.NewTask("order.create", bytes.Clone(payload))); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	select {} // until the bench ends it
}
