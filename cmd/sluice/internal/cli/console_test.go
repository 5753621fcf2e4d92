package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
)

// Interruptible work ends with its own error, or with the context although the work hangs.
func TestWorkCanBeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := &App{Ctx: ctx}
	failure, leave := errors.New("no"), make(chan struct{})
	if err := a.Interruptible(func(*App) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("%v, want %v", err, failure)
	}
	if err := a.Interruptible(func(*App) error { cancel(); <-leave; return nil }); err == nil {
		t.Error("it went on")
	}
	close(leave)
}

// Only y or yes confirms. An interruption does not.
func TestConfirm(t *testing.T) {
	for answer, want := range map[string]error{
		"y\n": nil, "YES\n": nil, " y": nil, "n\n": ErrReported, "\n": ErrReported, "": ErrReported,
		"yessir\n": ErrReported,
	} {
		var errs bytes.Buffer
		a := &App{Ctx: t.Context(), Stdio: Stdio{In: strings.NewReader(answer), Err: &errs}}
		if err := a.Confirm("Sure? "); err != want || !strings.HasPrefix(errs.String(), "Sure? ") {
			t.Errorf("%q: %v, %s", answer, err, errs.String())
		}
	}
	var errs bytes.Buffer
	in, out := io.Pipe()
	defer out.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &App{Ctx: ctx, Stdio: Stdio{In: in, Err: &errs}}
	if err := a.Confirm("Sure? "); err != ErrReported ||
		!strings.Contains(errs.String(), "Nothing was changed.") {
		t.Errorf("interrupted: %v, want %v and a note: %s", err, ErrReported, errs.String())
	}
}
