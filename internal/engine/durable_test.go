package engine

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/internal/store"
)

// waits is a miniredis that answers WAIT and WAITAOF, and notes what it is sent.
type waits struct {
	*miniredis.Miniredis
	mu              sync.Mutex
	sent            []string
	local, replicas int
}

func newWaits(t *testing.T) *waits {
	w := &waits{Miniredis: miniredis.RunT(t)}
	note := func(cmd string, args []string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.sent = append(w.sent, strings.ToLower(strings.Join(append([]string{cmd}, args...), " ")))
	}
	w.Server().SetPreHook(func(c *server.Peer, cmd string, args ...string) bool {
		note(cmd, args)
		switch strings.ToUpper(cmd) {
		case "WAIT":
			c.WriteInt(w.replicas)
		case "WAITAOF":
			c.WriteLen(2)
			c.WriteInt(w.local)
			c.WriteInt(w.replicas)
		default:
			return false
		}
		return true
	})
	return w
}

// last returns what was sent since the last call.
func (w *waits) last() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	sent := slices.DeleteFunc(w.sent, func(s string) bool { return strings.HasPrefix(s, "hello") || strings.HasPrefix(s, "client") })
	w.sent = nil
	return sent
}

// TestWaiting: each exchange that writes ends with a write and one WAIT, others are as they were.
func TestWaiting(t *testing.T) {
	const fence = "hset sluice:{7}:clock fence 1"
	ctx := context.Background()
	for _, d := range []Durability{
		{Replicas: 2, Timeout: time.Second},
		{Replicas: 1, Fsync: true, Timeout: 50 * time.Millisecond},
	} {
		w, wait := newWaits(t), "wait 2 1000"
		if d.Fsync {
			wait = "waitaof 1 1 50"
		}
		c, ok := d.durable(func(patience) redis.UniversalClient {
			return redis.NewClient(&redis.Options{Addr: w.Addr(), Protocol: 2})
		}, nil).(*redis.Client)
		if !ok {
			t.Fatal("not a client of one node")
		}
		defer c.Close()
		set := func() error { return c.HSet(ctx, "sluice:{7}:key:a", "x", 1).Err() }
		both := func() error {
			_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
				p.Get(ctx, "sluice:{7}:x")
				p.Eval(ctx, "return 1", []string{"sluice:{7}:x"})
				p.ZAdd(ctx, "sluice:{8}:y", redis.Z{Member: "m"})
				return nil
			})
			return err
		}
		for name, c := range map[string]struct {
			call func() error
			want []string
		}{
			"one":         {set, []string{"hset sluice:{7}:key:a x 1", fence, wait}},
			"in no shard": {func() error { return c.Set(ctx, "sluice:session:x", 1, 0).Err() }, []string{"set sluice:session:x 1", "ping", wait}},
			"a read":      {func() error { return c.HGetAll(ctx, "sluice:{7}:key:a").Err() }, []string{"hgetall sluice:{7}:key:a"}},
			"several":     {both, []string{"get sluice:{7}:x", "eval return 1 1 sluice:{7}:x", "zadd sluice:{8}:y 0 m", fence, wait}},
		} {
			t.Run(wait+" "+name, func(t *testing.T) {
				w.local, w.replicas = 1, d.Replicas
				w.Set("sluice:{7}:x", "1")
				w.last()
				if err := c.call(); err != nil {
					t.Error(err)
				}
				if got := w.last(); !slices.Equal(got, c.want) {
					t.Errorf("sent %q, want %q", got, c.want)
				}
				if name == "a read" {
					return
				}
				w.replicas--
				if err := c.call(); !errors.Is(err, store.ErrOutcomeUnknown) {
					t.Errorf("%v, want ErrOutcomeUnknown", err)
				}
				if w.replicas++; !d.Fsync {
					return
				}
				w.local = 0
				if err := c.call(); !errors.Is(err, store.ErrOutcomeUnknown) {
					t.Errorf("not on the disk of the master: %v, want ErrOutcomeUnknown", err)
				}
			})
		}
		w.local, w.replicas = 1, 0
		w.Del("sluice:{7}:x")
		if _, err := w.Lpush("sluice:{7}:key:a", "of another type"); err == nil {
			t.Error("a list over a hash")
		}
		if err := c.ZAdd(ctx, "sluice:{7}:key:a", redis.Z{Member: "m"}).Err(); err == nil || errors.Is(err, store.ErrOutcomeUnknown) {
			t.Errorf("a command that failed keeps its error: %v", err)
		}
	}
}
