package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/access"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
)

type SubmitCmd struct {
	access.APIFlags
	Payload     string        `arg:"" optional:"" help:"Payload, any JSON value; - or nothing reads it from standard input."`
	Type        string        `placeholder:"TEXT" help:"What kind of job it is, for the upstream; required without --file."`
	Tenant      string        `filled:"" placeholder:"NAME" help:"Whose job it is [default, or that of the key]."`
	Route       string        `filled:"" placeholder:"NAME" help:"Where it goes [the route default]."`
	Key         string        `filled:"" placeholder:"TEXT" help:"Idempotency key: sent again with it, the job stays one."`
	Delay       time.Duration `help:"Do not deliver earlier than after this time."`
	MaxWait     time.Duration `help:"Let it expire when it could not leave within this time."`
	Cost        int64         `placeholder:"N" help:"Departure intervals that it takes [1]."`
	CallbackURL string        `name:"callback-url" filled:"" placeholder:"URL" help:"Called when it is done."`
	Wait        bool          `help:"Wait until it is done."`
	Timeout     time.Duration `default:"5m" help:"How long to wait for the end; with --file, for a server that does not work [5m]."`
	JSON        bool          `help:"Print the job, or the summary, as JSON."`

	File      string `short:"f" placeholder:"FILE" help:"Submit each line of the file, one JSON object; - is standard input."`
	KeyPrefix string `filled:"" placeholder:"TEXT" help:"With --file: lines without a key get this and their number as one."`
	NoWait    bool   `help:"With --file: refuse what finds the queue full instead of waiting for places."`
}

func (SubmitCmd) Help() string {
	return `Example:
  sluice submit --type order.create '{"sku":1}'
  sluice submit --type order.create --tenant acme --key order-17 --wait < order.json
  sluice submit --tenant acme --file jobs.ndjson --key-prefix import-7-

The payload is an argument or is read from standard input. It is delivered byte for byte. With --wait the command ends when the job has ended; the exit code is 0 only if the job succeeded.

With --file the command submits one job for each line, in order, all of one tenant. A line is a JSON object as in the API: type, payload, and optionally route, delay_ms, max_wait_ms, cost, callback_url, idempotency_key. While the queue is full the command waits and submits those lines again. If every line has an idempotency key, its own or by --key-prefix, an interrupted run can be repeated without duplicates. The exit code is 1 if a line was refused for good or has an unknown outcome; the first ones are printed.

Next: sluice job wait ID, or sluice job list.`
}

// maxPayload bounds what is read; the server's own bound is lower.
const maxPayload = 16 << 20

func (c *SubmitCmd) Run(a *console.App) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.File != "" {
		return c.submitFile(a)
	}
	payload := []byte(c.Payload)
	if c.Payload == "" || c.Payload == "-" {
		err := a.Interruptible(func(*console.App) (err error) {
			payload, err = io.ReadAll(io.LimitReader(a.In, maxPayload+1))
			return err
		})
		if err != nil {
			return fmt.Errorf("read the payload: %w", err)
		}
	}
	if len(payload) > maxPayload {
		return console.Usagef("the payload must have at most %d MiB", maxPayload>>20)
	}
	if !json.Valid(payload) {
		return console.Usagef("the payload must be one JSON value")
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(a.Ctx, c.Timeout)
	defer cancel()
	s := client.Submission{
		Submission: wire.Submission{
			Type: c.Type, Payload: payload, Route: c.Route, Cost: c.Cost,
			DelayMS: c.Delay.Milliseconds(), MaxWaitMS: c.MaxWait.Milliseconds(), CallbackURL: c.CallbackURL,
		},
		Tenant: c.Tenant, IdempotencyKey: c.Key,
	}
	got, err := submitJob(ctx, remote, s)
	if err != nil {
		return fmt.Errorf("submit: %w", err)
	}
	job := got.Job
	var waited error
	if c.Wait && !job.Done {
		job, waited = awaitJob(ctx, remote, c.Tenant, job)
	}
	if err := printJob(a.Out, job, c.JSON); err != nil {
		return err
	}
	if !c.Wait {
		return nil
	}
	return verdictOn(job, waited, c.Timeout)
}

// check finds flags that do not go together.
func (c *SubmitCmd) check() error {
	for name, d := range map[string]time.Duration{"--delay": c.Delay, "--max-wait": c.MaxWait} {
		if d < 0 || d%time.Millisecond != 0 {
			return console.Usagef("%s must be in whole milliseconds, not negative", name)
		}
	}
	if c.File == "" {
		switch {
		case c.Type == "":
			return console.Usagef("--type is required without --file: what kind of job it is, such as order.create")
		case c.KeyPrefix != "" || c.NoWait:
			return console.Usagef("--key-prefix and --no-wait need --file")
		}
		return nil
	}
	if c.Wait {
		return console.Usagef("--wait does not go with --file; see sluice job wait")
	}
	for _, own := range []struct {
		name  string
		given bool
	}{
		{"a payload", c.Payload != ""}, {"--type", c.Type != ""}, {"--route", c.Route != ""}, {"--key", c.Key != ""}, {"--delay", c.Delay != 0},
		{"--max-wait", c.MaxWait != 0}, {"--cost", c.Cost != 0}, {"--callback-url", c.CallbackURL != ""},
	} {
		if own.given {
			return console.Usagef("%s does not go with --file, whose lines say it themselves", own.name)
		}
	}
	return nil
}
