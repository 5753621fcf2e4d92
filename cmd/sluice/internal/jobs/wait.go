package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// firstRead is the least time for the first read of the job, so that the command prints its state
// even with a timeout shorter than a request.
const firstRead = 5 * time.Second

type jobWaitCmd struct {
	jobFlags
	Timeout time.Duration `default:"5m" help:"Maximum time to wait [5m]."`
}

func (jobWaitCmd) Help() string {
	return `Example:
  sluice job wait --tenant acme --timeout 30s ID

The command retries while the server is unreachable. Exit codes: 0 the job succeeded; 1 it ended in
another way, did not end in time, or could not be read.`
}

func (c *jobWaitCmd) Run(a *cli.App) error {
	if c.Timeout <= 0 {
		return cli.Usagef("--timeout: %v: must be more than 0s", c.Timeout)
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.Ctx, c.Timeout)
	defer cancel()
	first, read := context.WithTimeout(a.Ctx, max(c.Timeout, firstRead))
	defer read()
	job, err := remote.Job(first, c.Tenant, c.ID, 0)
	if err != nil {
		return fmt.Errorf("read the job: %w", err)
	}
	var waited error
	if !job.Done {
		job, waited = awaitJob(ctx, remote, c.Tenant, job)
	}
	if err := printJob(a.Out, job, c.JSON); err != nil {
		return err
	}
	return outcome(job, waited, c.Timeout)
}

// outcome returns the error of a command that waited for a job: nil only if the job succeeded.
func outcome(job wire.Job, waited error, timeout time.Duration) error {
	switch {
	case errors.Is(waited, context.DeadlineExceeded):
		return fmt.Errorf("the job has not ended within %s; for an operator, sluice tenant get %s shows what limits its jobs", timeout, cli.ShellWord(job.Tenant))
	case waited != nil:
		return fmt.Errorf("wait for the job: %w", waited)
	case job.State != "succeeded":
		return fmt.Errorf("the job ended as %s", job.State)
	}
	return nil
}
