package callback

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	webhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/7509e464/sluice/internal/burstlog"
	"github.com/7509e464/sluice/internal/outbound"
	"github.com/7509e464/sluice/queue"
)

const (
	taskType = "sluice:callback"
	// Headers of the task; its payload is the body, byte for byte.
	urlHeader, tenantHeader = "sluice-callback-url", "sluice-tenant"
	// taskRetention is how long asynq keeps a delivered task with its body. Until then its id
	// cannot be taken twice, so it covers the time in which a hand-over may be repeated.
	taskRetention = time.Hour
	// taskTail is how much longer asynq's own timeout is than that of an attempt, so that the
	// attempt ends first, with its reason.
	taskTail = 5 * time.Second
)

// event is the body of a request (Standard Webhooks).
type event struct {
	Type      string          `json:"type"` // such as "job.succeeded"
	Timestamp time.Time       `json:"timestamp"`
	Data      json.RawMessage `json:"data"`
}

// HandOver enqueues a completion as an asynq task. A completion that was enqueued before is a
// success. The task keeps the body, so the job itself may be deleted. After an error the call may
// be repeated.
func (s *Service) HandOver(ctx context.Context, c queue.Completion) error {
	body, err := s.body(c)
	if err != nil {
		return fmt.Errorf("callback: job %s: %w", c.Job.ID, err)
	}
	// One id for each end of a job. A replayed job has several.
	id := fmt.Sprintf("%s:%d:%s", c.Job.ID, c.Epoch, c.Job.State)
	url, body := s.cfg.Sealer.Seal(c.Job.Tenant, id, c.CallbackURL, body)
	headers := map[string]string{urlHeader: url, tenantHeader: c.Job.Tenant}
	q, err := s.queueOf(ctx, c, id)
	if err != nil {
		return fmt.Errorf("callback: hand over job %s: %w", c.Job.ID, err)
	}
	s.list(ctx, q)
	_, err = s.client.EnqueueContext(ctx, asynq.NewTaskWithHeaders(taskType, body, headers),
		asynq.TaskID(id),
		asynq.Queue(q.name),
		// One more than permitted: asynq would archive the last attempt instead of postponing it.
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
	if !q.used.Swap(true) {
		s.wake <- q // it has a place for each queue
	}
	return nil
}

// body returns the body of the requests, the same for every attempt.
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

// The pauses between attempts: the first one, doubled by each further failure up to the longest.
const (
	firstPause   = 5 * time.Second
	longestPause = 6 * time.Hour
)

// pause returns how long a callback waits after a failure; retried is 0 after the first. Up to half
// of it is added at random, so that callbacks which failed together are not repeated together. The
// 14 pauses between 15 attempts take 17 to 26 hours.
func pause(retried int) time.Duration {
	wait := firstPause
	for ; retried > 0 && wait < longestPause; retried-- {
		wait = min(2*wait, longestPause)
	}
	return wait + rand.N(wait/2)
}

// deliver is asynq's handler: one attempt at a callback. asynq archives asynq.SkipRetry at once,
// and deletes asynq.RevokeTask.
func (s *Service) deliver(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	last := retried+1 >= most
	err := s.attempt(ctx, id, task, last)
	if last && err != nil && isFailure(err) {
		err = givenUp{err}
	}
	job, _, _ := strings.Cut(id, ":")
	about := []any{"job", job, "callback", id, "attempt", retried + 1, "error", err}
	outcome := failed
	switch {
	case err == nil:
		outcome = delivered
	case !isFailure(err):
		outcome = postponed
	case errors.Is(err, errSkipped):
		outcome = skipped
	case errors.Is(ctx.Err(), context.Canceled):
		return err // the grace is over: asynq puts the task back
	case errors.Is(err, asynq.SkipRetry):
		if outcome = archived; !s.archives(ctx, task.Headers()[tenantHeader]) {
			outcome, err = deleted, fmt.Errorf("%w: %w", err, asynq.RevokeTask)
			s.deleted.Add(burstlog.Key{}, 1, about...)
			break
		}
		s.given.Add(burstlog.Key{}, 1, about...)
	default:
		s.failing.Add(burstlog.Key{Tenant: task.Headers()[tenantHeader]}, 1, about...)
	}
	s.metrics.attempts.WithLabelValues(outcome).Inc()
	s.log.Debug("attempt at a callback", append(about, "outcome", outcome)...)
	if s.cfg.Sealer.Sealing() && err != nil {
		return unquoted{err}
	}
	return err
}

// unquoted is an error as asynq may keep it beside an encrypted task: its text names no host.
type unquoted struct{ error }

func (e unquoted) Unwrap() error { return e.error }

func (e unquoted) Error() string {
	if no, is := errors.AsType[outbound.NoAnswer](e.error); is {
		return no.Message
	}
	if postponed, is := errors.AsType[errPostponed](e.error); is && postponed.cause != nil {
		return "no attempt was made"
	}
	return e.error.Error()
}

// givenUp is the failure of a last attempt, which asynq archives as it is.
type givenUp struct{ error }

func (givenUp) Is(target error) bool { return target == asynq.SkipRetry }

// attempt makes one request, once it has a slot, and returns an error unless the receiver accepts
// it. asynq stores the error. With last set, the callback is given up if the attempt fails.
func (s *Service) attempt(ctx context.Context, id string, task *asynq.Task, last bool) error {
	tenant := task.Headers()[tenantHeader]
	rawURL, body, err := s.cfg.Sealer.Open(tenant, id, task.Headers()[urlHeader], task.Payload())
	switch {
	case errors.Is(err, queue.ErrSealed): // it waits for a process with the key
		return errPostponed{4*firstPostponement + rand.N(4*firstPostponement), err}
	case err != nil:
		return fmt.Errorf("the stored callback cannot be read: %w: %w", err, asynq.SkipRetry)
	}
	own, err := s.ownOf(ctx, tenant)
	if err != nil { // signed by other secrets, receivers would refuse it
		return errPostponed{firstPostponement + rand.N(firstPostponement), err}
	}
	to, why, err := s.cfg.Receivers.inspect(rawURL, own.Endpoints) // once more: the operator may have changed the lists
	if err != nil {
		return fmt.Errorf("the callback URL %w: %w", err, asynq.SkipRetry)
	}
	target, err := outbound.Target(rawURL)
	if err != nil {
		return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
	}
	client := map[trust]*outbound.Client{listed: s.listed, registered: s.own, anybody: s.public}[why]
	if s.proxied.HasProxy(rawURL) { // which connects to the target itself
		client = s.proxied
	}
	if err := s.slots.take(ctx, to, tenant, last); err != nil {
		return err
	}
	start := time.Now()
	var answered *bool
	defer func() { s.slots.give(to, tenant, start, answered) }()
	if client == s.proxied {
		// Within the slot and the time of an attempt: a receiver whose name nobody resolves is one
		// that does not answer.
		limited, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
		defer cancel()
		if err := s.cfg.Receivers.checkName(limited, to, why, client.Dialer.Resolver); errors.Is(err, errNotPublic) {
			return fmt.Errorf("%w: %w", err, asynq.SkipRetry)
		} else if err != nil {
			if ctx.Err() == nil {
				answered = new(false)
			}
			return err
		}
	}
	// Signed here and not at the hand-over, so that retries use the current secrets.
	answer, err := client.Post(ctx, target, id, body, func(r *http.Request) { sign(r, body, own.Secrets) }, nil)
	if errors.Is(err, errNotPublic) {
		return fmt.Errorf("%w: %w", errNotPublic, asynq.SkipRetry)
	}
	if no, _ := errors.AsType[outbound.NoAnswer](err); no.Shortage {
		return errPostponed{firstPostponement + rand.N(firstPostponement), err} // no attempt
	}
	if err != nil {
		if ctx.Err() == nil {
			answered = new(false)
		}
		return err
	}
	answered = new(true)
	switch status := answer.Status; {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusGone:
		return fmt.Errorf("the receiver answered 410 Gone: %w", asynq.SkipRetry)
	default:
		return errors.New(strings.TrimSpace(fmt.Sprintf("the receiver answered %d %s", status,
			http.StatusText(status))))
	}
}

// ownOf returns the secrets and endpoints of a tenant.
func (s *Service) ownOf(ctx context.Context, tenant string) (queue.TenantCallbacks, error) {
	if s.cfg.Of == nil {
		return queue.TenantCallbacks{}, nil
	}
	return s.cfg.Of(ctx, tenant)
}

// sign replaces the signatures of a request by those of a tenant's secrets, if it has any.
func sign(r *http.Request, body []byte, secrets []queue.CallbackSecret) {
	if len(secrets) == 0 {
		return
	}
	head := r.Header.Get(webhooks.HeaderWebhookID) + "." + r.Header.Get(webhooks.HeaderWebhookTimestamp) + "."
	text := append([]byte(head), body...)
	signatures := make([]string, len(secrets))
	for i, s := range secrets {
		signatures[i] = s.Sign(text)
	}
	r.Header.Set(webhooks.HeaderWebhookSignature, strings.Join(signatures, " "))
}

// isFailure reports whether asynq counts the end of a task as a failed attempt.
func isFailure(err error) bool {
	_, postponed := errors.AsType[errPostponed](err)
	return !postponed
}

// delay returns when asynq runs a task again.
func delay(retried int, err error, _ *asynq.Task) time.Duration {
	if postponed, is := errors.AsType[errPostponed](err); is {
		return postponed.delay
	}
	return pause(retried)
}
