package scripts

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/7509e464/sluice/shaper"
)

// Record is a job as it is stored; lib/record.lua describes the bytes.
type Record struct {
	State       shaper.State
	Epoch       int64
	Attempts    int
	FreeLeases  int  // holds and expired leases that cost no attempt
	Outcome     byte // of the last lease that ended: an Outcome, 'x' for an expired lease, '-' for none
	Tag         uint32
	Stamp       shaper.Instant // of the last lease
	At          shaper.Instant // when a waiting or leased job is eligible, or when a done job ended
	Deadline    shaper.Instant // end of its max wait; 0 for none
	Seq         int64
	Created     shaper.Instant
	MaxWaitMS   int64
	Cost        int64
	MaxAttempts int
	Flow        string // as in keys: tenant/route
	Idem        string // hash of the idempotency key, empty for none
	Type        string
	Tenant      string // as the client wrote it
	Route       string
	CallbackURL string // empty for none
	TraceParent string // as submitted, empty for none
	Payload     []byte
	Result      []byte // of the last settled delivery, in the form of its settler
}

const (
	maxPrefix   = 2194
	maxURL      = 1058 // bytes of a callback URL: 1,024, and 34 more of one that is encrypted
	recordBytes = 256  // about the bytes that Redis needs beside the record
)

// callbackField is the place of the callback URL among the fields of the prefix: its length takes
// two bytes.
const callbackField = 6

// ErrRecord means that a stored record cannot be read.
var ErrRecord = errors.New("not a job record")

// Rest encodes the part of a record that admit gets: all from its cost on. Type, tenant,
// route and trace parent are at most 255 bytes, the callback URL at most 1,058, flow and idem are
// as in keys. Empty fields at the end take no bytes.
func (r Record) Rest() ([]byte, error) {
	tenant, route, _ := strings.Cut(r.Flow, "/")
	fields := []string{
		r.Flow, r.Idem, r.Type, unless(r.Tenant, tenant), unless(r.Route, route), r.TraceParent,
		r.CallbackURL,
	}
	for len(fields) > 3 && fields[len(fields)-1] == "" {
		fields = fields[:len(fields)-1]
	}
	prefix := HeadLength
	for i, f := range fields {
		if len(f) > 255 && i != callbackField || len(f) > maxURL {
			return nil, fmt.Errorf("%w: a field of %d bytes is too long", ErrRecord, len(f))
		}
		prefix += 1 + len(f)
		if i == callbackField {
			prefix++
		}
	}
	if prefix > maxPrefix {
		return nil, fmt.Errorf("%w: %d bytes before the payload, at most %d fit", ErrRecord, prefix, maxPrefix)
	}
	b := make([]byte, 0, prefix-fieldCost.at+len(r.Payload))
	b = fieldCost.put(b, r.Cost)
	b = fieldMax.put(b, int64(r.MaxAttempts))
	b = fieldPrefix.put(b, int64(prefix))
	b = fieldPayload.put(b, int64(len(r.Payload)))
	for i, f := range fields {
		if i == callbackField {
			b = append(b, byte(len(f)>>8))
		}
		b = append(b, byte(len(f)))
		b = append(b, f...)
	}
	return append(b, r.Payload...), nil
}

// DecodeRecord reads a stored record: head, prefix, payload, which may be left out, and result.
// Payload and Result share the memory of raw. Errors wrap ErrRecord.
func DecodeRecord(raw []byte) (Record, error) {
	r, rest, err := decodePrefix(raw)
	if err != nil {
		return Record{}, err
	}
	result, payload := int(fieldResult.of(raw)), int(fieldPayload.of(raw))
	if len(rest) >= payload+result {
		r.Payload = rest[:payload:payload]
		rest = rest[payload:]
	}
	if len(rest) < result {
		return Record{}, fmt.Errorf("%w: %d bytes after the prefix for a payload of %d and a result of %d",
			ErrRecord, len(raw)-len(rest), payload, result)
	}
	r.Result = rest[:result:result]
	return r, nil
}

// DecodeStatus reads a record without its payload, whose result may be cut, as Status has it.
// Errors wrap ErrRecord.
func DecodeStatus(raw []byte) (Record, error) {
	r, rest, err := decodePrefix(raw)
	r.Result = rest
	return r, err
}

// PayloadAt returns the offset of the payload in a record, by its head.
func PayloadAt(raw []byte) int { return int(fieldPrefix.of(raw)) }

// ResultSize returns the length of the result of a record, by its head.
func ResultSize(raw []byte) int { return int(fieldResult.of(raw)) }

// ResultAt returns the offset of the result in a record, by its head.
func ResultAt(raw []byte) int { return int(fieldPrefix.of(raw) + fieldPayload.of(raw)) }

// decodePrefix reads head and prefix of a record, and returns what follows.
func decodePrefix(raw []byte) (r Record, rest []byte, err error) {
	if len(raw) < HeadLength || raw[0] != '1' {
		return Record{}, nil, fmt.Errorf("%w: %d bytes", ErrRecord, len(raw))
	}
	r = Record{
		FreeLeases:  int(fieldFree.of(raw)),
		Outcome:     byte(fieldOutcome.of(raw)),
		Tag:         uint32(fieldTag.of(raw)),
		Stamp:       shaper.Instant(fieldStamp.of(raw)),
		Deadline:    shaper.Instant(fieldDeadline.of(raw)),
		Seq:         fieldSeq.of(raw),
		Created:     shaper.Instant(fieldCreated.of(raw)),
		MaxWaitMS:   fieldWait.of(raw),
		Cost:        fieldCost.of(raw),
		MaxAttempts: int(fieldMax.of(raw)),
	}
	r.State, r.Epoch, r.Attempts, r.At = leaseOf(raw)
	prefix := int(fieldPrefix.of(raw))
	if prefix < HeadLength || prefix > len(raw) {
		return Record{}, nil, fmt.Errorf("%w: prefix of %d in %d bytes", ErrRecord, prefix, len(raw))
	}
	at := HeadLength
	for i, field := range []*string{
		&r.Flow, &r.Idem, &r.Type, &r.Tenant, &r.Route, &r.TraceParent, &r.CallbackURL,
	} {
		if at == prefix && i >= 3 {
			break // the rest is empty
		}
		width := 1 // of the field's length
		if i == callbackField {
			width = 2
		}
		if at+width > prefix || at+width+int(wide(raw[at:at+width])) > prefix {
			return Record{}, nil, fmt.Errorf("%w: a field runs over the prefix", ErrRecord)
		}
		at += width
		n := int(wide(raw[at-width : at]))
		*field = string(raw[at : at+n])
		at += n
	}
	tenant, route, _ := strings.Cut(r.Flow, "/")
	r.Tenant, r.Route = cmp.Or(r.Tenant, tenant), cmp.Or(r.Route, route)
	return r, raw[prefix:], nil
}

// leaseOf reads from the head of a record its state, the epoch and the attempts so far, and when
// the job became eligible.
func leaseOf(head []byte) (state shaper.State, epoch int64, attempts int, eligible shaper.Instant) {
	return shaper.State(fieldState.of(head)), fieldEpoch.of(head), int(fieldAttempts.of(head)),
		shaper.Instant(fieldAt.of(head))
}

// Peeked is what the first bytes of a record hold.
type Peeked struct {
	State       shaper.State
	Flow        string // as in keys
	Type        string // empty where the bytes end before its end
	TraceParent string // the same
	Created     shaper.Instant
}

// The numbers of bytes at the start of a record that hold what PeekRecord reads, without and with
// the type and the trace parent.
const (
	PeekFlow = HeadLength + 1 + 255
	PeekType = PeekFlow + 5*(1+255)
)

// PeekRecord reads the first bytes of a record; ok is false if they end before the flow does.
func PeekRecord(start []byte) (p Peeked, ok bool) {
	if len(start) <= HeadLength || start[0] != '1' {
		return Peeked{}, false
	}
	end := min(len(start), max(HeadLength, int(fieldPrefix.of(start))))
	// Flow, idempotency hash, type, tenant, route and trace parent.
	texts, rest := [6]string{}, start[HeadLength:end]
	for i := range texts {
		if len(rest) == 0 || len(rest) < 1+int(rest[0]) {
			if i == 0 {
				return Peeked{}, false
			}
			break
		}
		texts[i], rest = string(rest[1:1+int(rest[0])]), rest[1+int(rest[0]):]
	}
	return Peeked{
		State: shaper.State(fieldState.of(start)), Flow: texts[0], Type: texts[2], TraceParent: texts[5],
		Created: shaper.Instant(fieldCreated.of(start)),
	}, true
}

// WaitOf reads from the head of a record how long its job waited from its admission to its
// departure, false unless it succeeded at the first.
func WaitOf(head []byte) (wait time.Duration, ok bool) {
	if len(head) < HeadLength || head[0] != '1' || shaper.State(fieldState.of(head)) != shaper.Succeeded ||
		fieldEpoch.of(head) != 1 {
		return 0, false
	}
	return max(0, micros(fieldStamp.of(head)-fieldCreated.of(head))), true
}

// unless is the name, or "" if the key contains it as it is, as most do.
func unless(name, inKey string) string {
	if name == inKey {
		return ""
	}
	return name
}

// wide reads a big-endian number of up to 7 bytes.
func wide(b []byte) (n int64) {
	for _, c := range b {
		n = n<<8 | int64(c)
	}
	return n
}
