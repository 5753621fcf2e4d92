package scripts

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
	// fieldAt is when a waiting or leased job is eligible, or a done one ended.
	fieldAt       = field{name: "at", size: 7, kind: number}
	fieldDeadline = field{name: "deadline", size: 7, kind: number} // 0 for none
	fieldSeq      = field{name: "seq", size: 6, kind: number}      // place in the queue
	fieldResult   = field{name: "result", size: 3, kind: number}   // bytes of the result
	fieldCreated  = field{name: "created", size: 7, kind: number}
	fieldWait     = field{name: "wait", size: 5, kind: number} // max wait in ms
	// fieldCost is in intervals. From here on Go writes what a new record holds.
	fieldCost    = field{name: "cost", size: 4, kind: number}
	fieldMax     = field{name: "max", size: 2, kind: number}     // attempts at most
	fieldPrefix  = field{name: "prefix", size: 2, kind: number}  // bytes of head and prefix
	fieldPayload = field{name: "payload", size: 4, kind: number} // bytes of the payload
)

// head is the one table of the fields. Offsets in Go and in the scripts, and the functions of the
// scripts that decode, follow from it.
var head = layOut(&fieldVersion, &fieldState, &fieldEpoch, &fieldAttempts, &fieldFree, &fieldOutcome,
	&fieldTag, &fieldStamp, &fieldAt,
	&fieldDeadline, &fieldSeq, &fieldResult, &fieldCreated, &fieldWait, &fieldCost, &fieldMax, &fieldPrefix,
	&fieldPayload)

// HeadLength is the length of a record's head.
const HeadLength = 68

func layOut(fields ...*field) []*field {
	at := 0
	for _, f := range fields {
		f.at = at
		at += f.size
	}
	if at != HeadLength {
		panic(fmt.Sprintf("lua: the fields of a head take %d bytes, not %d", at, HeadLength))
	}
	return fields
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

// layout is the part of lib that follows from the table: HEAD; for each field its first and last
// byte from 1 on, such as EPOCH_AT and EPOCH_END; and the functions that encode and decode.
func layout() string {
	var out strings.Builder
	fmt.Fprintf(&out, "local byte, char, sub = string.byte, string.char, string.sub\n"+
		"local HEAD = %d\n", HeadLength)
	for _, f := range head {
		upper := strings.ToUpper(f.name)
		fmt.Fprintf(&out, "local %s_AT, %s_END = %d, %d\n", upper, upper, f.at+1, f.at+f.size)
	}
	for size := 2; size <= 7; size++ {
		out.WriteString(codec(size))
	}
	out.WriteString(decoder("head_read(raw)", "raw = raw, flow = '', idem = '', type_at = 0", head...))
	// A table of nine fields takes twice as much as one of eight.
	out.WriteString(decoder("waiting_read(raw, id)", "id = id, record = raw, stamp = 0",
		&fieldEpoch, &fieldAttempts, &fieldAt, &fieldCost, &fieldPayload))
	out.WriteString(decoder("succeeding_read(raw)", "raw = raw, flow = '', type_at = 0",
		&fieldState, &fieldEpoch, &fieldAttempts, &fieldOutcome, &fieldPrefix))
	return out.String()
}

// codec is two functions for numbers of the given size in bytes: u24 encodes one of three bytes,
// n24 decodes it at a place in a string.
func codec(size int) string {
	bytes, encode := bytesOf(1, size), ""
	for i := size; i > 1; i-- {
		encode += fmt.Sprintf("  local b%d = n %% 256\n  n = (n - b%d) / 256\n", i, i)
	}
	return fmt.Sprintf("local function u%d(n)\n  if n == 0 then\n    return '%s'\n  end\n"+
		"%s  return char(n, %s)\nend\n",
		8*size, strings.Repeat(`\0`, size), encode, strings.Join(bytes[1:], ", ")) +
		fmt.Sprintf("local function n%d(s, i)\n  local %s = byte(s, i, i + %d)\n  return %s\nend\n",
			8*size, strings.Join(bytes, ", "), size-1, bigEndian(bytes))
}

// decoder is a function with the given name and parameters. It returns a table of the given fields,
// in the order of the head, and of more.
func decoder(signature, more string, fields ...*field) string {
	const apart = 6 // bytes between two fields from which a second read is cheaper
	var reads, table strings.Builder
	for i := 0; i < len(fields); {
		first, end := fields[i].at, fields[i].at
		for ; i < len(fields) && fields[i].at-end <= apart; i++ {
			f := fields[i]
			end = f.at + f.size
			value := bigEndian(bytesOf(f.at+1, f.size))
			if f.kind == letter {
				value = "char(" + value + ")"
			}
			fmt.Fprintf(&table, "    %s = %s,\n", f.name, value)
		}
		fmt.Fprintf(&reads, "  local %s = byte(raw, %d, %d)\n", strings.Join(bytesOf(first+1, end-first),
			", "), first+1, end)
	}
	return "local function " + signature + "\n" + reads.String() + "  return {\n" + table.String() + "    " +
		more + ",\n  }\nend\n"
}

// bytesOf names size bytes of a record from the byte first on, counted from 1.
func bytesOf(first, size int) []string {
	names := make([]string, size)
	for i := range names {
		names[i] = fmt.Sprintf("b%d", first+i)
	}
	return names
}

// bigEndian is the number that the bytes are.
func bigEndian(bytes []string) string {
	return strings.Repeat("(", max(0, len(bytes)-2)) + strings.Replace(strings.Join(bytes, ") * 256 + "), ")",
		"", 1)
}

// HeadFields are the names of the fields of a record's head, in their order.
func HeadFields() (names []string) {
	for _, f := range head {
		names = append(names, f.name)
	}
	return names
}
