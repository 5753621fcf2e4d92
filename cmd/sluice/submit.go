package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/wire"
)

type submitCmd struct {
	apiFlags
	Payload string        `arg:"" optional:"" help:"Payload, any JSON value; - or nothing reads it from standard input."`
	Type    string        `required:"" placeholder:"TEXT" help:"What kind of job it is, for the upstream."`
	Tenant  string        `default:"default" placeholder:"NAME" help:"Whose job it is [default]."`
	Route   string        `placeholder:"NAME" help:"Where it goes [the route default]."`
	Key     string        `placeholder:"TEXT" help:"Idempotency key: sent again with it, the job stays one."`
	Delay   time.Duration `help:"Do not deliver earlier than after this time."`
	MaxWait time.Duration `help:"Let it expire when it could not leave within this time."`
	Cost    int64         `placeholder:"N" help:"Departure intervals that it takes [1]."`
	Wait    bool          `help:"Wait until it is done."`
	Timeout time.Duration `default:"5m" help:"How long to wait at the most [5m]."`
	JSON    bool          `help:"Print the job as JSON."`
}

func (submitCmd) Help() string {
	return `Submits one job. Its payload is an argument or read from standard input, and is delivered byte for byte. With --wait the command ends when the job is done; the exit code is 0 only if it succeeded then.

Example:
  sluice submit --type order.create '{"sku":1}'
  sluice submit --type order.create --tenant acme --key order-17 --wait < order.json`
}

// maxPayload bounds what is read; the server's own bound is lower.
const maxPayload = 16 << 20

func (c *submitCmd) Run(a *app) error {
	payload := []byte(c.Payload)
	if c.Payload == "" || c.Payload == "-" {
		var err error
		if payload, err = io.ReadAll(io.LimitReader(a.In, maxPayload)); err != nil {
			return fmt.Errorf("read the payload: %w", err)
		}
	}
	if !json.Valid(payload) {
		return usageError{"the payload must be one JSON value"}
	}
	for name, d := range map[string]time.Duration{"--delay": c.Delay, "--max-wait": c.MaxWait} {
		if d < 0 || d%time.Millisecond != 0 {
			return usageError{name + " must be in whole milliseconds, not negative"}
		}
	}
	remote, err := c.connect(1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.ctx, c.Timeout)
	defer cancel()
	s := client.Submission{
		Submission: wire.Submission{
			Type: c.Type, Payload: payload, Route: c.Route, Cost: c.Cost,
			DelayMS: c.Delay.Milliseconds(), MaxWaitMS: c.MaxWait.Milliseconds(),
		},
		Tenant: c.Tenant, IdempotencyKey: c.Key,
	}
	got, err := remote.submit(ctx, s)
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	job := got.Job
	var waited error
	if c.Wait && !job.Done {
		if job, err = remote.awaitJob(ctx, c.Tenant, job.ID); job.ID == "" {
			job = got.Job // nothing newer was read
		}
		waited = err
	}
	if err := printJob(a.Out, job, c.JSON); err != nil {
		return err
	}
	switch {
	case errors.Is(waited, context.DeadlineExceeded):
		return fmt.Errorf("the job was not done within %s", c.Timeout)
	case waited != nil:
		return fmt.Errorf("wait for the job: %w", waited)
	case c.Wait && job.State != "succeeded":
		return fmt.Errorf("the job ended as %s", job.State)
	}
	return nil
}
