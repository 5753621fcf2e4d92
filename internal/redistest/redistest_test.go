package redistest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/redistest"
)

// TestServerOutlivesItsDeath: what was written is there again after Kill and Restart, at the same
// address.
func TestServerOutlivesItsDeath(t *testing.T) {
	ctx := context.Background()
	s := redistest.Start(t)
	options, err := redis.ParseURL(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	defer c.Close()
	if err := c.Set(ctx, "k", "v", 0).Err(); err != nil {
		t.Fatal(err)
	}
	s.Kill()
	s.Kill()
	if err := c.Get(ctx, "k").Err(); err == nil {
		t.Error("a killed server answers")
	}
	s.Restart()
	if got, err := c.Get(ctx, "k").Result(); err != nil || got != "v" {
		t.Errorf("after the restart: %q, %v", got, err)
	}
	s.Freeze()
	frozen, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	options.ContextTimeoutEnabled = true
	impatient := redis.NewClient(options)
	defer impatient.Close()
	if err := impatient.Get(frozen, "k").Err(); err == nil {
		t.Error("a frozen server answers")
	}
	s.Thaw()
	if got, err := c.Get(ctx, "k").Result(); err != nil || got != "v" {
		t.Errorf("after the thaw: %q, %v", got, err)
	}
}

func TestArgumentsComeLast(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "no")
	options, err := redis.ParseURL(s.URL())
	if err != nil {
		t.Fatal(err)
	}
	c := redis.NewClient(options)
	defer c.Close()
	if got, err := c.ConfigGet(context.Background(), "appendonly").Result(); err != nil ||
		got["appendonly"] != "no" {
		t.Errorf("appendonly is %v, %v", got, err)
	}
}
