package simulate

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// logTime is the layout of instants in the common log format.
const logTime = "02/Jan/2006:15:04:05 -0700"

// longestLine is the longest allowed line of an access log, in bytes.
const longestLine = 1 << 20

// Skipped counts the lines of an access log that are not requests.
type Skipped struct {
	Lines int // number of skipped lines
	First int // number of the first one, from 1; 0 if there is none
}

// ReadAccessLog reads the requests of a log in the common or the combined format, each of cost 1.
// Such a log has whole seconds and is in the order in which requests ended. ReadAccessLog sorts
// them and spreads those of one second evenly over it. Lines of another form are skipped and
// counted; if all are, the error wraps ErrTrace.
func ReadAccessLog(r io.Reader) (Trace, Skipped, error) {
	var t Trace
	var skipped Skipped
	scanner := bufio.NewScanner(r)
	scanner.Buffer(make([]byte, 0, 64<<10), longestLine)
	var last []byte // the text of the previous instant, which most lines of a busy log share
	var at shaper.Instant
	number := 0
	for scanner.Scan() {
		number++
		line := bytes.TrimSpace(scanner.Bytes())
		if len(line) == 0 {
			continue
		}
		text, ok := timeOf(line)
		if ok && !bytes.Equal(text, last) {
			when, err := time.Parse(logTime, string(text))
			if ok = err == nil && when.Unix() >= 0 && shaper.InstantOf(when) < latest; ok {
				last, at = append(last[:0], text...), shaper.InstantOf(when)
			}
		}
		if !ok {
			skipped.Lines++
			if skipped.First == 0 {
				skipped.First = number
			}
			continue
		}
		if len(t) == MaxArrivals {
			return nil, skipped, fmt.Errorf("%w: more than %d arrivals", ErrTrace, MaxArrivals)
		}
		t = append(t, Arrival{At: at, Cost: 1})
	}
	if err := scanner.Err(); err != nil {
		return nil, skipped, fmt.Errorf("read the access log: line %d: %w", number+1, err)
	}
	if len(t) == 0 && skipped.Lines > 0 {
		return nil, skipped, fmt.Errorf("%w: line %d is not in the common log format, and no other line is",
			ErrTrace, skipped.First)
	}
	return t.sorted().spread(), skipped, nil
}

// timeOf is the text in the brackets of: host identity user [time] "request" status size.
func timeOf(line []byte) ([]byte, bool) {
	before, rest, found := bytes.Cut(line, []byte(" ["))
	if !found || bytes.Count(before, []byte(" ")) < 2 {
		return nil, false
	}
	text, after, found := bytes.Cut(rest, []byte("] \""))
	return text, found && bytes.IndexByte(after, '"') >= 0
}

// spread distributes the arrivals of each second evenly over it.
func (t Trace) spread() Trace {
	for i := 0; i < len(t); {
		n := 1
		for i+n < len(t) && t[i+n].At == t[i].At {
			n++
		}
		for k := n - 1; k > 0; k-- {
			t[i+k].At += shaper.Instant(k * 1_000_000 / n)
		}
		i += n
	}
	return t
}
