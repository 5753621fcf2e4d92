package simulate

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper/simulate"
)

// RecordCmd is the command record.
type RecordCmd struct {
	Tenant     string        `arg:"" help:"Name of the tenant."`
	Out        string        `required:"" placeholder:"FILE" help:"Write the arrivals to FILE as CSV; - is standard output."`
	For        time.Duration `default:"10m" placeholder:"DURATION" help:"Time to record; 0s is until an interrupt [10m]."`
	Route      string        `filled:"" placeholder:"NAME" help:"Record only arrivals for this route."`
	Admin      []string      `default:"http://${admin}" env:"SLUICE_ADMIN,SLUICE_ADMIN_LISTEN" placeholder:"URL" help:"URL of the admin listener of each process that admits jobs, separated by commas or repeated [http://${admin}]."`
	AdminToken string        `env:"SLUICE_ADMIN_TOKEN" placeholder:"TEXT" help:"Their token, if they have one. The variable keeps it out of the process list."`
	JSON       bool          `help:"Print the summary as JSON."`

	cli.TLSFlags
}

func (RecordCmd) Help() string {
	return `Example:
  sluice record acme --out acme.csv --for 10m
  sluice record shop --route login --out - --for 1h | gzip >login.csv.gz
  sluice record acme --out acme.csv --admin http://10.0.0.1:8081,http://10.0.0.2:8081

The file has one line for each submission: its instant on the clock of the store in microseconds,
its cost, whether it was admitted, and its route.

Each process reports the jobs that were submitted to it. If several processes admit jobs, give the
admin listener of each; otherwise the trace is incomplete. A queue belongs to a tenant and a route:
if routes have rates of their own, record each with --route.

An interrupt ends the recording in order. The exit code is 1 if arrivals are missing, because a
process was unreachable for a while or the recording was too slow.

Next: sluice simulate --trace acme.csv --rate 20/s --capacity 500`
}

// Times of a recording.
const (
	recordIdle   = 40 * time.Second // timeout of a silent stream
	recordRetry  = time.Second      // until a broken stream is opened again
	recordWrite  = time.Second      // between two writes
	recordLate   = 2 * time.Second  // how late arrivals of another process may be and still be sorted
	recordLinger = 300 * time.Millisecond
)

func (c *RecordCmd) Run(a *cli.App) error {
	if c.For < 0 {
		return cli.Usagef("--for: %v: must not be negative", c.For)
	}
	servers, err := c.servers()
	if err != nil {
		return err
	}
	r := &recording{tenant: c.Tenant, route: c.Route, stderr: a.Err, came: make(chan wire.Arrivals, 64),
		retry: recordRetry}
	ctx, cancel := context.WithCancel(a.Ctx)
	defer cancel()
	streams, err := r.connect(ctx, servers)
	if err != nil {
		return err // before the file is created
	}
	out := a.Out
	if c.Out != "-" {
		file, err := os.Create(c.Out)
		if err != nil {
			return cli.Usagef("--out: %v", err)
		}
		defer file.Close()
		out = file
	}
	fmt.Fprintf(a.Err, "recording the arrivals of %s\n", c.Tenant)
	watch := func(int) {}
	if cli.Terminal(a.Err) {
		total := -1
		if c.For > 0 {
			total = int(c.For / time.Second)
		}
		var done func()
		watch, done = a.WatchSteps("seconds recorded", total, true)
		defer done()
	}
	s, err := r.run(ctx, servers, streams, newTraceFile(out), c.For, watch)
	if err != nil {
		return err
	}
	s.Tenant, s.File = c.Tenant, c.Out
	to := a.Out
	if c.Out == "-" {
		to = a.Err
	}
	err = cli.Print(to, s, c.JSON, s.print)
	if err == nil && (s.Lost > 0 || s.Breaks > 0) {
		err = cli.ErrReported
	}
	return err
}

// servers returns a client of each admin listener.
func (c *RecordCmd) servers() ([]server, error) {
	var servers []server
	for _, address := range c.Admin {
		transport, err := c.Transport()
		if err != nil {
			return nil, err
		}
		// Without a timeout, because a stream is one long answer.
		s, err := client.New(cli.BaseURL(address), c.AdminToken, &http.Client{Transport: transport})
		if err != nil {
			return nil, cli.Usagef("--admin: %v", err)
		}
		servers = append(servers, server{s, address})
	}
	return servers, nil
}

// server is a process that reports arrivals.
type server struct {
	*client.Client
	address string
}

// recorded is the summary of a recording.
type recorded struct {
	Tenant   string  `json:"tenant"`
	File     string  `json:"file"`
	Seconds  float64 `json:"recorded_s"`
	Arrivals int64   `json:"arrivals"`
	Admitted int64   `json:"admitted"`
	Refused  int64   `json:"refused"`
	Lost     int64   `json:"lost"`   // arrivals that a server dropped
	Breaks   int64   `json:"breaks"` // broken streams; the arrivals until they were reopened are unknown
}

func (s recorded) print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s of %s in %v, %d admitted, %d refused: %s\n",
		cli.Plural(int(s.Arrivals), "arrival", "arrivals"), s.Tenant,
		time.Duration(s.Seconds*float64(time.Second)).Round(time.Second/10), s.Admitted, s.Refused, s.File)
	if err == nil && (s.Lost > 0 || s.Breaks > 0) {
		_, err = fmt.Fprintf(w, "arrivals are missing: %d that the server dropped, and those during %s\n",
			s.Lost, cli.Plural(int(s.Breaks), "broken stream", "broken streams"))
	}
	return err
}

// recording follows a tenant on several servers at once.
type recording struct {
	tenant, route string
	stderr        io.Writer // for messages about broken streams
	came          chan wire.Arrivals
	retry         time.Duration // until a broken stream is opened again

	mu     sync.Mutex
	breaks int64
}

// connect opens the streams, all of them or none.
func (r *recording) connect(ctx context.Context, servers []server) ([]*client.Stream, error) {
	streams := make([]*client.Stream, len(servers))
	for i, s := range servers {
		var err error
		if streams[i], err = s.Arrivals(ctx, r.tenant, r.route, recordIdle); err != nil {
			for _, open := range streams[:i] {
				_ = open.Close()
			}
			return nil, fmt.Errorf("%s: %w", s.address, err)
		}
	}
	return streams, nil
}

// run records the streams of the servers until the time is over or ctx ends, which is no error.
func (r *recording) run(
	ctx context.Context, servers []server, streams []*client.Stream, file *traceFile, length time.Duration,
	watch func(seconds int),
) (recorded, error) {
	stop, cancel := context.WithCancel(ctx)
	var following sync.WaitGroup
	defer following.Wait()
	defer cancel()
	began := time.Now()
	for i, s := range servers {
		following.Go(func() { r.follow(stop, s, streams[i]) })
	}
	var over <-chan time.Time
	if length > 0 {
		timer := time.NewTimer(length + recordLinger) // arrivals are reported with a delay
		defer timer.Stop()
		over = timer.C
	}
	write := time.NewTicker(recordWrite)
	defer write.Stop()
	var out recorded
	take := func(came wire.Arrivals) {
		out.take(came)
		file.add(came.Items)
	}
	for {
		select {
		case came := <-r.came:
			take(came)
			continue
		case <-write.C:
			watch(int(time.Since(began) / time.Second))
			if err := file.write(false); err != nil {
				return out, err
			}
			continue
		case <-over:
		case <-ctx.Done():
		}
		for len(r.came) > 0 {
			take(<-r.came)
		}
		out.Seconds = time.Since(began).Seconds()
		if length > 0 {
			out.Seconds = min(out.Seconds, length.Seconds())
		}
		r.mu.Lock()
		out.Breaks = r.breaks
		r.mu.Unlock()
		return out, file.write(true)
	}
}

func (s *recorded) take(came wire.Arrivals) {
	s.Lost += came.Lost
	s.Arrivals += int64(len(came.Items))
	for _, a := range came.Items {
		if a.Outcome == "admitted" {
			s.Admitted++
		} else {
			s.Refused++
		}
	}
}

// follow reads the stream and reopens it after each break, until ctx ends.
func (r *recording) follow(ctx context.Context, s server, stream *client.Stream) {
	for {
		// A blocked read ends with ctx.
		unhang := context.AfterFunc(ctx, func() { _ = stream.Close() })
		err := r.read(ctx, stream)
		if unhang() {
			_ = stream.Close()
		}
		if ctx.Err() != nil {
			return
		}
		r.mu.Lock()
		r.breaks++
		fmt.Fprintf(r.stderr, "%s: the stream is broken; arrivals are missing until it is reopened: %v\n",
			s.address, err)
		r.mu.Unlock()
		for {
			if cli.Sleep(ctx, r.retry) != nil {
				return
			}
			if stream, err = s.Arrivals(ctx, r.tenant, r.route, recordIdle); err == nil {
				break
			}
		}
		r.mu.Lock()
		fmt.Fprintf(r.stderr, "%s: the stream is reopened\n", s.address)
		r.mu.Unlock()
	}
}

// read passes on the events of the stream until it ends.
func (r *recording) read(ctx context.Context, stream *client.Stream) error {
	for {
		e, err := stream.Next()
		if errors.Is(err, io.EOF) {
			return errors.New("the server has ended the stream")
		}
		if err != nil {
			return err
		}
		if e.Name != "arrivals" {
			continue
		}
		var came wire.Arrivals
		if err := json.Unmarshal(e.Data, &came); err != nil {
			return fmt.Errorf("an event of the stream is not valid: %w", err)
		}
		select {
		case r.came <- came:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// traceFile writes arrivals as CSV, sorted by time except those later than recordLate.
type traceFile struct {
	w       *csv.Writer
	waiting []wire.Arrival
}

func newTraceFile(w io.Writer) *traceFile {
	f := &traceFile{w: csv.NewWriter(w)}
	_ = f.w.Write([]string{simulate.ColumnAt, simulate.ColumnCost, "outcome",
		"route"}) // write returns a failure
	return f
}

func (f *traceFile) add(came []wire.Arrival) { f.waiting = append(f.waiting, came...) }

// write writes the arrivals older than recordLate, or all.
func (f *traceFile) write(all bool) error {
	slices.SortStableFunc(f.waiting, func(a, b wire.Arrival) int { return a.At.Compare(b.At) })
	n := len(f.waiting)
	if n > 0 && !all {
		settled := f.waiting[n-1].At.Add(-recordLate)
		compare := func(a wire.Arrival, t time.Time) int { return a.At.Compare(t) }
		n, _ = slices.BinarySearchFunc(f.waiting, settled, compare)
	}
	for _, a := range f.waiting[:n] {
		_ = f.w.Write([]string{a.At.UTC().Format(time.RFC3339Nano), strconv.FormatInt(a.Cost, 10), a.Outcome,
			a.Route})
	}
	f.waiting = append(f.waiting[:0], f.waiting[n:]...)
	f.w.Flush()
	if err := f.w.Error(); err != nil {
		return fmt.Errorf("write the arrivals: %w", err)
	}
	return nil
}
