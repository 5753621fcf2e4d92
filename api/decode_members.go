package api

import (
	"bytes"
	"encoding/json"
	"iter"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// The functions of this file take apart JSON that json.Valid has found valid, in one pass and
// without a copy: what they give are parts of what they are given.

// membersOf are the names and values of an object, in order.
func membersOf(object json.RawMessage) iter.Seq2[string, json.RawMessage] {
	return func(yield func(string, json.RawMessage) bool) {
		for at := skipSpace(object, 1); object[at] != '}'; {
			end := endOfString(object, at)
			name := nameOf(object[at:end])
			at = skipSpace(object, skipSpace(object, end)+1) // past the colon
			end = endOfValue(object, at)
			if !yield(name, object[at:end]) {
				return
			}
			if at = skipSpace(object, end); object[at] == ',' {
				at = skipSpace(object, at+1)
			}
		}
	}
}

// elementsOf are the values of an array, in order.
func elementsOf(array json.RawMessage) iter.Seq[json.RawMessage] {
	return func(yield func(json.RawMessage) bool) {
		for at := skipSpace(array, 1); array[at] != ']'; {
			end := endOfValue(array, at)
			if !yield(array[at:end]) {
				return
			}
			if at = skipSpace(array, end); array[at] == ',' {
				at = skipSpace(array, at+1)
			}
		}
	}
}

// nameOf is the text of a string with its quotes.
func nameOf(quoted []byte) string {
	if bytes.IndexByte(quoted, '\\') < 0 {
		return string(quoted[1 : len(quoted)-1])
	}
	var s string
	_ = json.Unmarshal(quoted, &s) // it is valid
	return s
}

// hasHalf reports whether a string with its quotes has an escape that is half of a surrogate pair,
// without the other half beside it.
func hasHalf(quoted []byte) bool {
	for at := 0; at < len(quoted); at++ {
		if quoted[at] != '\\' {
			continue
		}
		if at++; quoted[at] != 'u' {
			continue
		}
		half := unitOf(quoted[at+1:])
		at += 4
		if !utf16.IsSurrogate(half) {
			continue
		}
		if !bytes.HasPrefix(quoted[at+1:], []byte(`\u`)) || utf16.DecodeRune(half, unitOf(quoted[at+3:])) == utf8.RuneError {
			return true
		}
		at += 6
	}
	return false
}

// unitOf is the UTF-16 code unit that the four digits of an escape stand for.
func unitOf(digits []byte) rune {
	n, _ := strconv.ParseUint(string(digits[:4]), 16, 16) // it is valid
	return rune(n)
}

func skipSpace(b []byte, at int) int {
	for b[at] == ' ' || b[at] == '\t' || b[at] == '\n' || b[at] == '\r' {
		at++
	}
	return at
}

// endOfString is the index after the quote that ends the string which begins at at.
func endOfString(b []byte, at int) int {
	for at++; b[at] != '"'; at++ {
		if b[at] == '\\' {
			at++
		}
	}
	return at + 1
}

// endOfValue is the index after the value that begins at at.
func endOfValue(b []byte, at int) int {
	switch b[at] {
	case '"':
		return endOfString(b, at)
	case '{', '[':
		for depth := 0; ; {
			switch b[at] {
			case '"':
				at = endOfString(b, at)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			at++
			if depth == 0 {
				return at
			}
		}
	}
	for at < len(b) && bytes.IndexByte([]byte(",]} \t\r\n"), b[at]) < 0 {
		at++
	}
	return at
}
