package callback

import (
	"fmt"
	"log/slog"

	"github.com/hibiken/asynq"
)

// asynqLogger passes asynq's log lines on. They name tasks by their ids and hold neither payloads nor URLs. What asynq calls an error or
// fatal is a warning here: Redis was away, and asynq tries again.
type asynqLogger struct{ log *slog.Logger }

var _ asynq.Logger = asynqLogger{}

func (l asynqLogger) Debug(args ...any) { l.log.Debug("asynq: " + fmt.Sprint(args...)) }
func (l asynqLogger) Info(args ...any)  { l.log.Debug("asynq: " + fmt.Sprint(args...)) }
func (l asynqLogger) Warn(args ...any)  { l.log.Warn("asynq: " + fmt.Sprint(args...)) }
func (l asynqLogger) Error(args ...any) { l.log.Warn("asynq: " + fmt.Sprint(args...)) }
func (l asynqLogger) Fatal(args ...any) { l.log.Warn("asynq: " + fmt.Sprint(args...)) }
