package scripts

import "time"

// RelayCall stores a part of the answer to a forwarded request while it comes.
type RelayCall struct {
	At                                  At
	Clock, Job, Stream, Beyond, Reading string // keys
	Epoch                               int64
	Number                              int64 // of the part, from 1
	Part                                []byte
	Bytes                               int64         // of the answer with the part
	Past                                bool          // the part is beyond those that are stored
	Most                                int           // parts beyond that are kept
	Keep                                time.Duration // all of them, at most
}

// Relayed is the answer to a RelayCall.
type Relayed struct {
	Current  bool  // the lease is; otherwise nothing was stored
	Furthest int64 // offset of the reader of a process that has most; -1: no process reads
}

// Call is the call in the form that is sent.
func (c RelayCall) Call() Call {
	return Call{
		Commands.Relay, []string{c.Clock, c.Job, c.Stream, c.Beyond, c.Reading},
		[]any{string(c.At), c.Epoch, c.Number, c.Part, c.Bytes, flag(c.Past), c.Most, seconds(c.Keep)},
	}
}

// Decode reads the answer.
func (c RelayCall) Decode(values []any) (Relayed, error) {
	r := reader{values: values}
	r.int()
	return Relayed{Current: r.int() == 1, Furthest: r.int()}, r.err
}
