package callback

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/queue/burstlog"
)

// calm is the client of asynq's server: it returns a script's error only after a pause. Without it
// the server asks again at once when it was refused a task, for as long as Redis is out of memory:
// 14,000 times a second were measured.
type calm struct{ redis.UniversalClient }

func (c calm) EvalSha(ctx context.Context, sha1 string, keys []string, args ...any) *redis.Cmd {
	cmd := c.UniversalClient.EvalSha(ctx, sha1, keys, args...)
	// Nil is an empty queue, and after NOSCRIPT the script is sent in full.
	if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOSCRIPT") {
		select {
		case <-time.After(checkInterval):
		case <-ctx.Done():
		}
	}
	return cmd
}

// asynqLogger passes asynq's log lines on, repeated ones once a minute. They name tasks by their ids
// and hold neither payloads nor URLs. What asynq calls an error or fatal is a warning here: Redis was
// away, and asynq tries again.
type asynqLogger struct {
	log     *slog.Logger
	repeats *burstlog.Log
}

var _ asynq.Logger = asynqLogger{}

func (l asynqLogger) Debug(args ...any) { l.log.Debug("asynq: " + fmt.Sprint(args...)) }
func (l asynqLogger) Info(args ...any)  { l.Debug(args...) }
func (l asynqLogger) Warn(args ...any)  { l.repeats.Add(burstlog.Key{Kind: fmt.Sprint(args...)}, 1) }
func (l asynqLogger) Error(args ...any) { l.Warn(args...) }
func (l asynqLogger) Fatal(args ...any) { l.Warn(args...) }
