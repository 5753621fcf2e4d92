package jobs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"time"
)

// line is one line of a file that is not blank.
type line struct {
	number int    // from 1, blank lines counted
	text   []byte // without the space around it
	long   bool   // it was longer than allowed: text is missing
}

// lineReader reads lines of at most most bytes. It skips and reports longer ones.
type lineReader struct {
	r      *bufio.Reader
	most   int
	number int
}

func newLineReader(r io.Reader, most int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), most: most}
}

// next returns the next line that is not blank; the error at the end is io.EOF.
func (l *lineReader) next() (line, error) {
	for {
		l.number++
		now := line{number: l.number}
		part, err := []byte(nil), bufio.ErrBufferFull
		for errors.Is(err, bufio.ErrBufferFull) {
			part, err = l.r.ReadSlice('\n')
			size := len(now.text) + len(bytes.TrimRight(part, "\r\n"))
			if now.long = now.long || size > l.most && len(bytes.TrimSpace(part)) > 0; now.long {
				now.text = nil
				continue
			}
			now.text = append(now.text, part...)
		}
		now.text = bytes.TrimSpace(now.text)
		if err != nil && !errors.Is(err, io.EOF) {
			return line{}, err
		}
		if now.long || len(now.text) > 0 {
			return now, nil // after an end without a newline, the next call returns io.EOF
		}
		if err != nil {
			return line{}, err
		}
	}
}

// countLines counts the lines that next would return.
func countLines(r io.Reader) (n int, err error) {
	for lines := newLineReader(r, 0); ; n++ {
		if _, err := lines.next(); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return n, err
		}
	}
}

// lingering is how long a line waits for further lines to share its batch.
const lingering = 20 * time.Millisecond

// lineFeed delivers lines as they arrive, so that the lines of a slow writer are not delayed.
type lineFeed struct {
	lines chan line
	err   error // why it ended, nil at the end of the file; set before lines is closed
}

// feedLines reads until the end or until ctx ends. A read that blocks at that time is abandoned.
func feedLines(ctx context.Context, l *lineReader) *lineFeed {
	f := &lineFeed{lines: make(chan line)}
	go func() {
		defer close(f.lines)
		for {
			next, err := l.next()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					f.err = err
				}
				return
			}
			select {
			case f.lines <- next:
			case <-ctx.Done():
				return
			}
		}
	}()
	return f
}

// next returns the next line. If patient, it waits without limit, otherwise for lingering. more is
// false after the last line.
func (f *lineFeed) next(ctx context.Context, patient bool) (next line, got, more bool) {
	var moment <-chan time.Time
	if !patient {
		timer := time.NewTimer(lingering)
		defer timer.Stop()
		moment = timer.C
	}
	select {
	case next, got = <-f.lines:
		return next, got, got
	case <-moment:
		return line{}, false, true
	case <-ctx.Done():
		return line{}, false, false
	}
}
