package scripts

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// ScanCall reads the settings and figures of a page of a shard's tenants, or of one tenant.
type ScanCall struct {
	At             At
	Clock, Tenants string        // keys
	Policy         string        // key of the one tenant to read; empty for a page
	Cursor         string        // "0" begins
	Most           int           // about how many tenants
	MostFlows      int           // about how many flows; 0 for ScanFlows
	FlowCursor     string        // of the one tenant: where its flows go on; empty begins
	Dead           time.Duration // retention of dead letters
}

// ScanFlows is about how many flows a call reads, which takes Redis about 5 ms.
const ScanFlows = 256

// Scan is a page of a shard's tenants.
type Scan struct {
	Now     shaper.Instant
	Cursor  string // of the next page, "0" at the end
	Tenants []ScannedTenant
}

// ScannedTenant is a tenant as it is stored.
type ScannedTenant struct {
	Entry     string // in the tenants key; of the one tenant its name as in keys
	Revision  int64
	API, File string // overrides
	Reason    string
	Flows     []ScannedFlow
	More      string // cursor at which its flows go on; empty at the end
}

// ScannedFlow is a flow as it is stored. Its bucket follows the policy at its last change.
type ScannedFlow struct {
	Flow                                          string // as in keys
	Bucket                                        shaper.Bucket
	Depth, Queued, Running                        int64
	Admitted, Rejected, Departed, Succeeded, Dead int64
	Oldest                                        shaper.Instant // since when its oldest job could have left; 0 for none
	FullUntil                                     shaper.Instant // stopped until then by its dead letters
	Bytes                                         int64          // of the payloads of its waiting jobs
	Tier                                          string         // that the tenant's credential claimed last
	Hindered                                      Hindrance
	Letters                                       int64  // dead letters that can be replayed
	Cause                                         string // of its last hold; empty if unknown
	Stored                                        Stored // zero in a page

	Pool   string // that it is in, as in keys; empty for none
	InTurn bool   // it waits for its turn there
	Owed   int64  // to the pool, see shaper.Pool.Exceed; of a pool itself, by its flows and classes
	Extra  int64  // that departures cost the pool beyond one each; of a pool itself, of all its flows
	// Of a pool itself, sums over the flows that wait for their turn.
	Weights  int64
	Reserves float64 // costs a second
}

// Stored is the bytes that a flow has stored.
type Stored struct {
	Live, Dead    int64       // of waiting and leased jobs, of dead letters
	Answers, Keys shaper.Aged // of jobs that ended otherwise, of idempotency keys that outlive their jobs
	Kept          int64       // of forwarded requests that have ended, with their answers
}

// Hindrance is why the jobs of a flow could not leave, apart from its policy, as last reported.
type Hindrance struct {
	Cause string // as limited_by shows it
	Until shaper.Instant
}

// Call is the call in the form that is sent.
func (c ScanCall) Call() Call {
	keys := []string{c.Clock, c.Tenants}
	if c.Policy != "" {
		keys = append(keys, c.Policy)
	}
	return Commands.Scan.call(keys, []any{
		string(c.At), c.Cursor, c.Most, seconds(c.Dead), cmp.Or(c.MostFlows, ScanFlows), cmp.Or(c.FlowCursor, "0"),
	})
}

// Decode reads the answer.
func (c ScanCall) Decode(values []any) (Scan, error) {
	r := reader{values: values}
	out := Scan{Now: shaper.Instant(r.int()), Cursor: r.text()}
	for r.more() {
		t := ScannedTenant{Entry: r.text()}
		flows := r.int()
		t.Revision, t.API, t.File, t.Reason, t.More = r.int(), r.text(), r.text(), r.text(), r.text()
		if flows < 0 || flows > int64(len(values)-r.at) {
			r.fail("too few flows")
			break
		}
		t.Flows = make([]ScannedFlow, flows)
		for i := range t.Flows {
			var err error
			if t.Flows[i], err = parseFlow(r.text()); err != nil && r.err == nil {
				r.err = err
			}
		}
		out.Tenants = append(out.Tenants, t)
	}
	return out, r.err
}

// parseFlow reads a flow as scan.lua writes it.
func parseFlow(text string) (f ScannedFlow, err error) {
	rest := text
	next := func() (part string) {
		part, rest, _ = strings.Cut(rest, "\n")
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
	f.Bucket = shaper.Bucket{
		Last: instant(), Ready: instant(), HeldUntil: instant(), Share: number(), Spaced: instant(),
	}
	f.FullUntil = instant()
	f.Depth, f.Queued, f.Running, f.Bytes = number(), number(), number(), number()
	f.Admitted, f.Rejected, f.Departed, f.Succeeded, f.Dead = number(), number(), number(), number(), number()
	if f.Cause = next(); f.Cause == "0" {
		f.Cause = ""
	}
	cells := next()
	f.Hindered = parseHindrance(next())
	obeyed := next()
	if turn, _, ok := strings.Cut(next(), " "); ok {
		f.InTurn, f.Pool = turn[0] == '+', turn[1:]
	}
	f.Weights, f.Reserves = number(), float64(number())/1e6
	f.Owed, f.Extra, f.Oldest, f.Letters = number(), number(), instant(), number()
	if rest != "" {
		f.Stored = Stored{
			Live: number(), Dead: number(),
			Answers: shaper.Aged{Sum: number(), Before: number(), Since: instant()},
			Keys:    shaper.Aged{Sum: number(), Before: number(), Since: instant()},
			Kept:    number(),
		}
	}
	if err == nil && (f.Flow == "" || rest != "") {
		err = fmt.Errorf("%w: not a flow", ErrReply)
	}
	if err == nil && obeyed != "0" {
		var paces []shaper.Pace
		if f.Tier, paces, err = parseObeyed(obeyed); err == nil && cells != "0" {
			f.Bucket.Cells, err = parseCells(cells, paces)
		}
	}
	return f, err
}

// ParseTurn reads weight and reserve of the turn that a flow has in its pool, as lib/turn.lua
// writes it.
func ParseTurn(text string) (weight int64, reserve shaper.Rate) {
	fields := strings.Fields(text)
	if len(fields) > 3 {
		weight, _ = strconv.ParseInt(fields[3], 10, 64)
	}
	if len(fields) > 4 {
		if n, err := numbersIn(fields[4], 6); err == nil && n[0] > 0 {
			reserve = shaper.Rate{Limit: n[0], Period: micros(n[1])}
		}
	}
	return max(weight, 1), reserve
}

// parseHindrance reads a hindrance as lib/flow.lua writes it. A malformed text is no hindrance.
func parseHindrance(text string) Hindrance {
	until, cause, _ := strings.Cut(text, ":")
	at, err := strconv.ParseInt(until, 10, 64)
	if err != nil || cause == "" {
		return Hindrance{}
	}
	return Hindrance{Cause: cause, Until: shaper.Instant(at)}
}

// parseCells reads the state of each pace, as lib/flow.lua writes it.
func parseCells(text string, paces []shaper.Pace) ([]shaper.Cell, error) {
	cells := make([]shaper.Cell, 0, len(paces))
	for cell := range strings.SplitSeq(text, ",") {
		if strings.Count(cell, ":") == 1 {
			cell += ":0" // no credit
		}
		n, err := numbersIn(cell, 3)
		if err != nil || len(cells) == len(paces) {
			return nil, fmt.Errorf("%w: not the state of %d paces", ErrReply, len(paces))
		}
		cells = append(cells, shaper.Cell{Pace: paces[len(cells)], TAT: shaper.Instant(n[0]), Rem: n[1], Credit: n[2]})
	}
	return cells, nil
}
