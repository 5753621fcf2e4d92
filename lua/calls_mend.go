package lua

import (
	"strings"
	"time"
)

// MendCall compares what is counted in a shard with what is stored.
type MendCall struct {
	At                                           At
	Clock, Due, Expires, Leases, Tenants, Outbox string   // keys
	Jobs                                         []string // keys of records whose place in an index is looked at
	Flows                                        []string // names of flows to look at, beside those of Jobs that are out of place
	Horizon                                      time.Duration
	Repair                                       bool // else nothing is written
	Totals                                       bool // look at the totals of the shard
	JobFlows                                     bool // look at the flows of Jobs, too
}

// Mended is one thing that is not as it should be, or was not before it was repaired.
type Mended struct {
	Kind   string // such as "wrong_type"
	Name   string // of the key, or what of it, without the shard
	Detail string
}

// Call is the call in the form that is sent.
func (c MendCall) Call() Call {
	args := []any{string(c.At), c.Horizon.Microseconds(), flag(c.Repair), flag(c.Totals), flag(c.JobFlows)}
	for _, name := range c.Flows {
		args = append(args, name)
	}
	return Call{Commands.Mend, append([]string{c.Clock, c.Due, c.Expires, c.Leases, c.Tenants, c.Outbox}, c.Jobs...), args}
}

// Decode reads the answer.
func (c MendCall) Decode(values []any) (found []Mended, err error) {
	r := reader{values: values}
	r.int()
	for r.more() {
		found = append(found, Mended{r.text(), r.text(), r.text()})
	}
	return found, r.err
}

// Damaged returns what a script stopped at because a part of it was deleted: "clock", "policies",
// or "flow" and its name. ok is false for any other error.
func Damaged(err error) (what, name string, ok bool) {
	if err == nil {
		return "", "", false
	}
	_, rest, found := strings.Cut(err.Error(), "DAMAGED ")
	if !found {
		return "", "", false
	}
	fields := strings.Fields(strings.TrimRight(rest, ". \n"))
	switch {
	case len(fields) >= 2 && fields[0] == "flow":
		return "flow", fields[1], true
	case len(fields) >= 1 && strings.HasPrefix(fields[0], "clock"):
		return "clock", "", true
	case len(fields) >= 1 && strings.HasPrefix(fields[0], "policies"):
		return "policies", "", true
	}
	return "", "", false
}
