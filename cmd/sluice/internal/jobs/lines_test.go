package jobs

import (
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

func readLines(t testing.TB, r io.Reader, most int) (lines []line) {
	t.Helper()
	for l := newLineReader(r, most); ; {
		next, err := l.next()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, next)
	}
}

// Lines are trimmed and keep their numbers. Blank ones are skipped, and long ones have no text.
func TestLines(t *testing.T) {
	big := strings.Repeat("x", 200<<10)
	for _, c := range []struct {
		text string
		most int
		want []line
	}{
		{"", 5, nil},
		{"\n\r\n  \n", 5, nil},
		{"a\nb", 5, []line{{number: 1, text: []byte("a")}, {number: 2, text: []byte("b")}}},
		{"\n a b \r\n\nc\n", 5, []line{{number: 2, text: []byte("a b")}, {number: 4, text: []byte("c")}}},
		{"12345\n123456\n7\n", 5, []line{
			{number: 1, text: []byte("12345")}, {number: 2, long: true}, {number: 3, text: []byte("7")},
		}},
		{big + "\n" + big + "y\nz", len(big), []line{
			{number: 1, text: []byte(big)}, {number: 2, long: true}, {number: 3, text: []byte("z")},
		}},
	} {
		got := readLines(t, strings.NewReader(c.text), c.most)
		same := func(a, b line) bool {
			return a.number == b.number && a.long == b.long && bytes.Equal(a.text, b.text)
		}
		if !slices.EqualFunc(got, c.want, same) {
			t.Errorf("%.40q: %d lines %.200v", c.text, len(got), got)
		}
		if n, err := countLines(iotest.OneByteReader(strings.NewReader(c.text))); err != nil || n != len(c.want) {
			t.Errorf("%.40q: counted %d, %v", c.text, n, err)
		}
	}
	broken := errors.New("broken")
	if _, err := countLines(io.MultiReader(strings.NewReader("a\nb"),
		iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("a broken reader: %v", err)
	}
}

// Any text has the lines that strings.Split finds.
func FuzzLines(f *testing.F) {
	f.Add("a\n\n b\r\nccc", 2)
	f.Add(strings.Repeat(" ", 70000)+"x\n", 10)
	f.Fuzz(func(t *testing.T, text string, most int) {
		most = max(most, 0)
		got := readLines(t, strings.NewReader(text), most)
		i := 0
		for n, part := range strings.Split(text, "\n") {
			part = strings.Trim(part, " \t\r\v\f\u0085\u00a0") // at least what a line is trimmed of in ASCII
			if len(bytes.TrimSpace([]byte(part))) == 0 {
				continue
			}
			if i == len(got) || got[i].number != n+1 {
				t.Fatalf("%q: line %d is missing in %v", text, n+1, got)
			}
			l := got[i]
			if l.long && l.text != nil {
				t.Errorf("%q: line %d is too long, and has the text %q", text, l.number, l.text)
			}
			if want := bytes.TrimSpace([]byte(part)); !l.long && !bytes.Equal(l.text, want) {
				t.Errorf("%q: line %d is %q, want %q", text, l.number, l.text, want)
			}
			if !l.long && len(l.text) > most {
				t.Errorf("%q: line %d has %d bytes, want at most %d", text, l.number, len(l.text), most)
			}
			i++
		}
		if i != len(got) {
			t.Errorf("%q: %d lines, want %d", text, len(got), i)
		}
		if n, err := countLines(strings.NewReader(text)); err != nil || n != i {
			t.Errorf("%q: counted %d of %d: %v", text, n, i, err)
		}
	})
}
