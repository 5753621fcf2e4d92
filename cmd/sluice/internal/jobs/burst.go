package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// BurstCmd is the command burst.
type BurstCmd struct {
	cli.APIFlags
	Tenant      string        `filled:"" placeholder:"NAME" help:"Tenant of the jobs [default, or the tenant of the key]."`
	N           int           `short:"n" default:"100" placeholder:"N" help:"Number of jobs [100]."`
	Concurrency int           `default:"16" placeholder:"N" help:"Concurrent submissions [16]."`
	Type        string        `default:"burst" placeholder:"TEXT" help:"Type of the jobs [burst]."`
	Route       string        `filled:"" placeholder:"NAME" help:"Route of the jobs [default]."`
	Cost        int64         `filled:"" placeholder:"N" help:"Cost of each job in departure intervals [1]."`
	Header      cli.Headers   `sep:"none" placeholder:"NAME:VALUE" help:"Header of the deliveries, if the route lists it in job_headers. Repeatable."`
	Follow      bool          `default:"true" negatable:"" help:"Wait until all accepted jobs have ended; --no-follow stops after the submission."`
	Patience    time.Duration `default:"1m" help:"Stop if no job ends within this time [1m]."`
	JSON        bool          `help:"Print the summary as JSON."`
}

func (BurstCmd) Help() string {
	return `Example:
  sluice burst --tenant acme -n 500 --concurrency 32
  sluice burst -n 10000 --no-follow --json

The command submits jobs of one tenant as fast as it can, then waits until they have ended. The jobs
arrive in a burst and leave at the tenant's rate. The payloads are {"n": 1}, {"n": 2} and so on.

A full queue refuses jobs; that is counted and is no failure. The exit code is 1 if a submission had
an unknown outcome or another refusal, if a job did not succeed, or if the command stopped early.

Next, in another terminal: sluice top.`
}

func (c *BurstCmd) Run(a *cli.App) error {
	if c.N < 1 || c.Concurrency < 1 {
		return cli.Usagef("-n: %d, --concurrency: %d: must be at least 1", c.N, c.Concurrency)
	}
	headers, err := c.Header.Parse()
	if err != nil {
		return err
	}
	remote, err := c.Connect(c.Concurrency)
	if err != nil {
		return err
	}
	var tenant atomic.Value // of the server's answer; without --tenant it may be that of the key
	b := &burst{
		n: c.N, concurrency: min(c.Concurrency, c.N), follow: c.Follow, patience: c.Patience,
		submit: func(ctx context.Context, i int) (wire.Job, error) {
			payload := json.RawMessage(`{"n":` + strconv.Itoa(i+1) + `}`)
			got, err := submitJob(ctx, remote, client.Submission{
				Tenant: c.Tenant,
				Submission: wire.Submission{
					Type: c.Type, Payload: payload, Route: c.Route, Cost: c.Cost, Headers: headers,
				},
			})
			if err == nil {
				tenant.Store(got.Job.Tenant)
			}
			return got.Job, err
		},
		await: func(ctx context.Context, id string) (wire.Job, error) {
			return remote.Job(ctx, c.Tenant, id, wire.MaxWaitSeconds*time.Second)
		},
	}
	summary := b.run(a.Ctx, a.Err)
	summary.Tenant = c.Tenant
	if name, ok := tenant.Load().(string); ok {
		summary.Tenant = name
	}
	err = cli.Print(a.Out, summary, c.JSON, summary.print)
	if err == nil && !summary.ok() {
		return errors.Join(cli.ErrReported, summary.failure)
	}
	return err
}

// burst submits many jobs and follows them.
type burst struct {
	n, concurrency int
	follow         bool
	patience       time.Duration
	submit         func(ctx context.Context, i int) (wire.Job, error)
	// await blocks until the job has ended, for a bounded time.
	await func(ctx context.Context, id string) (wire.Job, error)
}

// burstSummary is the outcome of a burst.
type burstSummary struct {
	Tenant     string         `json:"tenant"`
	Requested  int            `json:"requested"`
	Accepted   int            `json:"accepted"`
	Refused    map[string]int `json:"refused"`
	Failed     map[string]int `json:"failed"`
	Ended      map[string]int `json:"ended"`
	Followed   bool           `json:"followed"` // whether the end of all accepted jobs was read
	SubmitS    float64        `json:"submit_s"`
	TotalS     float64        `json:"total_s"`
	DepartureS float64        `json:"departures_per_s"`
	WaitP50MS  int64          `json:"wait_p50_ms"`
	WaitP99MS  int64          `json:"wait_p99_ms"`
	follow     bool
	failure    error // of a submission, other than a full queue, for the hint
}

// run submits and follows the jobs until they have ended or ctx ends, and returns the summary.
func (b *burst) run(ctx context.Context, w io.Writer) burstSummary {
	t := cli.NewTally(time.Now())
	view, every := cli.NewProgress(w)
	ids := make([]string, 0, b.n)
	var failure error // of one submission, other than a full queue
	var mu sync.Mutex
	cli.Watched(view, every, "submitted", b.n, t, cli.Counts.Answered, func() {
		each(ctx, b.n, b.concurrency, func(i int) {
			job, err := b.submit(ctx, i)
			var refusal *refusedError
			switch {
			case err == nil:
				t.Accept()
				mu.Lock()
				ids = append(ids, job.ID)
				mu.Unlock()
			case errors.As(err, &refusal):
				t.Refuse(refusal.kind)
				if refusal.kind != queueFull {
					mu.Lock()
					failure = err
					mu.Unlock()
				}
			case ctx.Err() == nil:
				t.Fail(err.Error())
				mu.Lock()
				failure = err
				mu.Unlock()
			}
		})
	})
	submitted := time.Since(t.Began)
	if b.follow && len(ids) > 0 {
		b.followAll(ctx, view, every, t, ids)
	}
	view.Close()

	c := t.Now()
	perSecond, p50, p99 := t.Pace()
	return burstSummary{
		Requested: b.n, Accepted: c.Accepted, Refused: c.Refused, Failed: c.Failed, Ended: c.Ended,
		follow:   b.follow,
		Followed: b.follow && c.Answered() == b.n && c.Done() == c.Accepted,
		SubmitS:  submitted.Seconds(), TotalS: time.Since(t.Began).Seconds(),
		DepartureS: perSecond, WaitP50MS: p50.Milliseconds(), WaitP99MS: p99.Milliseconds(), failure: failure,
	}
}

// followAll waits for the jobs in order, a few at a time, because they leave in that order. It ends
// with ctx, and if no job ends within the patience.
func (b *burst) followAll(ctx context.Context, view cli.Progress, every time.Duration, t *cli.Tally,
	ids []string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t.Start(time.Now())
	go func() {
		tick := time.NewTicker(min(time.Second, max(b.patience/4, time.Millisecond)))
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				if t.Quiet(now) > b.patience {
					cancel()
				}
			}
		}
	}()
	cli.Watched(view, every, "done", len(ids), t, cli.Counts.Done, func() {
		each(ctx, len(ids), b.concurrency, func(i int) {
			for ctx.Err() == nil {
				job, err := b.await(ctx, ids[i])
				if err == nil && job.Done {
					t.End(job, time.Now())
					return
				}
				if err != nil {
					_ = cli.Sleep(ctx, time.Second) // the server may be restarting
				}
			}
		})
	})
}

// ok reports success. Refusals because of a full queue are no failure.
func (s burstSummary) ok() bool {
	for kind := range s.Refused {
		if kind != queueFull {
			return false
		}
	}
	if len(s.Failed) > 0 || s.Accepted+cli.Sum(s.Refused) < s.Requested {
		return false
	}
	return !s.follow || s.Followed && s.Ended["succeeded"] == s.Accepted
}

func (s burstSummary) print(w io.Writer) error {
	rows := [][]string{
		{"accepted", fmt.Sprintf("%d of %d in %.2f s", s.Accepted, s.Requested, s.SubmitS)},
	}
	add := func(label string, m map[string]int) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			rows = append(rows, []string{label, fmt.Sprintf("%d: %s", m[key], key)})
		}
	}
	add("refused", s.Refused)
	add("failed", s.Failed)
	add("ended", s.Ended)
	if s.follow {
		if left := s.Accepted - cli.Sum(s.Ended); left > 0 {
			rows = append(rows, []string{"end unknown", strconv.Itoa(left)})
		}
		rows = append(rows,
			[]string{"departures", fmt.Sprintf("%.2f/s", s.DepartureS)},
			[]string{"wait p50", (time.Duration(s.WaitP50MS) * time.Millisecond).String()},
			[]string{"wait p99", (time.Duration(s.WaitP99MS) * time.Millisecond).String()})
	}
	return cli.PrintTable(w, rows)
}

// each runs f(0) to f(n-1) on k goroutines. After the end of ctx it starts no more.
func each(ctx context.Context, n, k int, f func(i int)) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range k {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := 0; i < n && ctx.Err() == nil; i++ {
		next <- i
	}
	close(next)
	wg.Wait()
}
