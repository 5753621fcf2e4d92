package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/7509e464/sluice/api/client/wire"
)

// PrintJSON writes v as indented JSON.
func PrintJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// Print writes v as JSON if asJSON, and with text otherwise.
func Print(w io.Writer, v any, asJSON bool, text func(io.Writer) error) error {
	if asJSON {
		return PrintJSON(w, v)
	}
	return text(w)
}

// EndedEarly describes the error of a run. It is empty without an error.
func EndedEarly(err error) string {
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.Canceled):
		return "interrupted"
	}
	return err.Error()
}

// PrintTable writes rows in aligned columns.
func PrintTable(w io.Writer, rows [][]string) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	if err := t.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// Printable is Plain for text that may have several lines.
func Printable(s string) string { return plain(s, "\n\t") }

// OneLine returns printable text on one line, for a cell of a table.
func OneLine(s string) string { return strings.Join(strings.Fields(Printable(s)), " ") }

// InstantText returns the instant to the millisecond.
func InstantText(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z") }

// Plural returns n with the noun in the right number.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// StreamsText returns how many answers of a route are passed on while they come, and for how long
// the oldest of them has been.
func StreamsText(r wire.RouteLine) string {
	if r.StreamsSince == nil {
		return strconv.FormatInt(r.Streams, 10)
	}
	return fmt.Sprintf("%d for %s", r.Streams, MillisText(time.Since(*r.StreamsSince).Milliseconds()))
}

// OrDash returns the text, or a dash if it is empty.
func OrDash(text string) string { return cmp.Or(text, "-") }

// Plain replaces all characters that could control the terminal, change the direction of text or
// hide in it: those of the categories control, format, private use, unassigned and separators of
// lines and paragraphs.
func Plain(s string) string { return plain(s, "") }

func plain(s, but string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case strings.ContainsRune(but, r):
		case unicode.Is(unicode.C, r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			return '\ufffd'
		}
		return r
	}, s)
}
