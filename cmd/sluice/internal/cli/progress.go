package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Progress shows running work on many jobs: a bar on a terminal, a line a second elsewhere. A total
// below 0 is unknown.
type Progress interface {
	// Show draws the state of a phase that began since ago.
	Show(phase string, done, total int, c Counts, since time.Duration)
	// Close ends the output; the last state stays visible.
	Close()
}

// NewProgress returns the progress of jobs on w and the interval of its updates.
func NewProgress(w io.Writer) (Progress, time.Duration) { return NewProgressOf(w, "jobs") }

// NewProgressOf is like NewProgress for work on other items than jobs; things is their plural.
func NewProgressOf(w io.Writer, things string) (Progress, time.Duration) {
	if Terminal(w) {
		return &bar{w: Raw(w), things: things}, 100 * time.Millisecond
	}
	return lines{w}, time.Second
}

// Watched runs do. Meanwhile it shows the progress at the interval every, and once more at the end.
// figure returns the number of done items.
func Watched(view Progress, every time.Duration, phase string, total int, t *Tally, figure func(Counts) int,
	do func()) {
	began := time.Now()
	show := func() {
		c := t.Now()
		view.Show(phase, figure(c), total, c, time.Since(began))
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				show()
			case <-stop:
				return
			}
		}
	}()
	do()
	close(stop)
	<-stopped
	show()
}

// bar shows progress on a terminal. Each phase has a bar of its own.
type bar struct {
	w      io.Writer
	things string // such as jobs
	phase  string
	bar    *progressbar.ProgressBar
}

func (b *bar) Show(phase string, done, total int, c Counts, since time.Duration) {
	if phase != b.phase {
		b.Close()
		b.phase = phase
		b.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(b.w), progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionSetItsString(b.things), progressbar.OptionSetPredictTime(false),
			progressbar.OptionFullWidth(),
			progressbar.OptionSetTheme(progressbar.ThemeASCII))
	}
	text := phase
	if n := Sum(c.Refused) + Sum(c.Failed); n > 0 {
		text = fmt.Sprintf("%s (%d refused)", phase, n)
	}
	text += leftText(done, total, c, since)
	if c.Waiting != "" {
		text += " (waiting: " + c.Waiting + ")"
	}
	b.bar.Describe(text)
	_ = b.bar.Set(done)
}

func (b *bar) Close() {
	if b.bar != nil {
		_ = b.bar.Exit()
		fmt.Fprintln(b.w)
		b.bar = nil
	}
}

// leftText estimates the time that is left. While the command waits, nobody knows it.
func leftText(done, total int, c Counts, since time.Duration) string {
	switch {
	case total < 0 || c.Waiting != "":
		return ""
	case done == 0:
		return ", ? left"
	}
	left := float64(total-done) / float64(done) * max(since.Seconds(), 0.001)
	return fmt.Sprintf(", %v left", time.Duration(left*float64(time.Second)).Round(time.Second))
}

// lines shows progress in a log.
type lines struct{ w io.Writer }

func (l lines) Show(phase string, done, total int, c Counts, since time.Duration) {
	rate := float64(done) / max(since.Seconds(), 0.001)
	of, left := "", leftText(done, total, c, since)
	if total >= 0 {
		of = fmt.Sprintf("/%d", total)
	}
	outcomes, state := "", ""
	if c.Answered() > 0 {
		outcomes = fmt.Sprintf("; accepted %d, refused %d, failed %d", c.Accepted, Sum(c.Refused),
			Sum(c.Failed))
	}
	if c.Waiting != "" {
		state = "; waiting: " + c.Waiting
	}
	fmt.Fprintf(l.w, "%s %d%s, %.1f/s%s%s%s\n", phase, done, of, rate, left, outcomes, state)
}

func (lines) Close() {}

// WatchSteps shows the completed steps of long work, as a bar on a terminal and as lines elsewhere.
// A total of -1 is unknown. If long is false it shows nothing.
func (a *App) WatchSteps(what string, total int, long bool) (watch func(done int), end func()) {
	switch {
	case !long:
		return func(int) {}, func() {}
	case !Terminal(a.Err):
		return func(done int) {
			switch {
			case total >= 0:
				fmt.Fprintf(a.Err, "%s %d/%d\n", what, done, total)
			case done%10 == 0:
				fmt.Fprintf(a.Err, "%s %d\n", what, done)
			}
		}, func() {}
	}
	bar := progressbar.NewOptions(total, progressbar.OptionSetWriter(Raw(a.Err)), progressbar.OptionShowCount(),
		progressbar.OptionSetDescription(what),
		progressbar.OptionSetTheme(progressbar.ThemeASCII), progressbar.OptionSetPredictTime(total > 1))
	_ = bar.RenderBlank() // before the first step, which may be slow
	return func(done int) { _ = bar.Set(done) }, func() { fmt.Fprintln(a.Err) }
}
