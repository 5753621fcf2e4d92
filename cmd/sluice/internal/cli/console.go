// Package cli holds what all commands share: it parses the command line, connects to a server,
// explains failures, and prints tables, progress and logs.
package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// Stdio holds the standard streams of a command.
type Stdio struct {
	In       io.Reader // standard input
	Out, Err io.Writer // standard output and standard error
}

// App is the environment of a command.
type App struct {
	Stdio
	Ctx     context.Context // ends when the process is asked to stop
	Environ []string        // KEY=VALUE
}

// Env returns an environment variable of the process, or fallback if it is empty.
func (a *App) Env(name, fallback string) string {
	for _, entry := range a.Environ {
		if value, ok := strings.CutPrefix(entry, name+"="); ok && value != "" {
			return value
		}
	}
	return fallback
}

// UsageError is a mistake on the command line that kong cannot detect.
type UsageError string

func (e UsageError) Error() string { return string(e) }

// Usagef returns a formatted UsageError.
func Usagef(format string, args ...any) error { return UsageError(fmt.Sprintf(format, args...)) }

// ErrReported is a failure that was already printed. It only sets the exit code.
var ErrReported = errors.New("reported")

// Terminal reports whether the stream w is a terminal.
func Terminal(w any) bool {
	if s, is := w.(*screen); is {
		w = s.File
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Confirm asks the question on the terminal. It returns ErrReported for any answer but yes.
func (a *App) Confirm(question string) error {
	fmt.Fprint(a.Err, question)
	answers := make(chan string, 1)
	go func() { // ends with the process if there is no answer
		line, _ := bufio.NewReader(a.In).ReadString('\n')
		answers <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case answer := <-answers:
		if answer == "y" || answer == "yes" {
			return nil
		}
	case <-a.Ctx.Done():
	}
	fmt.Fprintln(a.Err, "Nothing was changed.")
	return ErrReported
}

// Interruptible runs work that has no context. If the process is asked to end, it returns without
// waiting for the work, which ends with the process.
func (a *App) Interruptible(work func(*App) error) error {
	done := make(chan error, 1)
	go func() { done <- work(a) }()
	select {
	case err := <-done:
		return err
	case <-a.Ctx.Done():
		return errors.New("interrupted")
	}
}

// Sleep waits for d. If ctx ends first, it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
