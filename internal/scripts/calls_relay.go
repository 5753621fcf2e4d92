package scripts

import "time"

// RelayCall stores parts of the answer to a forwarded request while it comes.
type RelayCall struct {
	At                                  At
	Clock, Job, Stream, Beyond, Reading string // keys
	Epoch                               int64
	Number                              int64 // of the first part, from 1
	Parts                               []RelayPart
	Past                                bool          // the parts are beyond those that are stored
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
	Current  bool  // the lease is; otherwise nothing was stored
	Furthest int64 // offset of the reader of a process that has most; -1: no process reads
}

// Call is the call in the form that is sent.
func (c RelayCall) Call() Call {
	args := []any{string(c.At), c.Epoch, c.Number, flag(c.Past), c.Most, seconds(c.Keep)}
	for _, p := range c.Parts {
		args = append(args, p.Text, p.Bytes)
	}
	return Call{Commands.Relay, []string{c.Clock, c.Job, c.Stream, c.Beyond, c.Reading}, args}
}

// Decode reads the answer.
func (c RelayCall) Decode(values []any) (Relayed, error) {
	r := reader{values: values}
	r.int()
	return Relayed{Current: r.int() == 1, Furthest: r.int()}, r.err
}
