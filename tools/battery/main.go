// Command battery breaks Sluice on purpose and checks what it promises: it starts real
// redis-servers and sluice processes, kills, stops and starves them under load, and checks a ledger
// of every request and every delivery.
//
//	go run ./tools/battery -quick            every check, small: about seven minutes
//	go run ./tools/battery -full             every check as large as it is meant: at most 20 minutes
//	go run ./tools/battery -only R1,R3       some of them; S4 stands for all of its cases, S4-dead and so on
//	go run ./tools/battery -list             what there is
//	go run ./tools/battery -shared           on a machine with other work: timings are shown, but do not fail
//	go run ./tools/battery -json FILE        writes the figures as JSON as well
//
// It exits 0 when every target is met, 1 when one is missed or a check could not be carried out, 2
// on bad usage. All is on loopback, in directories of its own, and everything it has started ends
// with it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/7509e464/sluice/tools/internal/product"
)

// options are those of the command line.
type options struct {
	full, list, keep bool
	shared           bool // misses of figures of time do not fail the run
	only             string
	seed             uint64
	bin, json        string
}

func main() {
	if os.Getenv(childVariable) != "" && len(os.Args) == 3 {
		if err := asynqWorker(os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "battery's asynq worker:", err)
			os.Exit(1)
		}
		return
	}
	o, chosen, err := parse(os.Args[1:])
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "battery:", err)
		os.Exit(2)
	}
	if o.list {
		for _, c := range chosen {
			fmt.Printf("%-12s %s: %s\n", c.id, c.what, c.target)
		}
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	go func() { // a second signal ends it at once; its children end with it
		<-ctx.Done()
		stop()
	}()
	ok, err := battery(ctx, o, chosen)
	if err != nil {
		fmt.Fprintln(os.Stderr, "battery:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

// parse reads the command line and picks the checks.
func parse(args []string) (options, []check, error) {
	o := options{}
	flags := flag.NewFlagSet("battery", flag.ContinueOnError)
	quick := flags.Bool("quick", false, "small runs of everything (the default)")
	flags.BoolVar(&o.full, "full", false, "large runs of everything, with peers")
	flags.StringVar(&o.only, "only", "", "run these `IDS` alone, such as R1,R3")
	flags.Uint64Var(&o.seed, "seed", 0,
		"`number` that everything random follows from; one of its own if not given")
	flags.StringVar(&o.bin, "bin", "", "the built sluice program; built from ./cmd/sluice if not given")
	flags.StringVar(&o.json, "json", "", "write the figures to this `file`, too")
	flags.BoolVar(&o.list, "list", false, "list the checks and end")
	flags.BoolVar(&o.keep, "keep", false, "keep the directory, with logs and ledger, of a check that is not ok")
	flags.BoolVar(&o.shared, "shared", false,
		"this machine has other work: what fails is tried once more, and a missed figure of time alone "+
			"does not fail the run")
	flags.SetOutput(io.Discard) // main prints the error
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			flags.SetOutput(os.Stdout)
			flags.Usage()
		}
		return o, nil, err
	}
	if o.seed == 0 {
		o.seed = rand.Uint64()
	}
	if flags.NArg() > 0 {
		return o, nil, fmt.Errorf("unexpected argument %q; -only takes the checks", flags.Arg(0))
	}
	if *quick && o.full {
		return o, nil, errors.New("-quick or -full, not both")
	}
	chosen, err := choose(all(), o)
	return o, chosen, err
}

// choose picks the checks named by -only, or all that suit -quick or -full.
func choose(checks []check, o options) ([]check, error) {
	if o.only == "" {
		var chosen []check
		for _, c := range checks {
			if o.full || o.list || !c.fullOnly {
				chosen = append(chosen, c)
			}
		}
		return chosen, nil
	}
	wanted := map[string]bool{}
	for name := range strings.SplitSeq(o.only, ",") {
		wanted[strings.TrimSpace(name)] = true
	}
	for name := range maps.Clone(wanted) { // S4 stands for S4-dead and its other cases
		for _, c := range checks {
			if strings.HasPrefix(c.id, name+"-") &&
				!slices.ContainsFunc(checks, func(o check) bool { return o.id == name }) {
				delete(wanted, name)
				wanted[c.id] = true
			}
		}
	}
	var chosen []check
	for _, c := range checks {
		if !wanted[c.id] {
			continue
		}
		delete(wanted, c.id)
		if c.fullOnly && !o.full {
			return nil, fmt.Errorf("%s is part of -full only", c.id)
		}
		chosen = append(chosen, c)
	}
	for name := range wanted {
		return nil, fmt.Errorf("no check %q; -list names them", name)
	}
	return chosen, nil
}

// tries is how often a check is carried out that is not ok, where the machine may be to blame.
const tries = 2

// battery runs the checks one after the other and reports; ok is whether all targets are met.
func battery(ctx context.Context, o options, chosen []check) (ok bool, err error) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		return false, errors.New("redis-server is needed on PATH (make redis installs it)")
	}
	redis.SetLogger(quiet{}) // outages of Redis are expected
	nursery := newNursery()
	defer nursery.clear()
	show := newScreen(os.Stderr)
	defer show.clear()
	fmt.Printf("seed %d\n", o.seed)
	bin, err := program(ctx, o.bin, show)
	if err != nil {
		return false, err
	}
	defer bin.remove()
	rates := newRateBook()
	var results []result
	for _, c := range chosen {
		if ctx.Err() != nil {
			break
		}
		w := world{
			id: strings.ReplaceAll(c.id, "/", "-"), bin: bin.path, scale: c.quick, rates: rates,
			nursery: nursery,
		}
		if o.full {
			w.scale = c.full
		}
		for try := 1; ; try++ {
			w.rng = rand.New(rand.NewPCG(o.seed, 0)) // the same whatever else is run
			r := c.perform(ctx, w, o, show)
			show.line("%-12s %-7s %3.0f s  %s", r.ID, r.Verdict, r.Seconds, r.Figure)
			if try < tries && (r.inconclusive() || o.shared && r.bad()) {
				show.line("%-12s again; the machine stalled %d times, once for %v", r.ID, r.stalls.n, r.stalls.longest)
				continue
			}
			r.Try = try
			results = append(results, r)
			break
		}
	}
	show.clear()
	table(os.Stdout, results)
	lossesOf(os.Stdout, results)
	ok = len(results) == len(chosen)
	for _, r := range results {
		ok = ok && (!r.bad() || o.shared && r.untimely())
	}
	if o.json != "" {
		err = writeJSON(o.json, report{Seed: o.seed, Full: o.full, OK: ok, Results: results})
	}
	return ok, errors.Join(err, ctx.Err())
}

// quiet is a log of the Redis client without output.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// perform runs the check in a world of its own.
func (c check) perform(ctx context.Context, wanted world, o options, show *screen) result {
	start := time.Now()
	f := &findings{}
	ctx, cancel := context.WithTimeout(ctx, or(wanted.scale.limit, 90*time.Second))
	defer cancel()
	wanted.say = func(format string, args ...any) {
		show.now("%-12s %3.0f s  %s", c.id, time.Since(start).Seconds(), fmt.Sprintf(format, args...))
	}
	watched := watchStalls(ctx)
	w, err := newWorld(wanted)
	if err == nil {
		err = guarded(func() error { return c.run(ctx, w, f) })
	}
	cancel()
	r := c.result(f, err, time.Since(start))
	r.stalls = <-watched
	if r.inconclusive() {
		f.because("perhaps the machine: it stalled %d times for more than 10 ms, once for %v", r.stalls.n,
			r.stalls.longest)
	}
	if w != nil {
		keep := o.keep && r.bad()
		if err := w.close(keep); err != nil {
			f.because("clean up: %v", err)
		}
		if keep {
			r.Kept = w.dir
		}
	}
	r.Why = f.why
	return r
}

// guarded turns a panic of a check into its failure, so that its processes are ended in order.
func guarded(run func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return run()
}

// built is the program under test.
type built struct {
	path string
	dir  string // to be removed
}

func (b built) remove() {
	if b.dir != "" {
		_ = os.RemoveAll(b.dir)
	}
}

// program is the given binary, or one that is built now.
func program(ctx context.Context, given string, show *screen) (built, error) {
	if given != "" {
		path, err := filepath.Abs(given)
		if err == nil {
			_, err = os.Stat(path)
		}
		return built{path: path}, err
	}
	dir, err := os.MkdirTemp("", "sluice-battery-bin-")
	if err != nil {
		return built{}, err
	}
	b := built{path: filepath.Join(dir, "sluice"), dir: dir}
	show.now("building ./cmd/sluice")
	if err := product.Build(ctx, b.path); err != nil {
		b.remove()
		return built{}, fmt.Errorf("%w (or give -bin)", err)
	}
	return b, nil
}
