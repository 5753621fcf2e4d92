package callback

import (
	"fmt"
	"log/slog"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/queue/burstlog"
)

// asynqLogger passes asynq's log lines on. They name tasks by their ids and hold neither payloads nor URLs. What asynq calls an error or
// fatal is a warning here: Redis was away, and asynq tries again.
// What comes again and again is told once a minute.
type asynqLogger struct {
	log     *slog.Logger
	repeats *burstlog.Log
}

var _ asynq.Logger = asynqLogger{}

func (l asynqLogger) Debug(args ...any) { l.log.Debug("asynq: " + fmt.Sprint(args...)) }
func (l asynqLogger) Info(args ...any)  { l.log.Debug("asynq: " + fmt.Sprint(args...)) }
func (l asynqLogger) Warn(args ...any)  { l.warn(args) }
func (l asynqLogger) Error(args ...any) { l.warn(args) }
func (l asynqLogger) Fatal(args ...any) { l.warn(args) }

func (l asynqLogger) warn(args []any) { l.repeats.Add(burstlog.Key{Kind: fmt.Sprint(args...)}, 1) }
