package callback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/queue"
	"github.com/7509e464/sluice/worker/internal/outbound"
)

const (
	taskType = "sluice:callback"
	// Headers of the task; its payload is the body, byte for byte.
	urlHeader, tenantHeader = "sluice-callback-url", "sluice-tenant"
	// taskRetention is how long asynq keeps a delivered task with its body. Until then its id cannot
	// be taken twice, so it covers the time in which a hand-over may be repeated.
	taskRetention = time.Hour
	// taskTail is how much longer asynq's own timeout is than that of an attempt, so that the attempt
	// ends first and says why.
	taskTail = 5 * time.Second
)

// event is the body of a request (Standard Webhooks).
type event struct {
	Type      string          `json:"type"` // such as "job.succeeded"
	Timestamp time.Time       `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
}

// HandOver makes a completion a task of asynq's; one that is a task already is a success. The task
// keeps the body, so the job itself may be forgotten. After an error the same call may be made again.
func (s *Service) HandOver(ctx context.Context, c queue.Completion) error {
	body, err := s.body(c)
	if err != nil {
		return fmt.Errorf("callback: job %s: %w", c.Job.ID, err)
	}
	// One id for each end of a job, which a replay may make several of.
	id := fmt.Sprintf("%s:%d:%s", c.Job.ID, c.Epoch, c.Job.State)
	headers := map[string]string{urlHeader: c.CallbackURL, tenantHeader: c.Job.Tenant}
	_, err = s.client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(taskType, body, headers),
		asynq.TaskID(id),
		asynq.Queue(Queue),
		// One more than there are: asynq would archive the last attempt instead of postponing it.
		asynq.MaxRetry(s.cfg.MaxAttempts),
		asynq.Timeout(outbound.WholeSeconds(s.cfg.Timeout)+taskTail),
		asynq.Retention(taskRetention),
	)
	switch {
	case errors.Is(err, asynq.ErrTaskIDConflict):
	case err != nil:
		return fmt.Errorf("callback: hand over job %s: %w", c.Job.ID, err)
	default:
		s.metrics.handedOver.Inc()
	}
	select {
	case s.wake <- struct{}{}:
	default: // Run knows already
	}
	return nil
}

// body is the same for every attempt.
func (s *Service) body(c queue.Completion) ([]byte, error) {
	if !c.Job.State.Done() {
		return nil, fmt.Errorf("a job that is %s has not ended", c.Job.State)
	}
	data, err := s.cfg.Job(c.Job)
	if err != nil {
		return nil, err
	}
	return json.Marshal(event{Type: "job." + c.Job.State.String(), Timestamp: c.Job.Finished.UTC(), Data: data})
}
