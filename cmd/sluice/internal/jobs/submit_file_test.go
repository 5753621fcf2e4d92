package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
)

// numbered is a file of n lines.
func numbered(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `{"type":"t","payload":{"n":%d}}`+"\n", i+1)
	}
	return b.String()
}

// intake is a server for batches that keeps what it takes.
type intake struct {
	t      *testing.T
	began  time.Time
	room   int           // places
	frees  time.Duration // how often one frees; 0: never
	taken  int
	order  []string       // payloads, in order
	keys   map[string]int // idempotency key → jobs with it
	sizes  []int          // of the requests
	refuse func(request int, jobs []wire.BatchJob) error
	result func(job wire.BatchJob) (wire.JobResult, bool)
}

func (in *intake) send(_ context.Context, jobs []json.RawMessage) ([]wire.JobResult, error) {
	in.sizes = append(in.sizes, len(jobs))
	bytes := client.BatchFrame
	parsed := make([]wire.BatchJob, len(jobs))
	for i, job := range jobs {
		bytes += len(job) + 1
		if err := json.Unmarshal(job, &parsed[i]); err != nil {
			in.t.Fatalf("sent %s: %v", job, err)
		}
	}
	if len(jobs) < 1 || len(jobs) > wire.MaxBatch {
		in.t.Errorf("a batch of %d jobs, want 1 to %d", len(jobs), wire.MaxBatch)
	}
	if bytes > maxBatchBytes {
		in.t.Errorf("a batch of %d bytes, want at most %d", bytes, maxBatchBytes)
	}
	if in.refuse != nil {
		if err := in.refuse(len(in.sizes), parsed); err != nil {
			return nil, err
		}
	}
	room := in.room
	if in.frees > 0 {
		room += int(time.Since(in.began) / in.frees)
	}
	out := make([]wire.JobResult, len(jobs))
	for i, job := range parsed {
		out[i].Status = 202
		if in.result != nil {
			if v, is := in.result(job); is {
				out[i] = v
				continue
			}
		}
		switch {
		case in.keys[job.IdempotencyKey] > 0:
			out[i].Replayed = true
		case in.taken == room:
			capacity := int64(1)
			next := in.frees - time.Since(in.began)%max(in.frees, 1)
			out[i].Problem = wire.Problem{
				Type: "urn:sluice:problem:queue-full", Title: "full", Status: 429, Capacity: &capacity,
				RetryAfterMS: next.Milliseconds(),
			}
		default:
			in.taken++
			in.order = append(in.order, string(job.Payload))
			if job.IdempotencyKey != "" {
				in.keys[job.IdempotencyKey]++
			}
		}
	}
	return out, nil
}

func (in *intake) feed(text io.Reader) *feed {
	in.began, in.keys = time.Now(), map[string]int{}
	if in.room == 0 && in.frees == 0 {
		in.room = 1 << 30
	}
	return &feed{
		lines: feedLines(in.t.Context(), newLineReader(text, maxLine)), prefix: "p-", wait: true,
		patience: time.Minute,
		tally:    cli.NewTally(time.Now()), send: in.send,
	}
}

// inOrder reports whether the payloads of numbered were taken once each and in order.
func (in *intake) inOrder(n int) bool {
	for i, payload := range in.order {
		if payload != `{"n":`+strconv.Itoa(i+1)+`}` {
			return false
		}
	}
	return len(in.order) == n
}

// TestSubmitFileSaysWhatItWaitsFor: with the title and the detail of the problem.
func TestSubmitFileSaysWhatItWaitsFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := &intake{t: t, room: 2}
		first := true
		in.result = func(wire.BatchJob) (wire.JobResult, bool) {
			share := problem(429, "queue-bytes-full").Problem
			share.Title, share.Detail = "A limit in bytes is reached", "5 of 4 bytes are stored"
			refused := first
			first = false
			return wire.JobResult{Problem: share}, refused
		}
		f := in.feed(strings.NewReader(numbered(1)))
		done := make(chan struct{})
		go func() {
			defer close(done)
			f.run(t.Context())
		}()
		time.Sleep(time.Second)
		waits := f.tally.Now().Waiting
		<-done
		queuetest.Compare(t, "what it waits for", waits, "A limit in bytes is reached: 5 of 4 bytes are stored")
		queuetest.Compare(t, "then", f.tally.Now().Waiting, "")
	})
}

// paused refuses the payload once, as a tenant that is paused does.
func paused(payload string) func(wire.BatchJob) (wire.JobResult, bool) {
	first := true
	return func(job wire.BatchJob) (wire.JobResult, bool) {
		refused := first && string(job.Payload) == payload
		first = first && !refused
		capacity := int64(5)
		v := wire.JobResult{Problem: problem(429, "queue-full").Problem}
		v.Capacity = &capacity
		return v, refused
	}
}

func problem(status int, kind string, errs ...wire.FieldError) *client.Error {
	return &client.Error{Problem: wire.Problem{
		Type: "urn:sluice:problem:" + kind, Title: kind, Status: status, Errors: errs,
	}}
}

func field(path string) wire.FieldError {
	return wire.FieldError{Field: path, Kind: "string", Rule: "breaks a rule"}
}

// Every line of a file is admitted in order, refused for good or counted as unsent, whatever the
// server does.
func TestSubmitFile(t *testing.T) {
	away := errors.New("connection refused")
	for _, c := range []struct {
		name   string
		text   string
		in     intake
		change func(*feed)
		want   feedSummary // without First and Seconds
		sizes  []int       // of the requests, if it matters
		named  string      // among the first refused lines and the error
		least  time.Duration
	}{
		{name: "an empty file", text: "\n \n"},
		{name: "batches", text: numbered(2500), want: feedSummary{Lines: 2500, Admitted: 2500},
			sizes: []int{1000, 1000, 500}},
		{name: "batches bounded by bytes", text: strings.Repeat(`{"type":"t","payload":"`+strings.Repeat("x",
			3<<20)+`"}`+"\n", 5),
			want: feedSummary{Lines: 5, Admitted: 5}, sizes: []int{2, 2, 1}},
		{name: "a line that is too long", text: numbered(1) + strings.Repeat("x", maxBatchBytes) + "\n",
			named: "line 2",
			want:  feedSummary{Lines: 2, Admitted: 1, Refused: map[string]int{"invalid-line": 1}}},
		{name: "lines that are none", text: "[]\n{\n{} {}\n\"\xff\"\n" + `{"type":"t","payload":1}`,
			named: "line 1",
			want:  feedSummary{Lines: 5, Admitted: 1, Refused: map[string]int{"invalid-line": 4}}},
		{name: "a queue that is full", text: numbered(3000),
			in: intake{room: 100, frees: 5 * time.Millisecond}, least: 14500 * time.Millisecond,
			want: feedSummary{Lines: 3000, Admitted: 3000}},
		{name: "a queue that is full, not waited for", text: numbered(10), in: intake{room: 4},
			change: func(f *feed) { f.wait = false }, named: "line 5",
			want: feedSummary{Lines: 10, Admitted: 4, Refused: map[string]int{"queue-full": 6}}},
		{name: "a queue that is slow beyond all patience", text: numbered(10),
			in:   intake{room: 4, frees: 100 * time.Hour},
			want: feedSummary{Lines: 10, Admitted: 10}, least: 600 * time.Hour},
		{name: "a queue that cannot say when", text: numbered(2), want: feedSummary{Lines: 2, Admitted: 2},
			least: pausedPause, sizes: []int{2, 1},
			in: intake{result: paused(`{"n":2}`)}},
		{name: "a queue that takes nothing", text: numbered(1),
			in: intake{result: func(wire.BatchJob) (wire.JobResult, bool) {
				none := int64(0)
				return wire.JobResult{Problem: wire.Problem{Type: "urn:sluice:problem:queue-full", Status: 429,
					Capacity: &none}}, true
			}}, named: "line 1", want: feedSummary{Lines: 1, Refused: map[string]int{"queue-full": 1}}},
		{name: "single refusals", text: numbered(3), named: "line 2", want: feedSummary{
			Lines: 3, Admitted: 2, Refused: map[string]int{"deadline-unreachable": 1},
		},
			in: intake{result: func(job wire.BatchJob) (wire.JobResult, bool) {
				return wire.JobResult{Problem: problem(422, "deadline-unreachable").Problem},
					string(job.Payload) == `{"n":2}`
			}}},
		{name: "malformed lines", text: numbered(5), named: "cost (string) breaks a rule; breaks a rule",
			sizes: []int{5},
			want:  feedSummary{Lines: 5, Admitted: 4, Refused: map[string]int{"invalid-request": 1}},
			in: intake{result: func(job wire.BatchJob) (wire.JobResult, bool) {
				return wire.JobResult{Problem: problem(422, "invalid-request", field("cost"),
					field("body")).Problem}, string(job.Payload) == `{"n":3}`
			}}},
		{name: "a payload that never fits", text: numbered(3), named: "line 2", sizes: []int{3},
			want: feedSummary{Lines: 3, Admitted: 2, Refused: map[string]int{"never-fits": 1}},
			in: intake{result: func(job wire.BatchJob) (wire.JobResult, bool) {
				return wire.JobResult{Problem: problem(429, "never-fits").Problem}, string(job.Payload) == `{"n":2}`
			}}},
		{name: "a gateway that takes less", text: numbered(5), want: feedSummary{Lines: 5, Admitted: 5},
			in: intake{refuse: func(_ int, jobs []wire.BatchJob) error {
				if len(jobs) > 2 {
					return &client.Error{Problem: wire.Problem{Status: 413, Title: "Request Entity Too Large"}}
				}
				return nil
			}}},
		{name: "a gateway that takes nothing", text: numbered(2), want: feedSummary{
			Lines: 2, Refused: map[string]int{"too-large": 2},
		}, named: "line 2",
			in: intake{refuse: func(int, []wire.BatchJob) error {
				return &client.Error{Problem: wire.Problem{Status: 413, Title: "Request Entity Too Large"}}
			}}},
		{name: "a server that is away for a while", text: numbered(5),
			want: feedSummary{Lines: 5, Admitted: 5}, least: 3 * time.Second,
			in: intake{refuse: func(n int, _ []wire.BatchJob) error {
				if n < 4 {
					return away
				}
				return nil
			}}},
		{name: "a server that stays away", text: numbered(1500), want: feedSummary{Lines: 1000, Unsent: 1000},
			named: "connection refused", least: time.Minute,
			in: intake{refuse: func(int, []wire.BatchJob) error { return away }}},
		{name: "without keys nothing is sent twice", text: numbered(5),
			want: feedSummary{Lines: 5, Unsent: 5}, named: "--key-prefix", sizes: []int{5},
			in:     intake{refuse: func(int, []wire.BatchJob) error { return away }},
			change: func(f *feed) { f.prefix = "" }},
		{name: "but where nothing was admitted", text: numbered(5), want: feedSummary{Lines: 5, Admitted: 5},
			change: func(f *feed) { f.prefix = "" },
			in: intake{refuse: func(n int, _ []wire.BatchJob) error {
				if n == 1 {
					return problem(503, "shutting-down")
				}
				return nil
			}}},
		{name: "another refusal of everything", text: numbered(5), want: feedSummary{Lines: 5, Unsent: 5},
			named: "unauthorized", sizes: []int{5},
			in: intake{refuse: func(int, []wire.BatchJob) error { return problem(401, "unauthorized") }}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				in := c.in
				in.t = t
				f := in.feed(strings.NewReader(c.text))
				if c.change != nil {
					c.change(f)
				}
				got := f.run(t.Context())
				named := fmt.Sprint(got.First, got.Error)
				for _, r := range got.First {
					named += fmt.Sprintf(" line %d", r.Line)
				}
				if !strings.Contains(named, c.named) || (c.named == "") != got.ok() {
					t.Errorf("named %s, want %q", named, c.named)
				}
				if c.want.Refused == nil {
					c.want.Refused = map[string]int{}
				}
				queuetest.Compare(t, "the summary",
					queuetest.Only(got, "Lines", "Admitted", "Replayed", "Refused", "Unsent"), c.want)
				if c.sizes != nil && !slices.Equal(in.sizes, c.sizes) {
					t.Errorf("requests of %v, want %v", in.sizes, c.sizes)
				}
				if took := time.Since(in.began); took < c.least || took > c.least+time.Second+c.least/5 {
					t.Errorf("it took %v, want %v", took, c.least)
				}
				if len(in.sizes) > 500 {
					t.Errorf("%d requests", len(in.sizes))
				}
				if strings.HasPrefix(c.text, `{"type":"t","payload":{"n":1}}`) && got.ok() &&
					!in.inOrder(c.want.Admitted) {
					t.Errorf("not in order: %.200v", in.order)
				}
			})
		})
	}
}

// A run that failed may be repeated: no line is submitted twice.
func TestSubmitFileAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		text := numbered(1200) + `{"type":"t","payload":{"n":1201},"idempotency_key":"own"}`
		in := intake{t: t, refuse: func(n int, _ []wire.BatchJob) error {
			if n == 2 {
				return problem(401, "unauthorized")
			}
			return nil
		}}
		if s := in.feed(strings.NewReader(text)).run(t.Context()); s.ok() || s.Admitted != 1000 {
			t.Fatalf("the first run: %+v, want a failure with 1000 admitted", s)
		}
		keys := in.keys
		f := in.feed(strings.NewReader(text))
		in.keys = keys
		s := f.run(t.Context())
		queuetest.Compare(t, "the summary", queuetest.Only(s, "Admitted", "Replayed", "Refused", "Error"),
			feedSummary{Admitted: 201, Replayed: 1000, Refused: map[string]int{}})
		if !in.inOrder(1201) {
			t.Errorf("%d jobs were taken, want 1201 in order", len(in.order))
		}
		for _, key := range []string{"own", "p-1200"} {
			queuetest.Compare(t, "jobs with the key "+key, in.keys[key], 1)
		}
	})
}

// Lines of a slow writer are sent as they come, and an interruption ends it.
func TestSubmitFileOfASlowWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, w := io.Pipe()
		defer r.Close()
		in := intake{t: t}
		f := in.feed(r)
		ctx, cancel := context.WithCancel(t.Context())
		go func() {
			for range 3 {
				_, _ = io.WriteString(w, numbered(1))
				<-time.After(time.Second)
			}
			cancel()
			w.Close()
		}()
		s := f.run(ctx)
		queuetest.Compare(t, "it went well", s.ok(), false)
		queuetest.Compare(t, "the summary", queuetest.Only(s, "Admitted", "Error"),
			feedSummary{Admitted: 3, Error: "interrupted"})
		queuetest.Compare(t, "the sizes of the requests", in.sizes, []int{1, 1, 1})
		var text strings.Builder
		s.explain(&text)
		if err := s.print(&text); err != nil {
			t.Fatal(err)
		}
		queuetest.Contains(t, "what is printed", text.String(), "admitted", "interrupted")
	})
}

// A line keeps its bytes, but for the key that it is given.
func FuzzReadSubmission(f *testing.F) {
	for _, s := range []string{
		`{"type":"t","payload": { "a" : "<" }}`, `{}`, `{ }`, `{"idempotency_key":"k"}`,
		`{"idempotency_key":null}`, `[]`, `{"a":1}{`,
	} {
		f.Add([]byte(s), "p-")
	}
	f.Fuzz(func(t *testing.T, text []byte, prefix string) {
		lines := readLines(t, strings.NewReader(strings.ReplaceAll(string(text), "\n", " ")), maxLine)
		if len(lines) == 0 {
			return
		}
		s, reason := readSubmission(lines[0], prefix)
		if reason != "" {
			return
		}
		var before, after map[string]json.RawMessage
		if err := json.Unmarshal(lines[0].text, &before); err != nil {
			t.Fatalf("%q is taken, but: %v", text, err)
		}
		if err := json.Unmarshal(s.body, &after); err != nil {
			t.Fatalf("%q became %q: %v", text, s.body, err)
		}
		if s.keyed && len(after) == len(before)+1 {
			delete(after, "idempotency_key")
		}
		for name, value := range before {
			if string(after[name]) != string(value) {
				t.Errorf("%q: %s became %q", text, name, after[name])
			}
		}
		if len(after) != len(before) {
			t.Errorf("%q became %q", text, s.body)
		}
	})
}

// A payload that is too long is refused for its length, although the part that was read is not
// JSON.
func TestSubmitTooMuch(t *testing.T) {
	var out, errs strings.Builder
	in := strings.NewReader(`"` + strings.Repeat("x", maxPayload) + `"`)
	code := run(t.Context(), []string{"submit", "--type", "t"}, cli.Stdio{In: in, Out: &out, Err: &errs},
		nil)
	if code != cli.ExitUsage || !strings.Contains(errs.String(), "the payload must have at most 16 MiB") {
		t.Errorf("exit code %d, %s", code, errs.String())
	}
}
