package worker

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/7509e464/sluice/queue"
)

// eventCost reads the actual cost from server-sent events while they pass: that of the last event
// whose data is JSON with something at the pointer. An event may have maxCostBody bytes of data.
type eventCost struct {
	pointer jsontext.Pointer
	name    []byte // of the pointer's last step: only events that have it are decoded

	line, data []byte
	long       bool // the event has too many bytes
	text       string
	found      bool
}

func newEventCost(pointer string) *eventCost {
	e := &eventCost{pointer: jsontext.Pointer(pointer)}
	e.name = []byte(pointer[strings.LastIndexByte(pointer, '/')+1:])
	if bytes.IndexByte(e.name, '~') >= 0 || bytes.IndexFunc(e.name, func(r rune) bool { return r > '~' || r < ' ' }) >= 0 {
		e.name = nil // it may be written in other ways
	}
	return e
}

// Write reads on.
func (e *eventCost) Write(p []byte) {
	for len(p) > 0 {
		end := bytes.IndexByte(p, '\n')
		if end < 0 {
			e.keep(&e.line, p)
			return
		}
		if len(e.line) == 0 {
			e.take(p[:end])
		} else {
			e.keep(&e.line, p[:end])
			e.take(e.line)
			e.line = e.line[:0]
		}
		p = p[end+1:]
	}
}

// keep appends to a part of the event, unless that is too long.
func (e *eventCost) keep(to *[]byte, p []byte) {
	if len(*to)+len(p) > maxCostBody {
		e.long = true
		return
	}
	*to = append(*to, p...)
}

// take takes a line.
func (e *eventCost) take(line []byte) {
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) == 0 {
		e.event()
		return
	}
	if value, is := bytes.CutPrefix(line, []byte("data:")); is {
		e.keep(&e.data, value)
		e.keep(&e.data, []byte("\n"))
	}
}

// event ends an event.
func (e *eventCost) event() {
	if data := e.data; len(data) > 0 && !e.long && bytes.Contains(data, e.name) {
		if text, err := valueAt(bytes.NewReader(data), e.pointer); err == nil {
			e.text, e.found = text, true
		}
	}
	e.data, e.long = e.data[:0], false
}

// ofEvents returns the actual cost that events reported; see of.
func (c answerCosts) ofEvents(r Route, l *queue.Lease, status int, e *eventCost) *int64 {
	e.take(e.line)
	e.event() // the last may have no end
	err := error(errCostMissing)
	var n *int64
	if e.found {
		n, err = parseCost(e.text, errCostValue)
	}
	switch {
	case err == nil:
		return new(max(*n, *r.MinCost))
	case status >= 300:
		return nil // answers to failed requests rarely report usage
	}
	c.ignored(l, err)
	if r.CostMissing != nil {
		return new(*r.CostMissing)
	}
	return nil
}
