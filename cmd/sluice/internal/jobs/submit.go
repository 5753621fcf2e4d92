package jobs

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"os"
	"path/filepath"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// SubmitCmd is the command submit.
type SubmitCmd struct {
	cli.APIFlags
	Payload     string        `arg:"" optional:"" help:"Payload, any JSON value. Without it, or with -, it is read from standard input."`
	Type        string        `placeholder:"TEXT" help:"Type of the job, for the upstream, such as order.create. Required without --file."`
	Tenant      string        `filled:"" placeholder:"NAME" help:"Tenant of the job [default, or the tenant of the key]."`
	Route       string        `filled:"" placeholder:"NAME" help:"Route of the job [default]."`
	Key         string        `filled:"" placeholder:"TEXT" help:"Idempotency key: a repeated submission with the same key creates no second job."`
	Delay       time.Duration `help:"Queue the job after this time."`
	MaxWait     time.Duration `help:"Expire the job if it has not left within this time."`
	Cost        int64         `filled:"" placeholder:"N" help:"Cost of the job in departure intervals [1]."`
	Path        string        `filled:"" placeholder:"PATH" help:"Path below the URL of the route, if the route has paths: true."`
	Raw         string        `filled:"" placeholder:"FILE" help:"Deliver the bytes of FILE instead of a JSON payload; - is standard input."`
	ContentType string        `filled:"" placeholder:"TYPE" help:"With --raw: Content-Type of the delivery [by the name of FILE, or application/octet-stream]."`
	Header      cli.Headers   `sep:"none" placeholder:"NAME:VALUE" help:"Header of the delivery, if the route lists it in job_headers. Repeatable."`
	CallbackURL string        `name:"callback-url" filled:"" placeholder:"URL" help:"Called when the job has ended."`
	Wait        bool          `help:"Wait until the job has ended."`
	Timeout     time.Duration `default:"5m" help:"Maximum time to wait for the end; with --file, for a server that fails [5m]."`
	JSON        bool          `help:"Print the job, or the summary, as JSON."`

	File      string `short:"f" placeholder:"FILE" help:"Submit one job for each line, a JSON object; - is standard input."`
	KeyPrefix string `filled:"" placeholder:"TEXT" help:"With --file: lines without a key get the key TEXT and their number."`
	NoWait    bool   `help:"With --file: report a full queue as a refusal instead of waiting."`
}

func (SubmitCmd) Help() string {
	return `Example:
  sluice submit --type order.create '{"sku":1}'
  sluice submit --type order.create --tenant acme --key order-17 --wait < order.json
  sluice submit --type label.print --raw label.pdf --path /printers/7
  sluice submit --type order.create --header 'X-Request-Id: 17' '{"sku":1}'
  sluice submit --tenant acme --file jobs.ndjson --key-prefix import-7-

The payload is an argument or is read from standard input. It is delivered byte for byte. With
--wait the command ends when the job has ended; the exit code is 0 only if the job succeeded.

With --raw the bytes of a file are the payload, of any format. They are delivered with their
Content-Type.

With --file the command submits one job for each line, in order, all of one tenant. A line is a JSON
object as in the API: type, payload, and optionally route, path, headers, delay_ms, max_wait_ms,
cost, callback_url, idempotency_key. While the queue is full the command waits and submits those
lines again. If every line has an idempotency key, its own or by --key-prefix, an interrupted run
can be repeated without duplicates. The exit code is 1 if a line was refused for good or has an
unknown outcome; the first ones are printed.

Next: sluice job wait ID, or sluice job list.`
}

// maxPayload bounds the payload in memory; the server's own bound is lower.
const maxPayload = 16 << 20

func (c *SubmitCmd) Run(a *cli.App) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.File != "" {
		return c.submitFile(a)
	}
	headers, err := c.Header.Parse()
	if err != nil {
		return err
	}
	payload, contentType, err := c.payload(a)
	if err != nil {
		return err
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
			Path: c.Path, Headers: headers,
		},
		ContentType: contentType,
		Tenant:      c.Tenant, IdempotencyKey: c.Key,
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
	return outcome(job, waited, c.Timeout)
}

// payload returns the payload and, of a raw one, its content type.
func (c *SubmitCmd) payload(a *cli.App) (payload []byte, contentType string, err error) {
	payload, from := []byte(c.Payload), io.Reader(nil)
	switch {
	case c.Raw != "" && c.Raw != "-":
		f, err := os.Open(c.Raw)
		if err != nil {
			return nil, "", fmt.Errorf("--raw: %w", err)
		}
		defer f.Close()
		from = f
	case c.Raw == "-", c.Payload == "", c.Payload == "-":
		from = a.In
	}
	if from != nil {
		err := a.Interruptible(func(*cli.App) (err error) {
			payload, err = io.ReadAll(io.LimitReader(from, maxPayload+1))
			return err
		})
		if err != nil {
			return nil, "", fmt.Errorf("read the payload: %w", err)
		}
	}
	switch {
	case len(payload) > maxPayload:
		return nil, "", cli.Usagef("the payload must have at most %d MiB", maxPayload>>20)
	case c.Raw != "":
		return payload, cmp.Or(c.ContentType, mime.TypeByExtension(filepath.Ext(c.Raw)), "application/octet-stream"), nil
	case !json.Valid(payload):
		if d, err := time.ParseDuration(string(payload)); err == nil && c.Wait {
			return nil, "", cli.Usagef("--wait has no value, so %s is the payload: is --wait --timeout %s meant?", d, d)
		}
		return nil, "", cli.Usagef("the payload must be one JSON value; --raw FILE delivers any bytes")
	}
	return payload, "", nil
}

// check finds flags that exclude each other.
func (c *SubmitCmd) check() error {
	for name, d := range map[string]time.Duration{"--delay": c.Delay, "--max-wait": c.MaxWait} {
		if d < 0 || d%time.Millisecond != 0 {
			return cli.Usagef("%s: %v: must be in whole milliseconds and not negative", name, d)
		}
	}
	if c.File == "" {
		switch {
		case c.Type == "":
			return cli.Usagef("--type: must be set without --file, such as order.create")
		case c.KeyPrefix != "" || c.NoWait:
			return cli.Usagef("--key-prefix and --no-wait require --file")
		case c.ContentType != "" && c.Raw == "":
			return cli.Usagef("--content-type requires --raw")
		case c.Raw != "" && c.Payload != "":
			return cli.Usagef("a payload and --raw exclude each other")
		}
		return nil
	}
	if c.Wait {
		return cli.Usagef("--wait and --file exclude each other; see sluice job wait")
	}
	for _, own := range []struct {
		name  string
		given bool
	}{
		{"a payload", c.Payload != ""}, {"--type", c.Type != ""}, {"--route", c.Route != ""}, {"--key",
			c.Key != ""}, {"--delay", c.Delay != 0},
		{"--path", c.Path != ""}, {"--raw", c.Raw != ""}, {"--content-type", c.ContentType != ""},
		{"--max-wait", c.MaxWait != 0}, {"--cost", c.Cost != 0}, {"--callback-url", c.CallbackURL != ""},
		{"--header", len(c.Header) > 0},
	} {
		if own.given {
			return cli.Usagef("%s and --file exclude each other: set it in the lines of the file",
				own.name)
		}
	}
	return nil
}
