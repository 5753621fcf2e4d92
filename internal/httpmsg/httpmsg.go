// Package httpmsg is the stored form of a forwarded request and of its answer. Packages api and
// worker import it: api stores requests and writes answers, worker does the reverse.
//
// The form is that of HTTP/1.1 (RFC 9112) with one CRLF after each line: a first line, a line for
// each value of a header, an empty line, and the body as it is. It keeps the encoding of the path,
// repeated headers in their order, and binary bodies.
package httpmsg

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// ErrForm means that a stored message cannot be read.
var ErrForm = errors.New("httpmsg: not a stored message")

// Request is a request as it is sent on. The zero value of Header and Body is none.
type Request struct {
	Method string      // a token, such as PATCH
	Target string      // path below the base URL and query, encoded as the client sent them; may be empty
	Header http.Header // end to end, without Host and Content-Length
	Body   []byte
}

// Answer is the answer of an upstream.
type Answer struct {
	Status int         // from 200 to 999
	Header http.Header // end to end
	Body   []byte
	// Truncated is set where Body is only the first part of the upstream's.
	Truncated bool
}

// firstLine of an answer whose body was cut says so instead of its version.
const (
	whole = "HTTP/1.1"
	cut   = "HTTP/1.1-cut"
)

// Encode returns the stored form of a request.
func (r Request) Encode() []byte { return encode(r.Method+" "+r.Target, r.Header, r.Body) }

// Encode returns the stored form of an answer.
func (a Answer) Encode() []byte {
	version := whole
	if a.Truncated {
		version = cut
	}
	return encode(version+" "+strconv.Itoa(a.Status), a.Header, a.Body)
}

func encode(first string, header http.Header, body []byte) []byte {
	size := len(first) + 4 + len(body)
	for name, values := range header {
		for _, v := range values {
			size += len(name) + len(v) + 4
		}
	}
	b := append(append(make([]byte, 0, size), first...), "\r\n"...)
	for _, name := range slices.Sorted(maps.Keys(header)) {
		for _, v := range header[name] {
			b = append(append(append(b, name...), ": "...), v...)
			b = append(b, "\r\n"...)
		}
	}
	return append(append(b, "\r\n"...), body...)
}

// DecodeRequest reads the stored form of a request. Body shares the memory of b. Errors wrap
// ErrForm.
func DecodeRequest(b []byte) (Request, error) {
	first, header, body, err := decode(b)
	if err != nil {
		return Request{}, err
	}
	method, target, ok := strings.Cut(first, " ")
	if !ok || method == "" || strings.Contains(target, " ") || target != "" && target[0] != '/' && target[0] != '?' {
		return Request{}, fmt.Errorf("%w: no method and target", ErrForm)
	}
	return Request{method, target, header, body}, nil
}

// DecodeAnswer reads the stored form of an answer. Body shares the memory of b. Errors wrap
// ErrForm.
func DecodeAnswer(b []byte) (Answer, error) {
	first, header, body, err := decode(b)
	if err != nil {
		return Answer{}, err
	}
	version, status, _ := strings.Cut(first, " ")
	n, err := strconv.Atoi(status)
	if version != whole && version != cut || err != nil || len(status) != 3 || n < 200 {
		return Answer{}, fmt.Errorf("%w: no version and status", ErrForm)
	}
	return Answer{n, header, body, version == cut}, nil
}

func decode(b []byte) (first string, header http.Header, body []byte, err error) {
	head, body, ok := bytes.Cut(b, []byte("\r\n\r\n"))
	if !ok {
		return "", nil, nil, fmt.Errorf("%w: no end of the headers", ErrForm)
	}
	first, rest, _ := strings.Cut(string(head), "\r\n")
	header = http.Header{}
	for line := range strings.SplitSeq(rest, "\r\n") {
		if rest == "" {
			break
		}
		name, value, ok := strings.Cut(line, ": ")
		if !ok || name == "" {
			return "", nil, nil, fmt.Errorf("%w: a line that is no header", ErrForm)
		}
		header[name] = append(header[name], value)
	}
	return first, header, body, nil
}
