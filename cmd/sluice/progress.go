package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows a burst while it runs: a bar on a terminal, a line a second elsewhere.
type progress interface {
	show(phase string, done, total int, c counts, since time.Duration)
	close()
}

func newProgress(w io.Writer) (progress, time.Duration) {
	if terminal(w) {
		return &bar{w: w}, 100 * time.Millisecond
	}
	return lines{w}, time.Second
}

// bar is the progress for a person; each phase has one of its own.
type bar struct {
	w     io.Writer
	phase string
	bar   *progressbar.ProgressBar
}

func (b *bar) show(phase string, done, total int, c counts, _ time.Duration) {
	if phase != b.phase {
		b.close()
		b.phase = phase
		b.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(b.w), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionSetItsString("jobs"), progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(),
			progressbar.OptionSetTheme(progressbar.ThemeASCII))
	}
	text := phase
	if n := sum(c.refused) + sum(c.failed); n > 0 {
		text = fmt.Sprintf("%s (%d refused)", phase, n)
	}
	b.bar.Describe(text)
	_ = b.bar.Set(done)
}

func (b *bar) close() {
	if b.bar != nil {
		_ = b.bar.Exit()
		fmt.Fprintln(b.w)
		b.bar = nil
	}
}

// lines is the progress for a log.
type lines struct{ w io.Writer }

func (l lines) show(phase string, done, total int, c counts, since time.Duration) {
	rate := float64(done) / max(since.Seconds(), 0.001)
	left := "?"
	if rate > 0 {
		left = time.Duration(float64(total-done) / rate * float64(time.Second)).Round(time.Second).String()
	}
	fmt.Fprintf(l.w, "%s %d/%d, %.1f/s, %s left; accepted %d, refused %d, failed %d\n",
		phase, done, total, rate, left, c.accepted, sum(c.refused), sum(c.failed))
}

func (lines) close() {}
