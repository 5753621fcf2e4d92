// Command bench measures Sluice against its targets and prints a table of target, figure and
// verdict. It starts its own redis-server in a directory of its own, uses loopback only, and exits
// 1 when a figure falls short.
//
//	go run ./tools/bench               every figure
//	go run ./tools/bench P5 P11        some of them
//	go run ./tools/bench -list         what there is
//	go run ./tools/bench -json FILE    writes the figures as JSON as well
//	go run ./tools/bench -plot DIR     draws pictures of figures that have one
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/term"
)

// figure is one measurement with its target.
type figure struct {
	id      string
	what    string
	unit    string
	target  float64
	upTo    float64 // and an upper bound beside the lower one that the target is; 0: none
	atMost  bool    // the target is an upper bound; else a lower one
	worst   bool    // the worst sample counts, not the median
	info    bool    // has no target, so it always passes
	measure func(ctx context.Context, b *bench) (samples []float64, err error)
}

// result is a figure as measured: the median of its samples or the worst one, and their ends.
type result struct {
	Value  float64 `json:"value"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Target float64 `json:"target"`
	UpTo   float64 `json:"target_max,omitempty"` // where the target is a range
	Pass   bool    `json:"pass"`
	Unit   string  `json:"unit"`
	Rows   any     `json:"rows,omitempty"` // what it was worked out from
}

// bench is what a measurement may use.
type bench struct {
	runs     int
	profiles string // directory; empty for none
	progress func(format string, args ...any)
	tables   map[string]table
	shared   map[string]any // what several figures are worked out from
	pictures map[string]picture
}

// once measures what several figures are worked out from, or has done so before, in vain perhaps.
func once[T any](b *bench, name string, measure func() (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	if b.shared == nil {
		b.shared = map[string]any{}
	}
	if _, ok := b.shared[name]; !ok {
		value, err := measure()
		b.shared[name] = answer{value, err}
	}
	a := b.shared[name].(answer)
	return a.value, a.err
}

// table is what a figure was worked out from, for people and as values for JSON.
type table struct {
	lines []string
	rows  any
}

// detail keeps what the figure was worked out from.
func (b *bench) detail(id string, lines []string, rows any) {
	if b.tables == nil {
		b.tables = map[string]table{}
	}
	b.tables[id] = table{lines, rows}
}

func main() {
	if asChild(os.Args[1:]) {
		return
	}
	list := flag.Bool("list", false, "list the figures and end")
	runs := flag.Int("runs", 5, "interleaved runs of each figure; the median counts")
	profiles := flag.String("profile", "",
		"write processor profiles of the intake (P1), the drain (P3, P4) and the streams (P17) to this directory")
	file := flag.String("json", "", "write the results to this file as JSON")
	plots := flag.String("plot", "", "draw pictures of the figures that have one into this directory, as SVG")
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: bench [FIGURE…] [flags], for example: bench P11 -runs 3")
		flag.PrintDefaults()
	}
	names := figuresIn(flag.CommandLine, os.Args[1:])
	figures := all()
	if *list {
		for _, f := range figures {
			fmt.Printf("%-14s %s\n", f.id, f.what)
		}
		return
	}
	chosen, err := choose(figures, names)
	if err == nil && *runs < 1 {
		err = fmt.Errorf("-runs %d: want at least 1", *runs)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b := &bench{runs: *runs, profiles: *profiles, progress: progress()}
	results, failed := run(ctx, chosen, b)
	if *plots != "" {
		if err := b.draw(*plots); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			failed = true
		}
	}
	if *file != "" {
		if err := write(*file, results); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			failed = true
		}
	}
	if failed {
		os.Exit(1)
	}
}

// figuresIn reads flags, which may stand before, between and after the names of figures. A mistake
// in them ends the program.
func figuresIn(flags *flag.FlagSet, args []string) (names []string) {
	_ = flags.Parse(args)
	for flags.NArg() > 0 {
		names = append(names, flags.Arg(0))
		_ = flags.Parse(flags.Args()[1:])
	}
	return names
}

func choose(figures []figure, names []string) ([]figure, error) {
	if len(names) == 0 {
		return figures, nil
	}
	var chosen []figure
	for _, name := range names {
		found := false
		for _, f := range figures {
			if f.id == name || strings.HasPrefix(f.id, name+"-") {
				chosen, found = append(chosen, f), true
			}
		}
		if !found {
			return nil, fmt.Errorf("no figure %q; -list names them", name)
		}
	}
	return chosen, nil
}

// progress is a function that shows what is being done: on one line of a terminal, or on lines of
// its own elsewhere.
func progress() func(format string, args ...any) {
	if term.IsTerminal(int(os.Stderr.Fd())) {
		return func(format string, args ...any) { fmt.Fprintf(os.Stderr, "\r\033[K"+format, args...) }
	}
	return func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
}

func run(ctx context.Context, figures []figure, b *bench) (results map[string]result, failed bool) {
	results = map[string]result{}
	for _, f := range figures {
		start := time.Now()
		b.progress("%s: %s", f.id, f.what)
		samples, err := f.measure(ctx, b)
		if err != nil {
			b.progress("%s failed: %v", f.id, err)
			failed = true
			continue
		}
		r := f.judge(samples)
		r.Rows = b.tables[f.id].rows
		results[f.id] = r
		failed = failed || !r.Pass
		b.progress("%s took %v", f.id, time.Since(start).Round(time.Second))
	}
	b.progress("")
	for _, f := range figures {
		if t := b.tables[f.id]; len(t.lines) > 0 {
			fmt.Printf("%s\n\n", strings.Join(t.lines, "\n"))
		}
	}
	fmt.Printf("%-14s %10s %10s %10s %12s  %-7s %s\n", "figure", "median", "min", "max", "target", "verdict",
		"what")
	for _, f := range figures {
		r, ok := results[f.id]
		if !ok {
			fmt.Printf("%-14s %57s  %s\n", f.id, "failed", f.what)
			continue
		}
		verdict, sign := "ok", "≥"
		if !r.Pass {
			verdict = "MISSED"
		}
		if f.atMost {
			sign = "≤"
		}
		target := fmt.Sprintf("%s %g", sign, f.target)
		if f.upTo != 0 {
			target = fmt.Sprintf("%g–%g", f.target, f.upTo)
		}
		if f.info {
			verdict, target = "info", "-"
		}
		fmt.Printf("%-14s %10.4g %10.4g %10.4g %12s  %-7s %s (%s)\n", f.id, r.Value, r.Min, r.Max, target,
			verdict, f.what, f.unit)
	}
	return results, failed
}

func (f figure) judge(samples []float64) result {
	slices.Sort(samples)
	r := result{
		Value: samples[len(samples)/2], Min: samples[0], Max: samples[len(samples)-1], Target: f.target,
		UpTo: f.upTo, Unit: f.unit,
	}
	switch {
	case f.worst && f.atMost:
		r.Value = r.Max
	case f.worst:
		r.Value = r.Min
	}
	switch {
	case f.info:
		r.Pass = true
	case f.atMost:
		r.Pass = r.Value <= f.target
	default:
		r.Pass = r.Value >= f.target && (f.upTo == 0 || r.Value <= f.upTo)
	}
	return r
}

func write(file string, results map[string]result) error {
	raw, err := json.MarshalIndent(results, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the results: %w", err)
	}
	return os.WriteFile(file, append(raw, '\n'), 0o644)
}
