package client

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// ErrQuiet means that a stream was silent for too long, without even a heartbeat: the connection
// may be lost.
var ErrQuiet = errors.New("client: the stream is silent")

// maxEvent bounds one event of a stream, in bytes; 500 tenants are below it.
const maxEvent = 8 << 20

// Event is one event of a stream.
type Event struct {
	Name string // "message" if the server gives none
	Data []byte // JSON; until the next call of Next
}

// Stream is an open stream of server-sent events. It is used by one goroutine at a time.
type Stream struct {
	body   io.ReadCloser
	r      *bufio.Reader
	idle   time.Duration
	alarm  *time.Timer
	quiet  chan struct{} // closed after a silence of idle
	cancel context.CancelFunc
	data   []byte
}

// View selects the figures of a live stream.
type View struct {
	Tenant string // gets events of its own; empty for none
	Pool   string // the same
	Search string // tenants whose name contains it; empty for all
	Sort   string // depth, oldest_wait, refused, dead or name; empty for the server's
	Limit  int    // tenants at most, up to 500; 0 for the server's
}

// Live opens the stream of figures: the events "overview", "pools" and "tenants", "tenant" for the
// tenant of the view, and "pool" and "pool_flows" for its pool. The transport of the client must
// not bound the time of a whole answer. A stream that is silent for idle ends with ErrQuiet.
func (c *Client) Live(ctx context.Context, view View, idle time.Duration) (*Stream, error) {
	query := url.Values{}
	for name, value := range map[string]string{"tenant": view.Tenant, "pool": view.Pool, "q": view.Search, "sort": view.Sort} {
		if value != "" {
			query.Set(name, value)
		}
	}
	return c.stream(ctx, pagePath("/v1/stream", query, "", view.Limit), idle)
}

// stream opens any stream of events; a refusal is an *Error.
func (c *Client) stream(ctx context.Context, path string, idle time.Duration) (*Stream, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("client: request: %w", err)
	}
	req.Header.Set("Accept", "text/event-stream")
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("client: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		defer cancel()
		defer resp.Body.Close()
		data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
		if err != nil {
			return nil, fmt.Errorf("client: answer: %w", err)
		}
		return nil, problemOf(resp, data)
	}
	return newStream(resp.Body, idle, cancel), nil
}

// newStream reads events from the body until it is closed.
func newStream(body io.ReadCloser, idle time.Duration, cancel context.CancelFunc) *Stream {
	s := &Stream{body: body, idle: idle, quiet: make(chan struct{}), cancel: cancel}
	s.alarm = time.AfterFunc(idle, func() {
		close(s.quiet)
		cancel()
		_ = body.Close()
	})
	s.r = bufio.NewReaderSize(signs{s}, 64<<10)
	return s
}

// signs is the body of a stream; each read restarts the time of silence.
type signs struct{ s *Stream }

func (r signs) Read(p []byte) (int, error) {
	n, err := r.s.body.Read(p)
	if n > 0 && r.s.alarm.Stop() {
		r.s.alarm.Reset(r.s.idle)
	}
	return n, err
}

// Next waits for an event. The error is io.EOF when the server ends the stream, and ErrQuiet after
// a silence. An incomplete event is dropped, as the standard of server-sent events requires.
func (s *Stream) Next() (Event, error) {
	e := Event{Name: "message"}
	s.data = s.data[:0]
	for lines := 0; ; {
		line, err := s.line()
		if err != nil {
			return Event{}, s.why(err)
		}
		if len(line) == 0 {
			if lines > 0 {
				e.Data = s.data[:len(s.data)-1] // a newline follows each line of data
				return e, nil
			}
			e.Name = "message"
			continue
		}
		field, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "event":
			e.Name = string(value)
		case "data":
			lines++
			s.data = append(append(s.data, value...), '\n')
			if len(s.data) > maxEvent {
				return Event{}, fmt.Errorf("client: an event of the stream is longer than %d bytes", maxEvent)
			}
		}
	}
}

// line is one line without its end, valid until the next call.
func (s *Stream) line() ([]byte, error) {
	line, err := s.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		whole := bytes.Clone(line)
		for errors.Is(err, bufio.ErrBufferFull) && len(whole) <= maxEvent {
			line, err = s.r.ReadSlice('\n')
			whole = append(whole, line...)
		}
		line = whole
	}
	switch {
	case errors.Is(err, bufio.ErrBufferFull):
		return nil, fmt.Errorf("client: a line of the stream is longer than %d bytes", maxEvent)
	case err != nil:
		return nil, err
	}
	return bytes.TrimSuffix(line[:len(line)-1], []byte("\r")), nil
}

// why is the reason of a failed read.
func (s *Stream) why(err error) error {
	select {
	case <-s.quiet:
		return fmt.Errorf("%w: no event for %v", ErrQuiet, s.idle)
	default:
	}
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("client: stream: %w", err)
}

// Close ends the stream; a Next under way fails.
func (s *Stream) Close() error {
	s.alarm.Stop()
	s.cancel()
	return s.body.Close()
}
