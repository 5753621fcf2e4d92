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

// lineReader reads lines of at most most bytes; longer ones are skipped and reported.
type lineReader struct {
	r      *bufio.Reader
	most   int
	number int
}

func newLineReader(r io.Reader, most int) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), most: most}
}

// next is the next line; the error at the end is io.EOF.
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
			return now, nil // an end without a newline comes again with the next call
		}
		if err != nil {
			return line{}, err
		}
	}
}

// countLines is how many lines next would give, or the error that it would end with.
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

// lingering is how long a line that was read waits for company.
const lingering = 20 * time.Millisecond

// lineFeed hands out lines as they come, so that those of a slow writer are not kept until there
// are many.
type lineFeed struct {
	lines chan line
	err   error // why it ended, nil at the end of the file; set before lines is closed
}

// feedLines reads until the end or until ctx ends; a read that blocks then is left behind.
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

// next is the next line. It waits for one as long as patient says so, otherwise just a moment; more
// is false once there will be no further one.
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
