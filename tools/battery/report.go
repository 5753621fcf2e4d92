package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"
)

// verdict is the end of a check.
type verdict string

const (
	met    verdict = "ok"
	missed verdict = "MISSED" // a figure is out of its bound
	failed verdict = "FAILED" // the check could not be carried out
	peer   verdict = "peer"   // no target

	skipped verdict = "skipped" // a requirement is missing here
)

// errSkipped is wrapped by the error of a check whose requirement is missing here; the error names
// it.
var errSkipped = errors.New("skipped")

// result is a check as it went.
type result struct {
	ID      string   `json:"id"`
	What    string   `json:"what"`
	Target  string   `json:"target"`
	Verdict verdict  `json:"verdict"`
	Figure  string   `json:"figure"`
	Figures []figure `json:"figures"`
	Why     []string `json:"why,omitempty"`
	Seconds float64  `json:"seconds"`
	Try     int      `json:"try"`            // the number of this try; only the last one is reported
	Kept    string   `json:"kept,omitempty"` // directory with logs and ledger

	stalls stalls
}

// bad reports whether the check found something wrong, or could not be carried out.
func (r result) bad() bool { return r.Verdict == missed || r.Verdict == failed }

// untimely reports whether nothing but figures of time were missed.
func (r result) untimely() bool {
	return r.Verdict == missed &&
		!slices.ContainsFunc(r.Figures, func(f figure) bool { return !f.OK && !f.Timed })
}

// inconclusive reports whether nothing but figures of time were missed, on a machine that stalled
// meanwhile.
func (r result) inconclusive() bool { return r.untimely() && r.stalls.n > 0 }

// report is the JSON form of a run.
type report struct {
	Seed    uint64   `json:"seed"`
	Full    bool     `json:"full"`
	OK      bool     `json:"ok"`
	Results []result `json:"results"`
}

func (c check) result(f *findings, err error, took time.Duration) result {
	r := result{
		ID: c.id, What: c.what, Target: c.target, Verdict: met, Figure: f.String(), Figures: f.figures,
		Seconds: took.Seconds(),
	}
	switch {
	case errors.Is(err, errSkipped):
		r.Verdict = skipped
		f.because("%v", err)
	case err != nil:
		r.Verdict = failed
		f.because("%v", err)
	case c.peer:
		r.Verdict = peer
	case f.missed():
		r.Verdict = missed
	case len(f.figures) == 0:
		r.Verdict = failed
		f.because("nothing was measured")
	}
	return r
}

// table prints the results; figures out of their bounds are marked with !!.
func table(out io.Writer, results []result) {
	fmt.Fprintf(out, "%-12s %-7s %7s  %s\n", "id", "verdict", "time", "what · target · figure")
	for _, r := range results {
		fmt.Fprintf(out, "%-12s %-7s %5.0f s  %s\n", r.ID, r.Verdict, r.Seconds, r.What)
		fmt.Fprintf(out, "%31s%s\n", "target  ", r.Target)
		fmt.Fprintf(out, "%31s%s\n", "figure  ", r.Figure)
		if r.Try > 1 {
			fmt.Fprintf(out, "%31sof try %d\n", "", r.Try)
		}
		for _, why := range r.Why {
			fmt.Fprintf(out, "%31s%s\n", "because  ", strings.ReplaceAll(why, "\n", "\n"+strings.Repeat(" ", 31)))
		}
		if r.Kept != "" {
			fmt.Fprintf(out, "%31s%s\n", "kept  ", r.Kept)
		}
	}
}

// lossesOf prints a line for each case of S4: what the quiet tenants lost in the worst window of
// each phase, their 503s, and how long half of their submissions took at most.
func lossesOf(out io.Writer, results []result) {
	columns := []string{
		"lost alone", "lost beside", "lost after", "503s beside", "503s after", "p50 of submissions alone",
		"p50 in the worst 2 s beside",
	}
	format := strings.Repeat("  %-8s", len(columns)) + "\n"
	head := false
	for _, r := range results {
		name, of := strings.CutPrefix(r.ID, "S4-")
		if !of {
			continue
		}
		if !head {
			fmt.Fprintf(out, "\n%-12s"+format, "S4", "alone %", "beside %", "after %", "503s", "after", "alone ms", "beside ms")
			head = true
		}
		values := make([]any, len(columns))
		for i, column := range columns {
			values[i] = "-"
			for _, f := range r.Figures {
				if f.Name == column {
					values[i] = strconv.FormatFloat(f.Value, 'f', 1, 64)
				}
			}
		}
		fmt.Fprintf(out, "%-12s"+format, append([]any{name}, values...)...)
	}
}

func writeJSON(path string, r report) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(f)
	enc.SetIndent("", "  ")
	return errors.Join(enc.Encode(r), f.Close())
}

// screen shows the progress: on one line of a terminal, or on separate lines elsewhere, one in two
// seconds.
type screen struct {
	out  *os.File
	live bool
	last time.Time
}

func newScreen(out *os.File) *screen {
	return &screen{out: out, live: term.IsTerminal(int(out.Fd()))}
}

// now shows a passing state.
func (s *screen) now(format string, args ...any) {
	switch {
	case s.live:
		fmt.Fprintf(s.out, "\r\033[K%.110s", fmt.Sprintf(format, args...))
	case time.Since(s.last) >= 2*time.Second:
		s.last = time.Now()
		fmt.Fprintf(s.out, format+"\n", args...)
	}
}

// line shows a permanent line.
func (s *screen) line(format string, args ...any) {
	s.clear()
	fmt.Fprintf(s.out, format+"\n", args...)
}

func (s *screen) clear() {
	if s.live {
		fmt.Fprint(s.out, "\r\033[K")
	}
}
