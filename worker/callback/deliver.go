package callback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hibiken/asynq"

	"github.com/7509e464/sluice/queue/burstlog"
	"github.com/7509e464/sluice/worker/internal/outbound"
)

// The pauses between attempts: the first one, doubled by each further failure up to the longest.
const (
	firstPause   = 5 * time.Second
	longestPause = 6 * time.Hour
)

// pause is how long a callback waits after a failure; retried is 0 after the first. Up to half of it
// is added at random, so that callbacks which failed together do not come back together. The 14
// pauses between 15 attempts take 17 to 26 hours.
func pause(retried int) time.Duration {
	wait := firstPause
	for ; retried > 0 && wait < longestPause; retried-- {
		wait = min(2*wait, longestPause)
	}
	return wait + rand.N(wait/2)
}

// deliver is asynq's handler: one attempt at a callback. asynq archives asynq.SkipRetry at once.
func (s *Service) deliver(ctx context.Context, task *asynq.Task) error {
	id, _ := asynq.GetTaskID(ctx)
	retried, _ := asynq.GetRetryCount(ctx)
	most, _ := asynq.GetMaxRetry(ctx)
	last := retried+1 >= most
	err := s.attempt(ctx, id, task, last)
	if last && err != nil && !isPostponed(err) {
		err = givenUp{err}
	}
	job, _, _ := strings.Cut(id, ":")
	log := s.log.With("job", job, "callback", id, "attempt", retried+1)
	if err != nil {
		log = log.With("error", err)
	}
	outcome, message := failed, "a callback is to be tried again"
	switch {
	case err == nil:
		outcome, message = delivered, "a callback was delivered"
	case isPostponed(err):
		outcome, message = postponed, "a callback was postponed"
	case errors.Is(err, errSkipped):
		outcome = skipped
	case errors.Is(ctx.Err(), context.Canceled):
		log.Debug("a callback was put back") // the grace is over: this was no attempt
		return err
	case errors.Is(err, asynq.SkipRetry):
		s.metrics.attempts.WithLabelValues(archived).Inc()
		s.given.Add(burstlog.Key{}, 1, "job", job, "callback", id, "attempt", retried+1, "error", err)
		return err
	}
	s.metrics.attempts.WithLabelValues(outcome).Inc()
	log.Debug(message)
	return err
}

// givenUp is the failure of a last attempt, which asynq archives as it is.
type givenUp struct{ error }

func (givenUp) Is(target error) bool { return target == asynq.SkipRetry }

// attempt makes one request, once there is a slot for it, and judges the answer. last says that the
// callback is given up if it fails. asynq stores the error.
func (s *Service) attempt(ctx context.Context, id string, task *asynq.Task, last bool) error {
	rawURL := task.Headers()[urlHeader]
	listed, err := s.cfg.Guard.judge(rawURL) // once more: the operator may have changed the list
	if err != nil {
		return fmt.Errorf("the callback URL %w: %w", err, asynq.SkipRetry)
	}
	client := s.public
	if listed {
		client = s.listed
	}
	to, tenant := receiverOf(rawURL), task.Headers()[tenantHeader]
	if err := s.slots.take(ctx, to, tenant, last); err != nil {
		return err
	}
	start := time.Now()
	var answered *bool
	defer func() { s.slots.give(to, tenant, start, answered) }()
	limited, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	// Signed here and not at the hand-over, so that retries use the current secrets.
	req, err := client.Request(limited, rawURL, id, task.Payload(), time.Now())
	if err != nil {
		return err
	}
	resp, err := client.Transport.RoundTrip(req)
	if errors.Is(err, errNotPublic) {
		return fmt.Errorf("%w: %w", errNotPublic, asynq.SkipRetry)
	}
	if err != nil {
		if ctx.Err() == nil {
			answered = new(false)
		}
		return client.Explain(ctx, limited, err, "process", "receiver")
	}
	answered = new(true)
	defer resp.Body.Close()
	if resp.StatusCode >= 200 { // what follows 101 is not a body, and may never end
		_, _ = io.CopyN(io.Discard, resp.Body, outbound.MaxDrain) // the status alone decides
	}
	switch status := resp.StatusCode; {
	case status >= 200 && status < 300:
		return nil
	case status == http.StatusGone:
		return fmt.Errorf("the receiver answered 410 Gone: %w", asynq.SkipRetry)
	default:
		return errors.New(strings.TrimSpace(fmt.Sprintf("the receiver answered %d %s", status, http.StatusText(status))))
	}
}

// receiverOf is the host and port that a URL leads to.
func receiverOf(rawURL string) string {
	t, err := parse(rawURL)
	if err != nil {
		return ""
	}
	return net.JoinHostPort(t.host, strconv.Itoa(int(t.port)))
}

func isPostponed(err error) bool {
	_, is := errors.AsType[errPostponed](err)
	return is
}

// delay is when asynq brings a task back.
func delay(retried int, err error, _ *asynq.Task) time.Duration {
	if postponed, is := errors.AsType[errPostponed](err); is {
		return postponed.delay
	}
	return pause(retried)
}
