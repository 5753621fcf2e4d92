package main

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

// replies are values of every kind, each whole.
var replies = []string{
	"+OK\r\n", "-ERR no\r\n", ":12\r\n", "_\r\n", ",1.5\r\n", "#t\r\n", "(123\r\n", "$-1\r\n", "*-1\r\n",
	"$5\r\na\r\nbc\r\n", "$0\r\n\r\n", "=7\r\ntxt:abc\r\n", "!3\r\nERR\r\n", "*0\r\n",
	"*2\r\n:1\r\n*1\r\n$1\r\nx\r\n",
	"%1\r\n+k\r\n:1\r\n", "~2\r\n:1\r\n:2\r\n", ">3\r\n+message\r\n+c\r\n$1\r\nm\r\n",
	"|1\r\n+ttl\r\n:1\r\n*1\r\n:2\r\n",
	"*3\r\n$7\r\nEVALSHA\r\n$3\r\nabc\r\n$1\r\n0\r\n",
}

func TestValuesAreCutWhereTheyEnd(t *testing.T) {
	stream := strings.Join(replies, "")
	for name, in := range map[string]io.Reader{
		"at once": strings.NewReader(stream), "byte by byte": iotest.OneByteReader(strings.NewReader(stream)),
	} {
		var got []string
		r := bufio.NewReader(in)
		for {
			raw, err := readValue(r)
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v after %q", name, err, got)
			}
			got = append(got, string(raw))
		}
		if !slices.Equal(got, replies) {
			t.Errorf("%s: %q", name, got)
		}
	}
	for _, whole := range replies {
		for cut := 1; cut < len(whole); cut++ {
			if _, err := readValue(bufio.NewReader(strings.NewReader(whole[:cut]))); err != io.ErrUnexpectedEOF {
				t.Errorf("%q: %v", whole[:cut], err)
			}
		}
	}
}

func TestWhatIsNotRESPIsRefused(t *testing.T) {
	for _, text := range []string{
		"PING\r\n", "\r\n", "+OK\n", "$x\r\n", "$-2\r\n", "$3\r\nabcde\r\n", "$99999999999\r\n",
		"*9999999\r\n", "?\r\n", strings.Repeat("*1\r\n", 100) + ":1\r\n",
	} {
		if _, err := readValue(bufio.NewReader(strings.NewReader(text))); !errors.Is(err, errNotRESP) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

func TestWords(t *testing.T) {
	for request, want := range map[string][]string{
		"*3\r\n$7\r\nevalsha\r\n$2\r\na\n\r\n$1\r\n0\r\n": {"evalsha", "a\n"},
		"*1\r\n$4\r\nPING\r\n":                            {"PING"},
		"*1\r\n:1\r\n":                                    nil,
		"+PING\r\n":                                       nil,
	} {
		if got := words([]byte(request), 2); !slices.Equal(got, want) {
			t.Errorf("%q: %q", request, got)
		}
	}
}

// FuzzReadValue holds that values are the stream: put together again they are what was read, and
// each by itself is read as the same value.
func FuzzReadValue(f *testing.F) {
	for _, r := range replies {
		f.Add([]byte(r))
	}
	f.Add([]byte(strings.Join(replies, "")))
	f.Fuzz(func(t *testing.T, stream []byte) {
		in := bufio.NewReader(bytes.NewReader(stream))
		rest := stream
		for {
			raw, err := readValue(in)
			if !bytes.HasPrefix(rest, raw) {
				t.Fatalf("%q is not the beginning of %q", raw, rest)
			}
			if err != nil {
				return
			}
			rest = rest[len(raw):]
			again, err := readValue(bufio.NewReader(bytes.NewReader(raw)))
			if err != nil || !bytes.Equal(again, raw) {
				t.Fatalf("%q is read as %q, %v", raw, again, err)
			}
			if w := words(raw, 3); len(w) > 3 {
				t.Fatalf("%q", w)
			}
		}
	})
}
