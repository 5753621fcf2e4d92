package cli

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// ListFlags bound a list and choose its form.
type ListFlags struct {
	Limit *int `placeholder:"N" help:"Maximum number of items [100]."`
	All   bool `help:"All items."`
	JSON  bool `help:"Print JSON: {\"items\": […]}, and next_cursor if there are more."`
}

// Listed is one kind of list: how a page is read and an item shown.
type Listed[T any] struct {
	Most int // items of a page
	// Fetch reads a page of at most limit items; next is the cursor of the following page. An empty
	// cursor starts and ends the list.
	Fetch func(cursor string, limit int) (items []T, next string, err error)
	Head  string         // the header line of the table
	Row   func(T) string // the line of an item
}

// Print reads the list page by page and prints each page as it arrives, so that long lists need
// little memory. It writes to notes that there are more items than the limit.
func (l Listed[T]) Print(w, notes io.Writer, f ListFlags) error {
	limit := 100
	if f.Limit != nil {
		limit = *f.Limit
	}
	if limit < 1 {
		return Usagef("--limit: %d: must be at least 1", limit)
	}
	out := &listing{w: bufio.NewWriter(w), json: f.JSON, head: l.Head}
	next := ""
	for left := limit; f.All || left > 0; {
		size := l.Most
		if !f.All {
			size = min(size, left)
		}
		items, more, err := l.Fetch(next, size)
		if err != nil {
			_ = out.w.Flush() // prints what was read
			return err
		}
		for _, item := range items {
			if err := out.add(item, func() string { return l.Row(item) }); err != nil {
				return err
			}
		}
		if err := out.w.Flush(); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		left -= len(items)
		if next = more; next == "" {
			break
		}
	}
	switch {
	case f.JSON:
	case next != "":
		fmt.Fprintln(notes, "There are more items: raise --limit or give --all.")
	case out.n == 0:
		fmt.Fprintln(notes, "There is nothing to list.")
	}
	return out.close(next)
}

// listing writes a table, or one JSON object with the items.
type listing struct {
	w    *bufio.Writer
	json bool
	head string
	n    int
}

func (l *listing) add(item any, row func() string) error {
	l.n++
	if !l.json {
		if l.n == 1 {
			fmt.Fprintln(l.w, l.head)
		}
		fmt.Fprintln(l.w, row())
		return nil // an error of the buffered writer comes back from its Flush
	}
	var buf bytes.Buffer
	e := json.NewEncoder(&buf)
	e.SetIndent("    ", "  ")
	e.SetEscapeHTML(false)
	if err := e.Encode(item); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	before := "{\n  \"items\": [\n    "
	if l.n > 1 {
		before = ",\n    "
	}
	fmt.Fprint(l.w, before, strings.TrimSuffix(buf.String(), "\n"))
	return nil
}

func (l *listing) close(next string) error {
	if l.json {
		if l.n == 0 {
			fmt.Fprint(l.w, "{\n  \"items\": [")
		} else {
			fmt.Fprint(l.w, "\n  ")
		}
		fmt.Fprint(l.w, "]")
		if next != "" {
			fmt.Fprintf(l.w, ",\n  \"next_cursor\": %q", next) // of letters, digits, - and _
		}
		fmt.Fprintln(l.w, "\n}")
	}
	if err := l.w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
