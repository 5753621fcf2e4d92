package simulate

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/7509e464/sluice/shaper"
)

func TestReadCSV(t *testing.T) {
	noon := shaper.InstantOf(time.Date(2026, time.March, 1, 12, 0, 0, 0, time.UTC))
	for _, c := range []struct {
		name, text string
		want       Trace
	}{
		{"nothing", "", nil},
		{"seconds", "0\n0.25\n17.0000019\n", Trace{{0, 1}, {250_000, 1}, {17_000_001, 1}}},
		{"seconds since the epoch", "1772366400.5,3\n", Trace{{1772366400_500_000, 3}}},
		{"RFC 3339 in any zone", "2026-03-01T12:00:00.25Z\n2026-03-01T13:00:01+01:00\n",
			Trace{{noon + 250_000, 1}, {noon + 1_000_000, 1}}},
		{"out of order; equal ones stay as they were", "2\n1,5\n1,4\n",
			Trace{{1_000_000, 5}, {1_000_000, 4}, {2_000_000, 1}}},
		{"a header in any order, other columns, comments, an empty cost",
			"tenant,Cost, AT \n# night\nacme,2,1\nacme,,2\n", Trace{{1_000_000, 2}, {2_000_000, 1}}},
		{"a header without a cost", "at,tenant\n1,9\n", Trace{{1_000_000, 1}}},
		{"a byte order mark", "\ufeffat\n1\n", Trace{{1_000_000, 1}}},
		{"quotes and carriage returns", "\"1\",\"2\"\r\n", Trace{{1_000_000, 2}}},
		{"the last instant", "9007199254.740991\n", Trace{{latest, 1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := ReadCSV(strings.NewReader(c.text))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestReadCSVRefuses(t *testing.T) {
	for _, c := range []struct{ text, says string }{
		{"tenant,cost\n", "no column \"at\""}, {"1\nx\n", "line 2: the instant"},
		{"1,0\n", "line 1: the cost"}, {"1,1000001\n", "from 1 to 1000000"}, {"1,1.5\n", "the cost"}, {"1,+5\n", `the cost is "+5"`}, {"1,010\n", "the cost"},
		{"-1\n", "the instant"}, {"1.\n", "the instant"}, {".5\n", "the instant"}, {"1e3\n", "the instant"},
		{"1772366400000\n", "in seconds"},
		{"99999999999999999999999999\n", "in seconds"}, {"9007199254.740992\n", "in seconds"},
		{"1969-12-31T23:59:59Z\n", "from 1970"},
		{"2300-01-01T00:00:00Z\n", "to 2255"}, {"at,cost\n\n1,1\n2,x\n", "line 4"}, {"\"1\n", "quote"},
		{"cost,at\n5\n", "no instant"},
	} {
		got, err := ReadCSV(strings.NewReader(c.text))
		if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%q: %v, %v; want %q", c.text, got, err, c.says)
		}
	}
}

func TestCSVRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := traces(rate("10/s")).Draw(t, "trace")
		var file bytes.Buffer
		if err := WriteCSV(&file, want); err != nil {
			t.Fatal(err)
		}
		got, _, err := Read(&file, Auto)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-written +read):\n%s", diff)
		}
	})
}

func TestReadAccessLog(t *testing.T) {
	const text = `192.0.2.1 - frank [01/Mar/2026:13:00:01 +0100] "GET /a HTTP/1.1" 200 2326
192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET /b HTTP/1.1" 200 - "http://example.com/" "Mozilla/5.0 (X11; [x] \"y\")"

not a line of a log
2001:db8::1 - - [01/Mar/2026:12:00:01 +0000] "POST /c HTTP/2.0" 429 0
192.0.2.1 - - [99/Mar/2026:12:00:01 +0000] "GET / HTTP/1.1" 200 1
192.0.2.2 - - [01/Mar/2026:12:00:01 +0000] "\x16\x03" 400 0
`
	want := at(0, sec, 1333_333*us, 1666_666*us)
	for _, f := range []Format{AccessLog, Auto} {
		got, skipped, err := Read(strings.NewReader(text), f)
		if err != nil || skipped != (Skipped{Lines: 2, First: 4}) {
			t.Errorf("%s: %+v, %v", f, skipped, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", f, diff)
		}
	}
	if _, _, err := ReadAccessLog(strings.NewReader("a\nb\n")); !errors.Is(err, ErrTrace) {
		t.Errorf("%v", err)
	}
	if _, _, err := ReadAccessLog(strings.NewReader("a\n" +
		strings.Repeat("x", longestLine+1))); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("%v", err)
	}
}

// FuzzRead: nothing makes the readers panic, and what they read can be replayed.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{
		"", "0\n0.5,2\n", "at,cost\n2026-03-01T12:00:00Z,1\n", "cost,at\n1,2\n", "\ufeffat\n1\n", "# c\n1\n",
		"9007199254.740991\n", "\"1\n",
		`192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET / HTTP/1.1" 200 1` + "\n",
		`a b [31/Dec/1969:23:59:59 +0000] "" 1`, "a b [] \"\"",
	} {
		f.Add([]byte(seed), byte(0))
	}
	formats := []Format{Auto, CSV, AccessLog}
	f.Fuzz(func(t *testing.T, file []byte, format byte) {
		trace, _, err := Read(bytes.NewReader(file), formats[int(format)%len(formats)])
		if err != nil {
			if !errors.Is(err, ErrTrace) && len(file) < longestLine {
				t.Fatalf("%v does not wrap ErrTrace", err)
			}
			return
		}
		if err := trace.validate(); err != nil && len(trace) > 0 {
			t.Fatal(err)
		}
	})
}
