package simulate

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// Format is the form of a file with a trace.
type Format string

// The formats of traces.
const (
	Auto      Format = "auto" // detected by the first line that is not blank
	CSV       Format = "csv"
	AccessLog Format = "log" // common or combined log format
)

// Read reads a trace of the given format. Skipped is zero unless the file is an access log. The
// error wraps ErrTrace or is that of the reader.
func Read(r io.Reader, f Format) (Trace, Skipped, error) {
	buffered := bufio.NewReaderSize(r, 64<<10)
	if f == Auto {
		head, err := buffered.Peek(16 << 10)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, Skipped{}, fmt.Errorf("read the trace: %w", err)
		}
		first, _, _ := bytes.Cut(bytes.TrimSpace(head), []byte("\n"))
		f = CSV
		if _, is := timeOf(first); is {
			f = AccessLog
		}
	}
	if f == AccessLog {
		return ReadAccessLog(buffered)
	}
	t, err := ReadCSV(buffered)
	return t, Skipped{}, err
}
