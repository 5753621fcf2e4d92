package scripts

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// RelayCall stores parts of the answer to a forwarded request while it comes.
type RelayCall struct {
	At                                  At
	Clock, Job, Stream, Beyond, Reading string // keys
	Epoch                               int64
	Number                              int64 // of the first part, from 1
	Parts                               []RelayPart
	Past                                bool          // the parts are beyond those that are stored
	More                                bool          // the key of such parts has some: these need not pass through the script
	Most                                int           // parts beyond that are kept
	Keep                                time.Duration // all of them, at most
}

// RelayPart is a part of an answer.
type RelayPart struct {
	Text  []byte
	Bytes int64 // of the answer with the part
}

// Relayed is the answer to a RelayCall.
type Relayed struct {
	Current  bool  // the lease is, and the parts are stored
	Furthest int64 // offset of the reader of a process that has most; -1: no process reads
}

// Call is the call in the form that is sent.
func (c RelayCall) Call() Call {
	args := []any{string(c.At), c.Epoch, c.Number, flag(c.Past), c.Most, seconds(c.Keep)}
	var before []Command
	for i, p := range c.Parts {
		if !c.More {
			args = append(args, p.Text, p.Bytes)
			continue
		}
		add := []any{"xadd", c.Stream, "nomkstream"}
		if c.Past {
			add = []any{"xadd", c.Beyond, "nomkstream", "maxlen", "~", c.Most}
		}
		id := strconv.FormatInt(c.Epoch, 10) + "-" + strconv.FormatInt(c.Number+int64(i), 10)
		before = append(before, Command{Args: append(add, id, "n", p.Bytes, "p", p.Text), Harmless: isNoPart})
	}
	call := Commands.Relay.call([]string{c.Clock, c.Job, c.Stream, c.Beyond, c.Reading}, args)
	call.Before, call.Atomic = before, len(before) > 0
	return call
}

// isNoPart reports whether Redis says that it has the part, or that the key is gone, which the
// script sees.
func isNoPart(err error) bool {
	return errors.Is(err, redis.Nil) || strings.Contains(err.Error(), "equal or smaller")
}

// Decode reads the answer.
func (c RelayCall) Decode(values []any) (Relayed, error) {
	r := reader{values: values}
	r.int()
	return Relayed{Current: r.int() == 1, Furthest: r.int()}, r.err
}
