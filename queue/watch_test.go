package queue

import "testing"

// TestWatchTellsParts: a watch says whether the job has ended or only a part of its answer has
// come. An end replaces a part that nobody has received yet. A part replaces nothing.
func TestWatchTellsParts(t *testing.T) {
	c := make(chan End, 1)
	w := &watcher{waiting: map[string]*watch{"x": {ended: []chan End{c}, ready: make(chan struct{})}}}
	for _, step := range []struct {
		messages []string
		part     bool
	}{
		{[]string{"p"}, true}, {[]string{"p", "S"}, false}, {[]string{"S", "p"}, false}, {[]string{""}, false}, {[]string{"p", "p"}, true},
	} {
		for _, m := range step.messages {
			w.heard("x", m)
		}
		if end := <-c; end.Part() != step.part || len(c) > 0 {
			t.Errorf("%q: %+v, and %d more", step.messages, end, len(c))
		}
	}
}
