package scripts

import (
	"time"

	"github.com/7509e464/sluice/shaper"
)

// RestoreMost is the greatest number of flows of a RestoreCall.
const RestoreMost = 200

// RestoreCall gives a shard back what a failover has lost and a worker knows.
type RestoreCall struct {
	At                  At
	Clock, Due, Tenants string         // keys
	Seen                shaper.Instant // that the worker has seen; 0: it remembers nothing
	Horizon             time.Duration
	Pause               time.Duration // of the shard, after the first call at a master
	Flows               []Departed
}

// Departed is the last departure of a flow that a worker knows of.
type Departed struct {
	Flow  string // as in keys
	Stamp shaper.Instant
	Cost  int64  // of its job
	Entry string // of the tenant, in the tenants key
}

// Call is the call in the form that is sent.
func (c RestoreCall) Call() Call {
	args := append(make([]any, 0, 4+4*len(c.Flows)), string(c.At), int64(c.Seen), c.Horizon.Microseconds(),
		c.Pause.Microseconds())
	for _, f := range c.Flows {
		args = append(args, f.Flow, int64(f.Stamp), f.Cost, f.Entry)
	}
	return Commands.Restore.call([]string{c.Clock, c.Due, c.Tenants}, args)
}

// Restored is the answer to a RestoreCall.
type Restored struct {
	ReplicationID string // of the master; "" if it names none
	Lost          int    // number of flows that had lost a stamp
	Other         bool   // this call is the first after another master or a restart
}

// Decode reads the answer.
func (c RestoreCall) Decode(values []any) (out Restored, err error) {
	r := reader{values: values}
	r.int() // the clock
	out.Lost, out.ReplicationID = int(r.int()), r.text()
	out.Other = r.int() == 1
	return out, r.err
}
