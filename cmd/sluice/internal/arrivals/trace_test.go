package arrivals

import (
	"bytes"
	"context"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/console"
	"github.com/7509e464/sluice/shaper/simulate"
)

func TestLongWorkOnATraceIsWatched(t *testing.T) {
	for _, c := range []struct {
		name  string
		total int
		long  bool
		want  string
	}{
		{"short", 3, false, ""},
		{"of a known total", 3, true, "replayed 1/3\nreplayed 2/3\nreplayed 3/3\n"},
		{"of an unknown total", -1, true, ""},
	} {
		var log bytes.Buffer
		watch, end := (&console.App{Stdio: console.Stdio{Err: &log}}).WatchSteps("replayed", c.total, c.long)
		for i := 1; i <= 3; i++ {
			watch(i)
		}
		if end(); log.String() != c.want {
			t.Errorf("%s: %q", c.name, log.String())
		}
	}
	var log bytes.Buffer
	watch, _ := (&console.App{Stdio: console.Stdio{Err: &log}}).WatchSteps("rates tried", -1, true)
	if watch(20); log.String() != "rates tried 20\n" {
		t.Errorf("%q", log.String())
	}
}

func TestWorkCanBeInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	a := &console.App{Ctx: ctx}
	failure, leave := errors.New("no"), make(chan struct{})
	if err := a.Interruptible(func(*console.App) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	if err := a.Interruptible(func(*console.App) error { cancel(); <-leave; return nil }); err == nil {
		t.Error("it went on")
	}
	close(leave)
}

func TestParseShare(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64
	}{{"0", 0}, {"0%", 0}, {"0.1%", 0.001}, {"0.001", 0.001}, {"50%", 0.5}} {
		if got, err := parseShare(c.text); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.text, got, err)
		}
	}
	for _, bad := range []string{"", "%", "a", "1%%", "0,1%", "1 %"} {
		if got, err := parseShare(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// FuzzParseShare: what is read is either a share or refused as a goal; nothing panics.
func FuzzParseShare(f *testing.F) {
	for _, seed := range []string{"", "0.1%", "NaN", "inf%", "1e-400", "-0", "0x1p-3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		share, err := parseShare(text)
		if err != nil {
			return
		}
		legal := simulate.Goals{MaxRefused: share, WaitP99: time.Second, Burst: 1}.Validate() == nil
		if legal != (share >= 0 && share < 1) {
			t.Fatalf("%q is %v, legal is %v", text, share, legal)
		}
	})
}

func TestWriteFileNamesTheFailure(t *testing.T) {
	failure := errors.New("no more paper")
	fails := func(io.Writer) error { return failure }
	if err := writeFile(filepath.Join(t.TempDir(), "a"), fails); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	if err := writeFile(filepath.Join(t.TempDir(), "absent", "a"), fails); err == nil || errors.Is(err, failure) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
