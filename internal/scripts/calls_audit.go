package scripts

// Classes of audit entries. Each has bytes of its own in the audit.
const (
	AuditChange  = 'c'
	AuditRead    = 'r'
	AuditRefusal = 'f'
)

// ChainCall appends entries to the audit.
type ChainCall struct {
	At             At
	Clock, Entries string // keys
	Name           string // of this call, 16 characters; the same when it is sent again
	Previous       string // hash of the entry before the first of these
	Last, LastAt   string // hash and time of the last of these
	Remove         int    // oldest entries to remove
	// Append has entries as stored: the class and the JSON of each. Without any the call only
	// returns the end of the chain.
	Append []string
}

// Chain is the end of the chain and its sums.
type Chain struct {
	Now                      int64 // of Redis, in µs
	Applied                  bool  // the entries of the call are in the chain
	Hash, At                 string
	First, Count             int64 // number of the first entry; entries
	Changes, Reads, Refusals int64 // bytes
}

// Call is the call in the form that is sent.
func (c ChainCall) Call() Call {
	args := append(make([]any, 0, 6+len(c.Append)), string(c.At), c.Name, c.Previous, c.Last, c.LastAt, c.Remove)
	for _, e := range c.Append {
		args = append(args, e)
	}
	return Commands.Chain.call([]string{c.Clock, c.Entries}, args)
}

// Decode reads the answer.
func (c ChainCall) Decode(values []any) (Chain, error) {
	r := reader{values: values}
	out := Chain{
		Now: r.int(), Applied: r.int() == 1, Hash: r.text(), At: r.text(), First: r.int(), Count: r.int(),
		Changes: r.int(), Reads: r.int(), Refusals: r.int(),
	}
	return out, r.err
}

// TrailCall reads a part of the audit.
type TrailCall struct {
	Clock, Entries string // keys
	Before         int64  // number of the entry behind the part; 0: the newest entries
	Most           int
}

// Trail is a part of the audit.
type Trail struct {
	First   int64    // number of the first entry of the chain
	From    int64    // number of the first entry of the part
	Stop    int64    // number behind the last entry of the chain
	Entries []string // as stored, the oldest first
}

// Call is the call in the form that is sent.
func (c TrailCall) Call() Call {
	var before any = ""
	if c.Before > 0 {
		before = c.Before
	}
	return Commands.Trail.call([]string{c.Clock, c.Entries}, []any{before, c.Most})
}

// Decode reads the answer.
func (c TrailCall) Decode(values []any) (Trail, error) {
	r := reader{values: values}
	out := Trail{First: r.int(), From: r.int(), Stop: r.int()}
	for r.more() {
		out.Entries = append(out.Entries, r.text())
	}
	return out, r.err
}
