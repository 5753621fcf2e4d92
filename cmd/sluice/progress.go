package main

import (
	"fmt"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"
)

// progress shows work on many jobs while it goes on: a bar on a terminal, a line a second
// elsewhere. A total below 0 is not known.
type progress interface {
	show(phase string, done, total int, c counts, since time.Duration)
	close()
}

func newProgress(w io.Writer) (progress, time.Duration) { return newProgressOf(w, "jobs") }

// newProgressOf is newProgress of work on other things than jobs.
func newProgressOf(w io.Writer, things string) (progress, time.Duration) {
	if terminal(w) {
		return &bar{w: w, things: things}, 100 * time.Millisecond
	}
	return lines{w}, time.Second
}

// watched runs do and shows the progress meanwhile, and once more at its end.
func watched(view progress, every time.Duration, phase string, total int, t *tally, figure func(counts) int, do func()) {
	began := time.Now()
	show := func() {
		c := t.now()
		view.show(phase, figure(c), total, c, time.Since(began))
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

// bar is the progress for a person; each phase has one of its own.
type bar struct {
	w      io.Writer
	things string // what is worked on
	phase  string
	bar    *progressbar.ProgressBar
}

func (b *bar) show(phase string, done, total int, c counts, _ time.Duration) {
	if phase != b.phase {
		b.close()
		b.phase = phase
		b.bar = progressbar.NewOptions(total, progressbar.OptionSetWriter(b.w), progressbar.OptionShowCount(), progressbar.OptionShowIts(),
			progressbar.OptionSetItsString(b.things), progressbar.OptionSetPredictTime(true), progressbar.OptionFullWidth(),
			progressbar.OptionSetTheme(progressbar.ThemeASCII))
	}
	text := phase
	if n := sum(c.refused) + sum(c.failed); n > 0 {
		text = fmt.Sprintf("%s (%d refused)", phase, n)
	}
	if c.waiting {
		text += " (no places, waiting)"
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
	of, left := "", ""
	if total >= 0 {
		of, left = fmt.Sprintf("/%d", total), ", ? left"
		if rate > 0 {
			left = fmt.Sprintf(", %v left", time.Duration(float64(total-done)/rate*float64(time.Second)).Round(time.Second))
		}
	}
	verdicts, state := "", ""
	if c.answered() > 0 {
		verdicts = fmt.Sprintf("; accepted %d, refused %d, failed %d", c.accepted, sum(c.refused), sum(c.failed))
	}
	if c.waiting {
		state = "; no places, waiting"
	}
	fmt.Fprintf(l.w, "%s %d%s, %.1f/s%s%s%s\n", phase, done, of, rate, left, verdicts, state)
}

func (lines) close() {}
