package lua

import (
	"fmt"
	"strings"
)

// field is a part of a record's head. Numbers are big-endian, instants are whole µs.
type field struct {
	name string
	size int // bytes
	kind byte

	at int // its first byte, from 0; layOut sets it
}

// What the bytes of a field are.
const (
	number = 'n'
	letter = 'c'
)

// The fields of the head. What a script of its own reads side by side stays side by side: see
// TestLayout.
var (
	fieldVersion  = field{name: "version", size: 1, kind: letter}  // '1'
	fieldState    = field{name: "state", size: 1, kind: letter}    // shaper.State
	fieldEpoch    = field{name: "epoch", size: 4, kind: number}    // leases so far
	fieldAttempts = field{name: "attempts", size: 2, kind: number} // deliveries that counted
	fieldFree     = field{name: "free", size: 1, kind: number}     // leases that counted as no attempt
	fieldOutcome  = field{name: "outcome", size: 1, kind: letter}  // of the last lease
	fieldTag      = field{name: "tag", size: 4, kind: number}      // of the last replay
	fieldStamp    = field{name: "stamp", size: 7, kind: number}    // of the last lease
	fieldAt       = field{name: "at", size: 7, kind: number}       // when a waiting or leased job is eligible, or a done one ended
	fieldDeadline = field{name: "deadline", size: 7, kind: number} // 0 for none
	fieldSeq      = field{name: "seq", size: 6, kind: number}      // place in the queue
	fieldResult   = field{name: "result", size: 3, kind: number}   // bytes of the result
	fieldCreated  = field{name: "created", size: 7, kind: number}
	fieldWait     = field{name: "wait", size: 5, kind: number}    // max wait in ms
	fieldCost     = field{name: "cost", size: 4, kind: number}    // intervals; from here on Go writes what a new record holds
	fieldMax      = field{name: "max", size: 2, kind: number}     // attempts at most
	fieldPrefix   = field{name: "prefix", size: 2, kind: number}  // bytes of head and prefix
	fieldPayload  = field{name: "payload", size: 4, kind: number} // bytes of the payload
)

// head is the one table of the fields: offsets in Go and in the scripts, and what the scripts
// decode, follow from it.
var head = layOut(&fieldVersion, &fieldState, &fieldEpoch, &fieldAttempts, &fieldFree, &fieldOutcome, &fieldTag, &fieldStamp, &fieldAt,
	&fieldDeadline, &fieldSeq, &fieldResult, &fieldCreated, &fieldWait, &fieldCost, &fieldMax, &fieldPrefix, &fieldPayload)

// HeadLength is the length of a record's head.
const HeadLength = 68

func layOut(fields ...*field) []field {
	at := 0
	out := make([]field, len(fields))
	for i, f := range fields {
		f.at = at
		at += f.size
		out[i] = *f
	}
	if at != HeadLength {
		panic(fmt.Sprintf("lua: the fields of a head take %d bytes, not %d", at, HeadLength))
	}
	return out
}

// of reads the field from a head.
func (f field) of(head []byte) int64 { return wide(head[f.at : f.at+f.size]) }

// put appends the field to a record that is being written.
func (f field) put(b []byte, n int64) []byte {
	for shift := 8 * (f.size - 1); shift >= 0; shift -= 8 {
		b = append(b, byte(n>>shift))
	}
	return b
}

// layout is the part of lib that follows from the table: HEAD, for each field its first and last
// byte from 1 on, such as EPOCH_AT and EPOCH_END, and head_read, which decodes them all.
func layout() string {
	var constants, table strings.Builder
	fmt.Fprintf(&constants, "local HEAD = %d\n", HeadLength)
	names := make([]string, 0, HeadLength)
	for _, f := range head {
		upper := strings.ToUpper(f.name)
		fmt.Fprintf(&constants, "local %s_AT, %s_END = %d, %d\n", upper, upper, f.at+1, f.at+f.size)
		first := len(names)
		for i := range f.size {
			names = append(names, fmt.Sprintf("b%d", f.at+1+i))
		}
		value := names[first]
		for i, b := range names[first+1:] {
			if i > 0 {
				value = "(" + value + ")"
			}
			value += " * 256 + " + b
		}
		if f.kind == letter {
			value = "char(" + value + ")"
		}
		fmt.Fprintf(&table, "    %s = %s,\n", f.name, value)
	}
	return constants.String() + "local function head_read(raw)\n  local " + strings.Join(names, ", ") +
		" = byte(raw, 1, HEAD)\n  return {\n" + table.String() + "    raw = raw, flow = '', idem = '', type_at = 0,\n  }\nend\n"
}
