package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"unicode"
)

// dangerous reports whether a character could control a terminal, or how others are read.
func dangerous(r rune) bool {
	return r != '\n' && r != '\t' && (unicode.Is(unicode.C, r) || unicode.Is(unicode.Zl, r) || unicode.Is(unicode.Zp, r))
}

// TestScreen: no character of a client's text controls the terminal, whatever command prints it and
// however it is cut. All others are shown.
func TestScreen(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	shown := make(chan string)
	go func() {
		b, _ := io.ReadAll(r)
		shown <- string(b)
	}()
	s := &screen{File: w}
	for c := rune(0); c <= unicode.MaxRune; c++ {
		fmt.Fprintf(s, "%c", c)
	}
	for _, raw := range []byte("\x9b31mé日🙂\xff\n") {
		_, _ = s.Write([]byte{raw})
	}
	if n, err := s.Write(nil); n != 0 || err != nil {
		t.Error(n, err)
	}
	w.Close()
	got := <-shown
	for _, c := range got {
		if dangerous(c) {
			t.Fatalf("%U is shown", c)
		}
	}
	seen := map[rune]bool{}
	for _, c := range got {
		seen[c] = true
	}
	for c := rune(0); c <= unicode.MaxRune; c++ {
		if !dangerous(c) && !seen[c] {
			t.Fatalf("%U is not shown", c)
		}
	}
	if !strings.HasSuffix(got, "\ufffd31mé日🙂\ufffd\n") {
		t.Errorf("%q", got[len(got)-40:])
	}
	if Plain("a\x1b\u009b\u202e\u2066\u2028\u200b\ue000\n") != "a\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\ufffd" {
		t.Errorf("%q", Plain("a\x1b\u009b\u202e\u2066\u2028\u200b\ue000\n"))
	}
}
