package cli

import (
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/term"
)

// screen is a terminal on which text of clients is shown as Plain does it, whatever a command
// prints: names, types, errors and bodies are other people's. What controls the terminal on purpose
// goes to Raw.
type screen struct {
	*os.File
	rest []byte // the first bytes of a character that the last write cut
}

// Screens returns the streams with those that are terminals protected.
func Screens(s Stdio) Stdio {
	for _, w := range []*io.Writer{&s.Out, &s.Err} {
		if f, is := (*w).(*os.File); is && term.IsTerminal(int(f.Fd())) {
			*w = &screen{File: f}
		}
	}
	return s
}

// Raw returns the stream without the protection.
func Raw(w io.Writer) io.Writer {
	if s, is := w.(*screen); is {
		return s.File
	}
	return w
}

func (s *screen) Write(p []byte) (int, error) {
	text := append(s.rest, p...)
	end := len(text)
	for n := 1; n < utf8.UTFMax && n <= len(text); n++ {
		if start := len(text) - n; utf8.RuneStart(text[start]) {
			if !utf8.FullRune(text[start:]) {
				end = start
			}
			break
		}
	}
	s.rest = append([]byte{}, text[end:]...)
	_, err := s.File.WriteString(plain(string(text[:end]), "\n\t"))
	return len(p), err
}
