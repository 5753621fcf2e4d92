package callback

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// serverCall bounds a script of asynq's server. Within it go-redis sends the script once to a
	// node that hangs.
	serverCall = 3 * time.Second
	// stateCall bounds a call for what asynq shows of its servers. Its keys are on any nodes, and a
	// server takes no tasks during the call.
	stateCall = 500 * time.Millisecond
)

// calm is the client of one queue's server.
//
//   - It returns a script's error only after a pause. Without it the server repeats a refused call
//     at once, for as long as Redis is out of memory: 14,000 times a second were measured.
//   - After an error it sends the next script only once the node answers. A node that hangs runs
//     what it was sent when it goes on, and each script that takes a task would take one that no
//     server gets: asynq repeats it after up to two minutes.
//   - What asynq shows of its servers is written in stateCall or not at all.
type calm struct {
	redis.UniversalClient
	failed *atomic.Bool // the last script
}

// EvalSha implements redis.UniversalClient.
func (c calm) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	if strings.HasPrefix(keys[0], "asynq:servers:") {
		limited, cancel := context.WithTimeout(ctx, stateCall)
		defer cancel()
		return c.UniversalClient.EvalSha(limited, sha1, keys, args...)
	}
	limited, cancel := context.WithTimeout(ctx, serverCall)
	defer cancel()
	var cmd *redis.Cmd
	if err := c.answers(limited, keys[0]); err != nil {
		cmd = redis.NewCmdResult(nil, err)
	} else {
		cmd = c.UniversalClient.EvalSha(limited, sha1, keys, args...)
	}
	// Nil is an empty queue, and after NOSCRIPT the script is sent in full.
	err := cmd.Err()
	failed := err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT")
	c.failed.Store(failed)
	if failed {
		select {
		case <-time.After(checkInterval):
		case <-ctx.Done():
		}
	}
	return cmd
}

// answers returns an error if the last script failed and the node of the key does not answer.
func (c calm) answers(ctx context.Context, key string) error {
	if !c.failed.Load() {
		return nil
	}
	return c.Exists(ctx, key).Err()
}

// ZAdd and ZRem implement redis.UniversalClient. asynq's server uses them for the list of servers.
func (c calm) ZAdd(ctx context.Context, key string, members ...redis.Z) *redis.IntCmd {
	limited, cancel := context.WithTimeout(ctx, stateCall)
	defer cancel()
	return c.UniversalClient.ZAdd(limited, key, members...)
}

func (c calm) ZRem(ctx context.Context, key string, members ...any) *redis.IntCmd {
	limited, cancel := context.WithTimeout(ctx, stateCall)
	defer cancel()
	return c.UniversalClient.ZRem(limited, key, members...)
}
