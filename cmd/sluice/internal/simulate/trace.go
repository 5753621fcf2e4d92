// Package simulate holds the commands that record arrivals and replay them without a server, and
// draws their pictures.
package simulate

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/shaper"
	"github.com/7509e464/sluice/shaper/simulate"
)

// traceFlags select a file of arrivals, or generate arrivals.
type traceFlags struct {
	Trace    string        `placeholder:"FILE" help:"Read the arrivals from FILE; - is standard input."`
	Format   string        `enum:"auto,csv,log" default:"auto" placeholder:"FORMAT" help:"Format of the file: csv, log (common or combined access log) or auto [auto]."`
	Generate *string       `enum:"steady,poisson,flash-sale,daily-wave" placeholder:"SHAPE" help:"Generate the arrivals: steady, poisson, flash-sale or daily-wave."`
	Arrivals shaper.Rate   `default:"10/s" placeholder:"LIMIT/PERIOD" help:"Rate of generated arrivals outside the peak [10/s by default]."`
	Peak     shaper.Rate   `default:"200/s" placeholder:"LIMIT/PERIOD" help:"Rate of generated arrivals at the peak of flash-sale and daily-wave [200/s by default]."`
	For      time.Duration `default:"0s" placeholder:"DURATION" help:"Time span of generated arrivals [1m, daily-wave 24h]."`
	Seed     uint64        `default:"1" placeholder:"N" help:"Seed of generated arrivals [1]."`
}

// pictureFlags name the file of a picture.
type pictureFlags struct {
	SVG  string `name:"svg" placeholder:"FILE" help:"Write a picture as SVG."`
	Plot *bool  `negatable:"" help:"Print plots as text [on a terminal]."`
	JSON bool   `help:"Print the figures as JSON."`
}

// load reads or generates the trace. It reports skipped lines on standard error.
func (f *traceFlags) load(a *cli.App) (simulate.Trace, error) {
	switch {
	case (f.Trace == "") == (f.Generate == nil):
		return nil, cli.Usagef("either --trace FILE or --generate SHAPE is required")
	case f.Generate != nil:
		return f.generate()
	}
	in, name := a.In, "standard input"
	size := int64(-1)
	if f.Trace != "-" {
		file, err := os.Open(f.Trace)
		if err != nil {
			return nil, cli.Usagef("--trace: %v", err)
		}
		defer file.Close()
		if info, err := file.Stat(); err == nil && info.Mode().IsRegular() {
			size = info.Size()
		}
		in, name = file, f.Trace
	}
	t, skipped, err := readTrace(a, in, size, simulate.Format(f.Format))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(t) == 0 {
		return nil, fmt.Errorf("%s: %w: it has no arrivals", name, simulate.ErrTrace)
	}
	if skipped.Lines > 0 {
		fmt.Fprintf(a.Err, "%s skipped that are not in the format of an access log; the first is line %d\n",
			cli.Plural(skipped.Lines, "line", "lines"), skipped.First)
	}
	return t, nil
}

// readTrace reads a trace and shows the progress of a large file on a terminal.
func readTrace(a *cli.App, in io.Reader, size int64, f simulate.Format) (simulate.Trace, simulate.Skipped,
	error) {
	if size < 10<<20 || !cli.Terminal(a.Err) {
		return simulate.Read(in, f)
	}
	bar := progressbar.NewOptions64(size, progressbar.OptionSetWriter(a.Err),
		progressbar.OptionShowBytes(true), progressbar.OptionFullWidth(),
		progressbar.OptionSetDescription("read"), progressbar.OptionSetTheme(progressbar.ThemeASCII))
	defer fmt.Fprintln(a.Err)
	return simulate.Read(io.TeeReader(in, bar), f)
}

// longTrace is the number of arrivals from which work on a trace shows its progress.
const longTrace = 200_000

func (f *traceFlags) generate() (simulate.Trace, error) {
	g := simulate.Generator{Shape: simulate.Shape(*f.Generate), Rate: f.Arrivals, Peak: f.Peak, For: f.For,
		Seed: f.Seed}
	switch {
	case g.Shape == simulate.Steady || g.Shape == simulate.Poisson:
		g.Peak = shaper.Rate{}
	case g.Shape == simulate.DailyWave && g.For == 0:
		g.For = 24 * time.Hour
	}
	if g.For == 0 {
		g.For = time.Minute
	}
	t, err := g.Trace()
	if err != nil {
		return nil, flagError(err, map[string]string{"shape": "generate", "rate": "arrivals"})
	}
	if len(t) == 0 {
		return nil, cli.Usagef("--for: no arrivals within this time: give a longer one")
	}
	return t, nil
}

// flagError turns problems with fields into problems with flags. names maps fields to flags of
// another name.
func flagError(err error, names map[string]string) error {
	var problems shaper.Problems
	if !errors.As(err, &problems) {
		return err
	}
	lines := make([]string, len(problems))
	for i, p := range problems {
		flag, found := names[p.Field]
		if !found {
			flag = strings.ReplaceAll(p.Field, "_", "-")
		}
		lines[i] = fmt.Sprintf("--%s: %s: %s", flag, p.Value, p.Rule)
	}
	return cli.UsageError(strings.Join(lines, "; "))
}

// plots reports whether to print plots.
func (f *pictureFlags) plots(a *cli.App) bool {
	if f.Plot != nil {
		return *f.Plot
	}
	return !f.JSON && cli.Terminal(a.Out)
}

// writeFile creates a file with the output of write.
func writeFile(name string, write func(io.Writer) error) error {
	file, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return errors.Join(write(file), file.Close())
}
