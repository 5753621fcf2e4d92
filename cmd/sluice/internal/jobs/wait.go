package jobs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
)

type jobWaitCmd struct {
	jobFlags
	Timeout time.Duration `default:"5m" help:"How long to wait at the most [5m]."`
}

func (jobWaitCmd) Help() string {
	return `Example:
  sluice job wait --tenant acme --timeout 30s ID

The command retries while the server is unreachable. Exit codes: 0 the job succeeded; 1 it ended in another way, did not end in time, or could not be read.`
}

func (c *jobWaitCmd) Run(a *console.App) error {
	if c.Timeout <= 0 {
		return console.Usagef("--timeout must be more than 0s")
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.Ctx, c.Timeout)
	defer cancel()
	job, err := remote.Job(ctx, c.Tenant, c.ID, 0)
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
	return verdictOn(job, waited, c.Timeout)
}

// verdictOn is the error of a command that waited for a job: nil only if that succeeded.
func verdictOn(job wire.Job, waited error, timeout time.Duration) error {
	switch {
	case errors.Is(waited, context.DeadlineExceeded):
		return fmt.Errorf("the job was not done within %s", timeout)
	case waited != nil:
		return fmt.Errorf("wait for the job: %w", waited)
	case job.State != "succeeded":
		return fmt.Errorf("the job ended as %s", job.State)
	}
	return nil
}
