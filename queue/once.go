package queue

import (
	"context"

	"github.com/redis/go-redis/v9"
)

// sentOnce is a client whose scripts go-redis sends once: it would send a poll that failed to the
// same node again, though another may have taken over.
type sentOnce struct{ redis.UniversalClient }

func (c sentOnce) EvalSha(ctx context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	return c.once(ctx, "evalsha", sha, keys, args)
}

func (c sentOnce) Eval(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd {
	return c.once(ctx, "eval", script, keys, args)
}

func (c sentOnce) once(ctx context.Context, name, script string, keys []string, args []any) *redis.Cmd {
	all := append(make([]any, 0, 3+len(keys)+len(args)), name, script, len(keys))
	for _, key := range keys {
		all = append(all, key)
	}
	cmd := redis.NewCmd(ctx, append(all, args...)...)
	if len(keys) > 0 {
		cmd.SetFirstKeyPos(3)
	}
	_ = c.Process(ctx, once{cmd}) // its error is the command's
	return cmd
}

// once is a command that go-redis sends once.
type once struct{ *redis.Cmd }

// NoRetry implements redis.Cmder.
func (once) NoRetry() bool { return true }
