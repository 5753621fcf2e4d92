package simulate

import (
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/7509e464/sluice/shaper/simulate"
)

// A share is a number or a percentage.
func TestParseShare(t *testing.T) {
	for _, c := range []struct {
		text string
		want float64
	}{{"0", 0}, {"0%", 0}, {"0.1%", 0.001}, {"0.001", 0.001}, {"50%", 0.5}} {
		if got, err := parseFraction(c.text); err != nil || got != c.want {
			t.Errorf("%s: %v, %v", c.text, got, err)
		}
	}
	for _, bad := range []string{"", "%", "a", "1%%", "0,1%", "1 %"} {
		if got, err := parseFraction(bad); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

// A text that is read as a fraction is a valid goal, or refused as one.
func FuzzParseFraction(f *testing.F) {
	for _, seed := range []string{"", "0.1%", "NaN", "inf%", "1e-400", "-0", "0x1p-3"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fraction, err := parseFraction(text)
		if err != nil {
			return
		}
		legal := simulate.Goals{MaxRefused: fraction, WaitP99: time.Second, Burst: 1}.Validate() == nil
		if legal != (fraction >= 0 && fraction < 1) {
			t.Fatalf("%q is %v, legal is %v", text, fraction, legal)
		}
	})
}

// writeFile returns the error of what writes, or that of the file.
func TestWriteFileNamesTheFailure(t *testing.T) {
	failure := errors.New("no more paper")
	fails := func(io.Writer) error { return failure }
	if err := writeFile(filepath.Join(t.TempDir(), "a"), fails); !errors.Is(err, failure) {
		t.Errorf("%v, want %v", err, failure)
	}
	if err := writeFile(filepath.Join(t.TempDir(), "absent", "a"), fails); err == nil ||
		errors.Is(err, failure) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
