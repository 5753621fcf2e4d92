package jobs

import (
	"context"
	"errors"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// queueFull is the kind of a refusal because the queue is full.
const queueFull = "queue-full"

// neverFits is the type of a refusal because the jobs exceed the capacity.
const neverFits = "urn:sluice:problem:never-fits"

// refusedError is a refusal of a submission by the server.
type refusedError struct {
	kind string // such as queue-full
	err  error
}

func (e *refusedError) Error() string { return e.err.Error() }

func (e *refusedError) Unwrap() error { return e.err }

// submitJob submits one job. A refusal with a reason is a *refusedError.
func submitJob(ctx context.Context, c *client.Client, s client.Submission) (client.Submitted, error) {
	got, err := c.Submit(ctx, s)
	var answer *client.Error
	if errors.As(err, &answer) && answer.Kind() != "" {
		err = &refusedError{kind: answer.Kind(), err: err}
	}
	return got, err
}

// awaitJob reads the job until it has ended or ctx ends. Then it returns the job as last read, with
// the error of ctx. It retries while the server is unreachable.
func awaitJob(ctx context.Context, c *client.Client, tenant string, job wire.Job) (wire.Job, error) {
	for {
		now, err := c.Job(ctx, tenant, job.ID, wire.MaxWaitSeconds*time.Second)
		switch {
		case ctx.Err() != nil:
			return job, ctx.Err()
		case err == nil && now.Done:
			return now, nil
		case err == nil:
			job = now
		case cli.Transient(err):
			_ = cli.Sleep(ctx, time.Second)
		case cli.TooOften(err) > 0:
			_ = cli.Sleep(ctx, cli.TooOften(err))
		default:
			return job, err
		}
	}
}
