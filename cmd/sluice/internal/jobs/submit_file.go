package jobs

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

const (
	maxBatchBytes = 8 << 20                // of one request, the server's bound
	leastPause    = 250 * time.Millisecond // between two attempts at a full queue
	pausedPause   = 30 * time.Second       // if the server cannot estimate when capacity is free
	leastWindow   = 8                      // minimum batch at a full queue
	namedLines    = 10                     // refused lines in the summary
)

// feed submits the lines of a file in order, in batches, and counts their outcomes.
type feed struct {
	lines    *lineFeed
	prefix   string        // of the idempotency keys of lines without one; empty: none
	wait     bool          // for capacity while the queue is full
	patience time.Duration // with a server that fails
	send     func(ctx context.Context, jobs []json.RawMessage) ([]wire.JobResult, error)
	tally    *cli.Tally

	pending  []submission // read and without an outcome, in order
	ended    bool         // there are no further lines
	window   int          // maximum lines of the next batch
	progress time.Time    // of the last outcome
	summary  feedSummary
}

// submission is a line that can be sent.
type submission struct {
	line  int
	keyed bool
	body  json.RawMessage
}

// feedSummary is the outcome of a feed.
type feedSummary struct {
	Lines    int            `json:"lines"` // read, without blank ones
	Admitted int            `json:"admitted"`
	Replayed int            `json:"replayed"`
	Refused  map[string]int `json:"refused"` // for good, by kind
	Unsent   int            `json:"without_verdict"`
	First    []refusedLine  `json:"first_refused,omitempty"`
	Error    string         `json:"error,omitempty"` // why it ended early
	Seconds  float64        `json:"submit_s"`
}

type refusedLine struct {
	Line   int    `json:"line"`
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
}

func (s feedSummary) ok() bool { return len(s.Refused) == 0 && s.Error == "" }

// run sends all lines until ctx ends, and returns the summary.
func (f *feed) run(ctx context.Context) feedSummary {
	began := time.Now()
	f.window, f.progress, f.summary.Refused = wire.MaxBatch, began, map[string]int{}
	err := f.sendAll(ctx)
	if err == nil {
		err = f.lines.err
		if err != nil {
			err = fmt.Errorf("read the file: %w", err)
		}
	}
	f.summary.Error = cli.EndedEarly(err)
	f.summary.Unsent = len(f.pending)
	f.summary.Seconds = time.Since(began).Seconds()
	return f.summary
}

func (f *feed) sendAll(ctx context.Context) error {
	for {
		if err := f.fill(ctx); err != nil {
			return err
		}
		if len(f.pending) == 0 {
			return nil
		}
		batch := f.pending[:f.fitting()]
		jobs := make([]json.RawMessage, len(batch))
		for i, s := range batch {
			jobs[i] = s.body
		}
		outcomes, err := f.send(ctx, jobs)
		var pause time.Duration
		var why string // it waits
		if err == nil {
			pause, why = f.settle(batch, outcomes)
		} else if pause, why, err = f.failed(batch, err); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("line %d and the lines after it have an unknown outcome: %w",
				f.pending[0].line, err)
		}
		if pause > 0 {
			f.tally.With(func(c *cli.Counts) { c.Waiting = why })
			if err := cli.Sleep(ctx, pause); err != nil {
				return err
			}
			f.tally.With(func(c *cli.Counts) { c.Waiting = "" })
		}
	}
}

// fill reads lines until a batch is full or no line arrives for lingering. It waits for the first.
func (f *feed) fill(ctx context.Context) error {
	for !f.ended && len(f.pending) < wire.MaxBatch && f.size() < maxBatchBytes {
		next, got, more := f.lines.next(ctx, len(f.pending) == 0)
		f.ended = !more
		if !got {
			break
		}
		f.summary.Lines++
		s, reason := readSubmission(next, f.prefix)
		if reason != "" {
			f.refuse(s, "invalid-line", reason)
			continue
		}
		f.pending = append(f.pending, s)
	}
	return ctx.Err()
}

func (f *feed) size() (n int) {
	for _, s := range f.pending {
		n += len(s.body) + 1
	}
	return n
}

// fitting returns how many pending lines fit into the next request.
func (f *feed) fitting() (n int) {
	size := client.BatchFrame
	for n < len(f.pending) && n < f.window {
		if size += len(f.pending[n].body) + 1; size > maxBatchBytes {
			break
		}
		n++
	}
	return max(n, 1)
}

// readSubmission parses a line and adds an idempotency key, or returns why it is invalid. The
// server checks the fields.
func readSubmission(l line, prefix string) (s submission, reason string) {
	s = submission{line: l.number, body: l.text}
	var known struct {
		Key json.RawMessage `json:"idempotency_key"`
	}
	switch {
	case l.long:
		return s, fmt.Sprintf("is longer than %d bytes", maxLine)
	case !utf8.Valid(l.text):
		return s, "is not UTF-8"
	case !json.Valid(l.text) || l.text[0] != '{':
		return s, "is not a JSON object"
	}
	_ = json.Unmarshal(l.text, &known) // the server refuses a key of another type
	s.keyed = known.Key != nil
	if s.keyed || prefix == "" {
		return s, ""
	}
	key, err := json.Marshal(prefix + strconv.Itoa(l.number))
	if err != nil {
		return s, err.Error()
	}
	rest := bytes.TrimSpace(l.text[1:])
	comma := ","
	if rest[0] == '}' {
		comma = ""
	}
	s.keyed, s.body = true, slices.Concat([]byte(`{"idempotency_key":`), key, []byte(comma), rest)
	return s, ""
}

// maxLine leaves room in a request for an added key.
const maxLine = maxBatchBytes - 4<<10

// settle counts the outcomes of a batch. It returns how long to wait for capacity and why, 0 if all
// lines have an outcome.
func (f *feed) settle(batch []submission, outcomes []wire.JobResult) (pause time.Duration, why string) {
	var kept []submission
	for i, v := range outcomes {
		s := batch[i]
		kind := (&client.Error{Problem: v.Problem}).Kind()
		switch {
		case v.Status/100 == 2 && v.Replayed:
			f.summary.Replayed++
			f.tally.Accept()
		case v.Status/100 == 2:
			f.summary.Admitted++
			f.tally.Accept()
		case f.wait && mayPass(v.Problem):
			if len(kept) == 0 {
				pause = max(time.Duration(v.RetryAfterMS)*time.Millisecond, leastPause)
				if v.RetryAfterMS == 0 {
					pause = pausedPause
				}
				why = waitsFor(v.Problem)
			}
			kept = append(kept, s)
		default:
			f.refuse(s, kind, reasonOf(v.Problem))
		}
	}
	f.progress = time.Now()
	if len(kept) > 0 {
		f.window = max(2*(len(batch)-len(kept)), leastWindow)
	} else {
		f.window = min(2*f.window, wire.MaxBatch)
	}
	f.pending = append(kept, f.pending[len(batch):]...)
	return pause, why
}

// waitsFor returns why a line is not admitted now, in the words of the problem.
func waitsFor(p wire.Problem) string {
	text := strings.TrimSuffix(cmp.Or(p.Title, "the server refuses jobs"), ".")
	if p.Detail != "" {
		text += ": " + p.Detail
	}
	return cli.Plain(text)
}

// mayPass reports whether the line may be admitted later: the queue was full, and the line fits
// into its capacity.
func mayPass(p wire.Problem) bool {
	return p.Status == http.StatusTooManyRequests && p.Type != neverFits &&
		(p.Capacity == nil || *p.Capacity > 0) || p.Status == http.StatusServiceUnavailable
}

// reasonOf returns why the line was refused.
func reasonOf(p wire.Problem) string {
	var reasons []string
	for _, e := range p.Errors {
		reason := e.Rule
		if e.Field != "body" {
			reason = e.String()
		}
		reasons = append(reasons, reason)
	}
	return cmp.Or(strings.Join(reasons, "; "), p.Detail, p.Title)
}

// failed handles a request that was refused as a whole or got no answer. It returns when to send it
// again, or the error if a retry cannot help.
func (f *feed) failed(batch []submission, err error) (pause time.Duration, why string, fatal error) {
	var answer *client.Error
	errors.As(err, &answer)
	again := cli.Transient(err)
	if answer != nil {
		switch {
		case answer.Status == http.StatusTooManyRequests && f.wait:
			f.progress = time.Now() // the server works
			return max(answer.RetryAfter, leastPause), waitsFor(answer.Problem), nil
		case answer.Status == http.StatusRequestEntityTooLarge && len(batch) > 1: // a proxy has a lower bound
			f.window = len(batch) / 2
			return 0, "", nil
		case answer.Status == http.StatusRequestEntityTooLarge:
			f.refuse(batch[0], cmp.Or(answer.Kind(), "too-large"), cmp.Or(answer.Detail, answer.Title))
			f.pending = f.pending[1:]
			return 0, "", nil
		}
	}
	safe := answer != nil && slices.Contains([]string{"shutting-down", "starting", "draining"},
		answer.Kind()) // nothing was admitted
	if !safe && slices.ContainsFunc(batch, func(s submission) bool { return !s.keyed }) {
		if again {
			err = fmt.Errorf("%w; lines without an idempotency key may have been admitted (--key-prefix "+
				"gives every line a key)", err)
		}
		again = false
	}
	if !again || time.Since(f.progress) >= f.patience {
		return 0, "", err
	}
	why = cli.Plain(err.Error())
	if answer != nil {
		why = waitsFor(answer.Problem)
		if answer.RetryAfter > 0 {
			return answer.RetryAfter, why, nil
		}
	}
	return time.Second, why, nil
}

func (f *feed) refuse(s submission, kind, reason string) {
	kind = cmp.Or(kind, "refused")
	f.summary.Refused[kind]++
	f.tally.Refuse(kind)
	if len(f.summary.First) < namedLines {
		f.summary.First = append(f.summary.First, refusedLine{Line: s.line, Kind: kind, Reason: reason})
	}
}

// submitFile is submit --file.
func (c *SubmitCmd) submitFile(a *cli.App) error {
	in, total := a.In, -1
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return cli.Usagef("--file: %v", err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			if total, err = countLines(file); err != nil {
				return fmt.Errorf("read the file: %w", err)
			}
			if _, err := file.Seek(0, io.SeekStart); err != nil {
				return fmt.Errorf("read the file: %w", err)
			}
		}
		in = file
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(a.Ctx)
	defer cancel()
	t := cli.NewTally(time.Now())
	f := &feed{
		lines:  feedLines(ctx, newLineReader(in, maxLine)),
		prefix: c.KeyPrefix, wait: !c.NoWait, patience: c.Timeout, tally: t,
		send: func(ctx context.Context, jobs []json.RawMessage) ([]wire.JobResult, error) {
			return remote.SubmitRaw(ctx, c.Tenant, jobs, false)
		},
	}
	view, every := cli.NewProgress(a.Err)
	var s feedSummary
	cli.Watched(view, every, "submitted", total, t, cli.Counts.Answered, func() { s = f.run(ctx) })
	view.Close()
	if total > s.Lines && s.Error != "" {
		s.Unsent += total - s.Lines
	}
	err = cli.Print(a.Out, s, c.JSON, s.print)
	s.explain(a.Err)
	if err == nil && !s.ok() {
		return cli.ErrReported
	}
	return err
}

func (s feedSummary) print(w io.Writer) error {
	rows := [][]string{
		{"lines", strconv.Itoa(s.Lines)}, {"admitted", strconv.Itoa(s.Admitted)}, {"replayed",
			strconv.Itoa(s.Replayed)},
	}
	for _, kind := range slices.Sorted(maps.Keys(s.Refused)) {
		rows = append(rows, []string{"refused", fmt.Sprintf("%d: %s", s.Refused[kind], kind)})
	}
	if s.Unsent > 0 {
		rows = append(rows, []string{"unknown outcome", strconv.Itoa(s.Unsent)})
	}
	return cli.PrintTable(w, append(rows, []string{"time", fmt.Sprintf("%.2f s", s.Seconds)}))
}

// explain prints the first refused lines and why the run ended early.
func (s feedSummary) explain(w io.Writer) {
	for _, r := range s.First {
		fmt.Fprintf(w, "line %d: %s: %s\n", r.Line, r.Kind, r.Reason)
	}
	if more := cli.Sum(s.Refused) - len(s.First); more > 0 {
		fmt.Fprintf(w, "and %d more\n", more)
	}
	if s.Error != "" {
		fmt.Fprintf(w, "sluice: %s\n", s.Error)
	}
}
