// Package audit has the commands that read the audit and verify it.
package audit

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/7509e464/sluice/api/client"
	"github.com/7509e464/sluice/api/client/wire"
	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/audit"
)

// Cmd is the command audit with its subcommands.
type Cmd struct {
	List   listCmd   `cmd:"" default:"withargs" help:"List who did what, the newest first."`
	Verify verifyCmd `cmd:"" help:"Check that no entry was changed or removed."`
}

func (Cmd) Help() string {
	return `Example:
  sluice audit
  sluice audit --subject acme --since 2026-01-02T15:04:05Z
  sluice audit verify

The commands ask the admin listener, as an operator with the role admin. The page docs/audit.md says
what is recorded.`
}

type listCmd struct {
	cli.AdminFlags
	Since   *time.Time `placeholder:"TIME" help:"Only entries at this time or later, such as 2026-01-02T15:04:05Z."`
	Until   *time.Time `placeholder:"TIME" help:"Only entries before this time."`
	Actor   string     `filled:"" placeholder:"NAME" help:"Only entries of this operator."`
	Action  string     `filled:"" placeholder:"NAME" help:"Only entries of this action, such as tenant.purge; with a dot at the end, such as tenant., of all that begin so."`
	Subject string     `filled:"" placeholder:"NAME" help:"Only entries about this tenant, pool, operator or job."`
	Limit   int        `default:"100" placeholder:"N" help:"Maximum number of entries [100]."`
	All     bool       `help:"All entries."`
	Follow  bool       `short:"f" help:"Show the last entries, the oldest first, and then new ones as they come."`
	JSON    bool       `help:"Print each entry as one line of JSON, in the form that is hashed."`
}

func (listCmd) Help() string {
	return `Example:
  sluice audit list --actor olaf --limit 20
  sluice audit --action auth.refused --since 2026-01-02T15:04:05Z
  sluice audit --follow --json
  sluice audit --all --json > audit.jsonl

Next: sluice audit verify.`
}

// shownAtFirst is how many entries --follow begins with.
const shownAtFirst = 10

// pageMost is the most entries of a page.
const pageMost = 1000

func (c *listCmd) Run(a *cli.App) error {
	asked := client.AuditQuery{Actor: c.Actor, Action: c.Action, Subject: c.Subject}
	for _, at := range []struct {
		flag string
		from *time.Time
		to   *time.Time
	}{{"--since", c.Since, &asked.Since}, {"--until", c.Until, &asked.Until}} {
		if at.from == nil {
			continue
		}
		if *at.to = *at.from; at.from.Unix() <= 0 {
			return cli.Usagef("%s: %s: must be after 1970", at.flag, at.from.Format(time.RFC3339))
		}
	}
	switch {
	case c.Limit < 1:
		return cli.Usagef("--limit: %d: must be at least 1", c.Limit)
	case c.Follow && (c.Until != nil || c.All):
		return cli.Usagef("--follow excludes --until and --all")
	}
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	if c.Follow {
		return a.Interruptible(func(a *cli.App) error { return c.follow(a, remote, asked) })
	}
	left, n := c.Limit, 0
	for {
		if asked.Limit = min(pageMost, left); c.All {
			asked.Limit = pageMost
		}
		page, err := remote.Audit(a.Ctx, asked)
		if err != nil {
			return fmt.Errorf("read the audit: %w", err)
		}
		for _, e := range page.Items {
			if err := c.print(a, e, n == 0); err != nil {
				return err
			}
			n++
		}
		left -= len(page.Items)
		if asked.Cursor = page.NextCursor; asked.Cursor == "" {
			break
		}
		if left <= 0 && !c.All {
			fmt.Fprintln(a.Err, "There are more entries: raise --limit or give --all.")
			break
		}
	}
	if n == 0 {
		fmt.Fprintln(a.Err, "No such entries.")
	}
	return nil
}

// follow prints the last entries, and then new ones.
func (c *listCmd) follow(a *cli.App, remote *client.Client, asked client.AuditQuery) error {
	last, first := wire.AuditEntry{}, true
	for {
		items, err := c.after(a, remote, asked, last)
		switch {
		case cli.Transient(err) && !first: // the next try asks again
		case err != nil:
			return fmt.Errorf("read the audit: %w", err)
		}
		for _, e := range slices.Backward(items) {
			if err := c.print(a, e, first); err != nil {
				return err
			}
			first = false
		}
		if len(items) > 0 {
			last = items[0]
		}
		if err := cli.Sleep(a.Ctx, time.Second); err != nil {
			return nil //nolint:nilerr // interrupted
		}
	}
}

// after returns the entries behind the last one that was printed, the newest first; the last few of
// all, if none was.
func (c *listCmd) after(
	a *cli.App, remote *client.Client, asked client.AuditQuery, last wire.AuditEntry,
) (items []wire.AuditEntry, err error) {
	most := min(c.Limit, shownAtFirst)
	if asked.Limit = pageMost; last.Hash == "" {
		asked.Limit = most
	} else if at, err := time.Parse(time.RFC3339, last.At); err == nil {
		asked.Since = at
	}
	for {
		page, err := remote.Audit(a.Ctx, asked)
		if err != nil {
			return nil, err //nolint:wrapcheck // by follow
		}
		for _, e := range page.Items {
			if e.Hash == last.Hash || last.Hash == "" && len(items) == most {
				return items, nil
			}
			items = append(items, e)
		}
		if asked.Cursor = page.NextCursor; asked.Cursor == "" {
			return items, nil
		}
	}
}

// columns are the widths of a line but for its last part.
const columns = "%-24s  %-12s  %-15s  %-16s  %-20s  %-12s  %s\n"

func (c *listCmd) print(a *cli.App, e wire.AuditEntry, first bool) error {
	if c.JSON {
		if _, err := fmt.Fprintln(a.Out, audit.Item(e).Line()); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		return nil
	}
	if first {
		fmt.Fprintf(a.Out, columns, "AT", "ACTOR", "ADDRESS", "ACTION", "SUBJECT", "OUTCOME", "WHAT")
	}
	at := e.At
	if t, err := time.Parse(time.RFC3339, e.At); err == nil {
		at = cli.InstantText(t)
	}
	cell := func(text string) string { return cli.OrDash(cli.OneLine(text)) }
	_, err := fmt.Fprintf(a.Out, columns, cell(at), cell(e.Actor), cell(e.Address), cell(e.Action), cell(e.Subject),
		cell(e.Outcome), cell(what(e)))
	if err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// shownMost is how many bytes of what happened are shown.
const shownMost = 300

// what describes what happened: the settings that differ, and the detail.
func what(e wire.AuditEntry) string {
	var parts []string
	var before, after map[string]json.RawMessage
	was, is := cmp.Or(string(e.Before), "null"), cmp.Or(string(e.After), "null")
	if json.Unmarshal([]byte(was), &before) != nil || json.Unmarshal([]byte(is), &after) != nil { // lists, such as of endpoints
		parts, before, after = append(parts, was+" → "+is), nil, nil
	}
	names := map[string]bool{}
	for name := range before {
		names[name] = true
	}
	for name := range after {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		switch was, is := string(before[name]), string(after[name]); {
		case was == is:
		case was == "":
			parts = append(parts, name+" "+is)
		default:
			parts = append(parts, name+" "+was+" → "+cmp.Or(is, "not set"))
		}
	}
	if detail := bytes.TrimSpace(e.Detail); len(detail) > 0 && string(detail) != "null" {
		parts = append(parts, string(detail))
	}
	text := strings.Join(parts, ", ")
	if len(text) > shownMost {
		text = strings.ToValidUTF8(text[:shownMost], "") + "…"
	}
	return text
}

type verifyCmd struct {
	cli.AdminFlags
	Expect string `filled:"" placeholder:"HASH" help:"A hash that must be in the chain: that of an entry which was noted elsewhere."`
}

func (verifyCmd) Help() string {
	return `Example:
  sluice audit verify
  sluice audit verify --expect 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08

Reads the whole audit, computes each hash anew and compares it. The exit code is 1 if an entry was
changed or is missing. Who can write to Redis can compute a whole chain anew; only --expect with a
hash that was noted elsewhere, or in the lines of audit.log, shows that.`
}

func (c *verifyCmd) Run(a *cli.App) error {
	remote, err := c.Connect(1)
	if err != nil {
		return err
	}
	v, newest := audit.Verifier{Expect: c.Expect}, wire.AuditEntry{}
	for asked := (client.AuditQuery{Limit: pageMost}); ; {
		page, err := remote.Audit(a.Ctx, asked)
		if err != nil {
			return fmt.Errorf("read the audit: %w", err)
		}
		for _, e := range page.Items {
			if newest.Hash == "" {
				newest = e
			}
			v.Add(audit.Item(e))
		}
		if asked.Cursor = page.NextCursor; asked.Cursor == "" {
			break
		}
	}
	if !v.Whole() { // it may have been trimmed meanwhile
		page, err := remote.Audit(a.Ctx, client.AuditQuery{Action: audit.Trimmed, Limit: pageMost})
		if err != nil {
			return fmt.Errorf("read the audit: %w", err)
		}
		for _, e := range page.Items {
			v.Trimmed(audit.Item(e))
		}
	}
	v.End()
	for _, fault := range v.Faults {
		fmt.Fprintln(a.Out, cli.OneLine(fault))
	}
	fmt.Fprintf(a.Out, "%s, the last one has the hash %s.\n", cli.Plural(v.Entries, "entry", "entries"),
		cli.OrDash(cli.OneLine(newest.Hash)))
	if len(v.Faults) > 0 {
		fmt.Fprintf(a.Err, "sluice: the audit has %s\n", cli.Plural(len(v.Faults), "fault", "faults"))
		return cli.ErrReported
	}
	fmt.Fprintln(a.Out, "The chain is whole.")
	return nil
}
