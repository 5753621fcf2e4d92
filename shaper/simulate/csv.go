package simulate

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/internal/numbers"
	"github.com/7509e464/sluice/shaper"
)

// latest is the last instant that a trace may have: the greatest that a double holds exactly, in
// the year 2255.
const latest = shaper.Instant(1<<53 - 1)

// Names of the columns of a CSV trace.
const (
	ColumnAt   = "at"   // the instant, required
	ColumnCost = "cost" // the cost in intervals, 1 if absent
)

// ReadCSV reads a trace of one arrival a line. Lines may be out of order. The first column is the
// instant: in RFC 3339, such as 2026-03-01T12:00:00.25Z, or a number of seconds, such as 0.25,
// since the Unix epoch or any other origin. The second, if there is one, is the cost, 1 if empty. A
// first line that begins with a name is a header: then the columns "at" and "cost" may be anywhere,
// and others are skipped. Instants are cut to microseconds. The error wraps ErrTrace and names the
// line.
func ReadCSV(r io.Reader) (Trace, error) {
	c := csv.NewReader(r)
	c.ReuseRecord, c.FieldsPerRecord, c.Comment = true, -1, '#'
	at, cost := 0, 1
	var t Trace
	for first := true; ; first = false {
		fields, err := c.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, readError(err)
		}
		if first {
			fields[0] = strings.TrimPrefix(fields[0], "\ufeff")
			if isHeader(fields[0]) {
				if at, cost = columns(fields); at < 0 {
					return nil, fmt.Errorf("%w: line 1: the header has no column %q", ErrTrace, ColumnAt)
				}
				continue
			}
		}
		a, err := parseArrival(fields, at, cost)
		if err != nil {
			line, _ := c.FieldPos(0)
			return nil, fmt.Errorf("%w: line %d: %w", ErrTrace, line, err)
		}
		if len(t) == MaxArrivals {
			return nil, fmt.Errorf("%w: more than %d arrivals", ErrTrace, MaxArrivals)
		}
		t = append(t, a)
	}
	return t.sorted(), nil
}

// readError wraps ErrTrace if the file is not CSV, but not if it cannot be read.
func readError(err error) error {
	if e := (*csv.ParseError)(nil); errors.As(err, &e) {
		return fmt.Errorf("%w: %w", ErrTrace, err)
	}
	return fmt.Errorf("read the trace: %w", err)
}

// isHeader reports whether a first field is a name and no instant.
func isHeader(field string) bool {
	field = strings.TrimSpace(field)
	return field != "" && (field[0] >= 'a' && field[0] <= 'z' || field[0] >= 'A' && field[0] <= 'Z')
}

// columns are the indices of the two columns in a header, -1 for none.
func columns(header []string) (at, cost int) {
	find := func(name string) int {
		return slices.IndexFunc(header, func(field string) bool {
			return strings.EqualFold(strings.TrimSpace(field), name)
		})
	}
	return find(ColumnAt), find(ColumnCost)
}

func parseArrival(fields []string, at, cost int) (Arrival, error) {
	if at >= len(fields) {
		return Arrival{}, errors.New("it has no instant")
	}
	instant, err := parseInstant(strings.TrimSpace(fields[at]))
	if err != nil {
		return Arrival{}, err
	}
	a := Arrival{At: instant, Cost: 1}
	if cost >= 0 && cost < len(fields) {
		if text := strings.TrimSpace(fields[cost]); text != "" {
			n, whole := numbers.ParseWhole(text)
			if !whole || n < 1 || n > shaper.MaxCost {
				return Arrival{}, fmt.Errorf("the cost is %q, and must be a whole number from 1 to %d", text, shaper.MaxCost)
			}
			a.Cost = n
		}
	}
	return a, nil
}

// parseInstant reads RFC 3339 or seconds.
func parseInstant(text string) (shaper.Instant, error) {
	if i, ok := parseSeconds(text); ok {
		if i > latest {
			return 0, errors.New("the instant must be before the year 2255: a plain number is in seconds")
		}
		return i, nil
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return 0, errors.New("the instant must be as in 2026-03-01T12:00:00.25Z or a number of seconds")
	}
	i := shaper.InstantOf(t)
	if i < 0 || i > latest {
		return 0, errors.New("the instant must be from 1970 to 2255")
	}
	return i, nil
}

// parseSeconds reads digits with an optional fraction, exactly. It returns latest + 1 for values
// that are too large for an instant.
func parseSeconds(text string) (shaper.Instant, bool) {
	whole, fraction, dotted := strings.Cut(text, ".")
	if whole == "" || dotted && fraction == "" {
		return 0, false
	}
	var i shaper.Instant
	for _, c := range []byte(whole) {
		if c < '0' || c > '9' {
			return 0, false
		}
		i = min(i*10+shaper.Instant(c-'0'), latest)
	}
	if i > latest/1_000_000 {
		i = latest / 1_000_000 * 2
	}
	i *= 1_000_000
	unit := shaper.Instant(100_000)
	for _, c := range []byte(fraction) {
		if c < '0' || c > '9' {
			return 0, false
		}
		i += shaper.Instant(c-'0') * unit
		unit /= 10
	}
	return min(i, latest+1), true
}

// CSVWriter writes a trace arrival by arrival, as ReadCSV reads it: with a header and instants in
// RFC 3339.
type CSVWriter struct{ w *csv.Writer }

// NewCSVWriter begins a file with its header. It buffers; Flush writes the rest to w.
func NewCSVWriter(w io.Writer) *CSVWriter {
	c := &CSVWriter{csv.NewWriter(w)}
	_ = c.w.Write([]string{ColumnAt, ColumnCost}) // a failure is kept for Flush
	return c
}

// Write adds an arrival.
func (c *CSVWriter) Write(a Arrival) error {
	// Not Instant.Time, which takes 0 for none.
	at := time.UnixMicro(int64(a.At)).UTC().Format("2006-01-02T15:04:05.000000Z")
	if err := c.w.Write([]string{at, strconv.FormatInt(a.Cost, 10)}); err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	return nil
}

// Flush writes buffered data and returns the first error so far.
func (c *CSVWriter) Flush() error {
	c.w.Flush()
	if err := c.w.Error(); err != nil {
		return fmt.Errorf("write the trace: %w", err)
	}
	return nil
}

// WriteCSV writes a whole trace.
func WriteCSV(w io.Writer, t Trace) error {
	c := NewCSVWriter(w)
	for _, a := range t {
		if err := c.Write(a); err != nil {
			return err
		}
	}
	return c.Flush()
}
