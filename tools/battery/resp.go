package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Bounds of what is read of RESP, far above what Sluice and Redis say to each other.
const (
	respDepth  = 32
	respLength = 64 << 20
	respItems  = 1 << 20
)

var errNotRESP = errors.New("not RESP")

// readValue reads one value of RESP2 or RESP3, a request or a reply, and returns its bytes as they
// came. At the end of the stream the error is io.EOF before a value, io.ErrUnexpectedEOF within
// one.
func readValue(in *bufio.Reader) ([]byte, error) {
	var raw bytes.Buffer
	err := copyValue(&raw, in, respDepth)
	if err == io.EOF && raw.Len() > 0 {
		err = io.ErrUnexpectedEOF
	}
	return raw.Bytes(), err
}

// copyValue appends one value to raw. It recurses into what a value holds, at most depth times.
func copyValue(raw *bytes.Buffer, in *bufio.Reader, depth int) error {
	line, err := in.ReadBytes('\n')
	raw.Write(line)
	if err != nil {
		return err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' || depth == 0 {
		return fmt.Errorf("%w: %.40q", errNotRESP, line)
	}
	kind, rest := line[0], string(line[1:len(line)-2])
	switch kind {
	case '+', '-', ':', '_', ',', '#', '(':
		return nil
	case '$', '=', '!', '*', '~', '>', '%', '|':
	default:
		return fmt.Errorf("%w: %.40q", errNotRESP, line)
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n < -1 || n > respLength {
		return fmt.Errorf("%w: %.40q", errNotRESP, line)
	}
	switch kind {
	case '$', '=', '!':
		if n < 0 {
			return nil // null
		}
		if _, err := io.CopyN(raw, in, int64(n)+2); err != nil {
			return err
		}
		if !bytes.HasSuffix(raw.Bytes(), []byte("\r\n")) {
			return fmt.Errorf("%w: a string longer than %d bytes", errNotRESP, n)
		}
		return nil
	case '%':
		n *= 2
	case '|':
		n = 2*n + 1 // attributes, and the value that they belong to
	}
	if n > respItems {
		return fmt.Errorf("%w: %.40q", errNotRESP, line)
	}
	for range n {
		if err := copyValue(raw, in, depth-1); err != nil {
			return err
		}
	}
	return nil
}

// words are the first strings of a request, at most n of them.
func words(request []byte, n int) []string {
	in := bufio.NewReader(bytes.NewReader(request))
	size, err := readLength(in, '*')
	if err != nil {
		return nil
	}
	var found []string
	for range min(n, size) {
		raw, err := readValue(in)
		if err != nil || raw[0] != '$' {
			return found
		}
		_, text, _ := bytes.Cut(raw, []byte("\r\n"))
		found = append(found, string(bytes.TrimSuffix(text, []byte("\r\n"))))
	}
	return found
}

func readLength(in *bufio.Reader, kind byte) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	n, err := strconv.Atoi(strings.TrimSpace(line[1:]))
	if err != nil || line[0] != kind || n < 1 || n > 1<<16 {
		return 0, fmt.Errorf("not RESP: %q", line)
	}
	return n, nil
}
