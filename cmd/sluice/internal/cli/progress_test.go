package cli

import (
	"bytes"
	"testing"
	"time"
)

// TestNoEstimateWhileItWaits: while a command waits, the progress says for what, and estimates no
// time.
func TestNoEstimateWhileItWaits(t *testing.T) {
	var log bytes.Buffer
	view := lines{&log}
	view.Show("submitted", 50, 100, Counts{Accepted: 50}, 10*time.Second)
	view.Show("submitted", 50, 100, Counts{Accepted: 50, Waiting: "The queue is full"}, 20*time.Second)
	want := "submitted 50/100, 5.0/s, 10s left; accepted 50, refused 0, failed 0\n" +
		"submitted 50/100, 2.5/s; accepted 50, refused 0, failed 0; waiting: The queue is full\n"
	if got := log.String(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Long work prints its progress: every step of a known total, few of an unknown one. Short work
// prints none.
func TestLongWorkIsWatched(t *testing.T) {
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
		watch, end := (&App{Stdio: Stdio{Err: &log}}).WatchSteps("replayed", c.total, c.long)
		for i := 1; i <= 3; i++ {
			watch(i)
		}
		if end(); log.String() != c.want {
			t.Errorf("%s: %q, want %q", c.name, log.String(), c.want)
		}
	}
	var log bytes.Buffer
	watch, _ := (&App{Stdio: Stdio{Err: &log}}).WatchSteps("rates tried", -1, true)
	want := "rates tried 20\n"
	if watch(20); log.String() != want {
		t.Errorf("20 steps: %q, want %q", log.String(), want)
	}
}
