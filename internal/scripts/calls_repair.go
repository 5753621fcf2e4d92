package scripts

import (
	"regexp"
	"strings"
	"time"
)

// RepairCall compares the counters of a shard with what is stored.
type RepairCall struct {
	At                                           At
	Clock, Due, Expires, Leases, Tenants, Outbox string   // keys
	Jobs                                         []string // keys of records whose index entries are checked
	// Flows names flows to check, besides those of misplaced Jobs.
	Flows    []string
	Horizon  time.Duration
	Repair   bool // else nothing is written
	Totals   bool // check the totals of the shard
	JobFlows bool // check the flows of Jobs, too
}

// Repaired is one inconsistency that was found, and repaired if that was requested.
type Repaired struct {
	Kind   string // such as "wrong_type"
	Name   string // of the key or flow, without the shard
	Detail string
}

// Call is the call in the form that is sent.
func (c RepairCall) Call() Call {
	args := []any{string(c.At), c.Horizon.Microseconds(), flag(c.Repair), flag(c.Totals), flag(c.JobFlows)}
	for _, name := range c.Flows {
		args = append(args, name)
	}
	return Commands.Repair.call(append([]string{c.Clock, c.Due, c.Expires, c.Leases, c.Tenants, c.Outbox}, c.Jobs...),
		args)
}

// Decode reads the answer.
func (c RepairCall) Decode(values []any) (found []Repaired, err error) {
	r := reader{values: values}
	r.int()
	for r.more() {
		found = append(found, Repaired{r.text(), r.text(), r.text()})
	}
	return found, r.err
}

var damaged = regexp.MustCompile(`DAMAGED (\w+) ?(\S*)`)

// Damaged returns why a script stopped: a part of the shard was deleted, which is "clock",
// "policies", or "flow" with its name. It returns "" for any other error.
func Damaged(err error) (what, name string) {
	m := damaged.FindStringSubmatch(err.Error())
	if m == nil {
		return "", ""
	}
	return m[1], strings.TrimRight(m[2], ".")
}
