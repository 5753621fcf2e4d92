package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// largestWhole is the largest number that every reader of JSON keeps exactly.
const largestWhole = 1<<53 - 1

// canonical returns the one form of a value that is hashed: JSON without spaces, the names of
// objects sorted by code points, all characters outside of ASCII escaped. Numbers are whole and at
// most largestWhole; any other number becomes a text. It is what Python writes with
// json.dumps(value, sort_keys=True, separators=(",", ":")).
func canonical(v any) (string, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return "", fmt.Errorf("encode: %w", err)
	}
	var read any
	if err := decode(raw, &read); err != nil {
		return "", err
	}
	var b strings.Builder
	write(&b, read)
	return b.String(), nil
}

// decode reads JSON and keeps numbers as they are written.
func decode(raw []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(to); err != nil {
		return fmt.Errorf("decode: %w", err)
	}
	return nil
}

func write(b *strings.Builder, v any) {
	switch v := v.(type) {
	case nil:
		b.WriteString("null")
	case bool:
		b.WriteString(strconv.FormatBool(v))
	case string:
		quote(b, v)
	case json.Number:
		n, err := strconv.ParseInt(string(v), 10, 64)
		if err != nil || n > largestWhole || n < -largestWhole {
			quote(b, string(v))
			return
		}
		b.WriteString(strconv.FormatInt(n, 10))
	case []any:
		b.WriteByte('[')
		for i, e := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			write(b, e)
		}
		b.WriteByte(']')
	case map[string]any:
		b.WriteByte('{')
		for i, name := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b.WriteByte(',')
			}
			quote(b, name)
			b.WriteByte(':')
			write(b, v[name])
		}
		b.WriteByte('}')
	}
}

// short are the escapes of two characters.
var short = map[rune]string{'"': `\"`, '\\': `\\`, '\b': `\b`, '\f': `\f`, '\n': `\n`, '\r': `\r`, '\t': `\t`}

// quote writes a text. What is no valid UTF-8 becomes U+FFFD.
func quote(b *strings.Builder, text string) {
	b.WriteByte('"')
	for _, r := range text {
		switch escape, ok := short[r]; {
		case ok:
			b.WriteString(escape)
		case r >= ' ' && r <= '~':
			b.WriteRune(r)
		case r > 0xFFFF:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
}
