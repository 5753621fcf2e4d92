package lua

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// CensusCall reads the figures of some of a shard's tenants.
type CensusCall struct {
	At             At
	Clock, Tenants string        // keys
	Cursor         string        // "0" begins
	Most           int           // tenants to look at, about
	Dead           time.Duration // retention of dead letters
}

// Census is a part of a shard's tenants.
type Census struct {
	Now     shaper.Instant
	Cursor  string // of what follows; "0" for nothing
	Tenants []CountedTenant
}

// CountedTenant is what is stored of a tenant.
type CountedTenant struct {
	Entry     string // in the tenants key
	API, File string // what they say
	Flows     []CountedFlow
}

// CountedFlow is what is stored of a flow. Its bucket goes by the policy that held when it was last touched; Earliest and Pace are left to
// who knows the one that holds now.
type CountedFlow struct {
	FlowStat
	Bucket shaper.Bucket
}

// Call is the call in the form that is sent.
func (c CensusCall) Call() Call {
	return Call{Commands.Census, []string{c.Clock, c.Tenants}, []any{string(c.At), c.Cursor, c.Most, seconds(c.Dead)}}
}

// Decode reads the answer.
func (c CensusCall) Decode(values []any) (Census, error) {
	r := reader{values: values}
	out := Census{Now: shaper.Instant(r.int()), Cursor: r.text()}
	for r.more() {
		t := CountedTenant{Entry: r.text()}
		flows := r.int()
		t.API, t.File = r.text(), r.text()
		if flows < 0 || flows > int64(len(values)-r.at) {
			r.fail("too few flows")
			break
		}
		t.Flows = make([]CountedFlow, flows)
		for i := range t.Flows {
			var err error
			if t.Flows[i], err = parseCounted(r.text()); err != nil && r.err == nil {
				r.err = err
			}
		}
		out.Tenants = append(out.Tenants, t)
	}
	return out, r.err
}

// parseCounted reads a flow as the census tells it.
func parseCounted(text string) (f CountedFlow, err error) {
	rest := text
	next := func() (part string) {
		part, rest, _ = strings.Cut(rest, " ")
		return part
	}
	number := func() int64 {
		n, failed := strconv.ParseInt(next(), 10, 64)
		if failed != nil {
			err = fmt.Errorf("%w: a flow with a part that is no number", ErrReply)
		}
		return n
	}
	instant := func() shaper.Instant { return shaper.Instant(number()) }
	f.Flow = next()
	f.Bucket = shaper.Bucket{Last: instant(), Ready: instant(), HeldUntil: instant(), Share: number(), Spaced: instant()}
	f.HeldUntil, f.FullUntil = f.Bucket.HeldUntil, instant()
	f.Depth, f.Queued, f.Running, f.Bytes = number(), number(), number(), number()
	f.Admitted, f.Rejected, f.Departed, f.Succeeded, f.Dead = number(), number(), number(), number(), number()
	f.Cause = known(next())
	cells := next()
	f.Hindered = parseHindrance(next())
	tier, told := strings.CutPrefix(next(), "=")
	f.Tier, f.Oldest, f.Letters = tier, instant(), number()
	if err == nil && (f.Flow == "" || !told || rest != "") {
		err = fmt.Errorf("%w: not a flow", ErrReply)
	}
	if err == nil && cells != "0" {
		f.Bucket.Cells, err = parseCells(cells)
	}
	return f, err
}

// parseCells reads the state of each pace, as lib/flow.lua writes it.
func parseCells(text string) ([]shaper.Cell, error) {
	cells := make([]shaper.Cell, 0, 1+strings.Count(text, ","))
	for cell := range strings.SplitSeq(text, ",") {
		var n [5]int64
		for i := range n {
			part, rest, more := strings.Cut(cell, ":")
			var err error
			if n[i], err = strconv.ParseInt(part, 10, 64); err != nil || more != (i < len(n)-1) {
				return nil, fmt.Errorf("%w: not a pace: five numbers are", ErrReply)
			}
			cell = rest
		}
		if n[0] < 1 {
			return nil, fmt.Errorf("%w: a pace of no jobs", ErrReply)
		}
		cells = append(cells, shaper.Cell{
			Pace: shaper.Pace{Rate: shaper.Rate{Limit: n[0], Period: micros(n[1])}, Burst: n[2]}, TAT: shaper.Instant(n[3]), Rem: n[4],
		})
	}
	return cells, nil
}
