package jobs

import (
	"bufio"
	"cmp"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
)

// message is what a forwarded request and an answer have in common.
type message struct {
	headers        map[string]string
	body, encoding string
	bytes          int // of the whole body; 0 where it is not known
	cut            bool
}

func messageOfRequest(r wire.Request) message {
	return message{r.Headers, r.Body, r.BodyEncoding, r.BodyBytes, r.BodyTruncated}
}

func messageOfResponse(r wire.Response) message {
	return message{r.Headers, r.Body, r.BodyEncoding, 0, r.BodyTruncated}
}

// summary says what a body is that is no text, such as "812 bytes of image/png". It is empty for
// text, and for a body whose type nobody stated.
func (m message) summary() string {
	if m.encoding == "" || m.header("Content-Type") == "" {
		return ""
	}
	size := m.bytes
	if raw, err := base64.StdEncoding.DecodeString(m.body); err == nil {
		size = max(size, len(raw))
	}
	text := cli.Plural(size, "byte", "bytes") + " of " + m.header("Content-Type")
	if m.cut && m.bytes == 0 {
		text = "more than " + text
	}
	if encoding := m.header("Content-Encoding"); encoding != "" {
		text += ", " + encoding
	}
	return cli.OneLine(text)
}

func (m message) header(name string) string {
	for n, value := range m.headers {
		if strings.EqualFold(n, name) {
			return value
		}
	}
	return ""
}

// show prints the headers and the body, indented.
func (m message) show(w *bufio.Writer) {
	for _, name := range slices.Sorted(maps.Keys(m.headers)) {
		fmt.Fprintf(w, "  %s: %s\n", cli.OneLine(name), cli.OneLine(m.headers[name]))
	}
	if m.body == "" {
		return
	}
	if text := m.summary(); text != "" {
		fmt.Fprintf(w, "\n  (%s)\n", text)
		return
	}
	note := ""
	if m.encoding != "" {
		note = "  (" + m.encoding + ")\n"
	}
	cut := ""
	if m.cut {
		cut = "  (cut off)\n"
	}
	fmt.Fprintf(w, "\n%s  %s\n%s", note, strings.ReplaceAll(cli.Printable(strings.TrimRight(m.body,
		"\n")), "\n", "\n  "), cut)
}

// showRequest prints a forwarded request.
func showRequest(w *bufio.Writer, r wire.Request) {
	fmt.Fprintf(w, "\nrequest %s %s\n", cli.OneLine(r.Method), cli.OneLine(cmp.Or(r.Target, "/")))
	messageOfRequest(r).show(w)
	if r.Body == "" && r.BodyBytes > 0 {
		fmt.Fprintf(w, "\n  (%s of body, not shown: --body)\n", cli.Plural(r.BodyBytes, "byte", "bytes"))
	}
}

// showResponse prints the answer of the upstream.
func showResponse(w *bufio.Writer, r wire.Response) {
	fmt.Fprintf(w, "\nresponse %d\n", r.Status)
	messageOfResponse(r).show(w)
}
