// Package audit keeps who did what on the admin listener: a chain of entries in Redis, one for all
// processes. Each entry has the hash of the one before it, so a missing or changed one shows.
//
// The chain has bounds in time and bytes. It loses its oldest entries only, and an entry of the
// action Trimmed names the last hash that was removed. Reads and refusals, which anyone can cause
// in any number, are condensed before they are chained, and have a share of the bytes.
package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/7509e464/sluice/internal/scripts"
)

// OK is the outcome of what was done. Any other one is the kind of the refusal.
const OK = "ok"

// Actions of the audit itself, and those that more than one package names.
const (
	Trimmed   = "audit.trimmed"   // the oldest entries were removed
	Lost      = "audit.lost"      // entries that were chained or recorded are missing
	Condensed = "audit.condensed" // reads or refusals beyond their share, counted

	Refused     = "auth.refused" // wrong credentials
	Login       = "login"
	LoginFailed = "login.failed"
	Logout      = "logout"
	JobRead     = "job.read"
	PageRead    = "page.read"
)

// self is the actor of the actions of the audit itself.
const self = "sluice"

// Bounds of an entry in bytes; what is longer is cut with a mark.
const (
	maxName  = 300  // of a field that is a text
	maxValue = 4096 // of before, after and detail, as JSON
	maxShown = 1000 // of a value that is cut
	cutMark  = " [cut]"
)

// Entry is one entry. Before, After and Detail are values that encoding/json can marshal; nil is
// null.
type Entry struct {
	At                     time.Time
	Actor, Role, Address   string
	Action, Subject        string
	Before, After, Detail  any
	Outcome                string // OK or the kind of the refusal
	Hash, Previous         string // set when it is chained
	before, after, details string // canonical forms
}

// timeFormat is RFC 3339 in UTC with exactly six digits of a second.
const timeFormat = "2006-01-02T15:04:05.000000Z"

// formatTime writes an instant as entries do.
func formatTime(at time.Time) string { return at.UTC().Format(timeFormat) }

// fix brings the entry into its bounds and makes its parts canonical, once.
func (e *Entry) fix() {
	for _, field := range []*string{&e.Actor, &e.Role, &e.Address, &e.Action, &e.Subject, &e.Outcome} {
		*field = cut(*field, maxName)
	}
	e.before, e.after, e.details = value(e.Before), value(e.After), value(e.Detail)
	e.Before, e.After, e.Detail = nil, nil, nil
}

// cut shortens a text to max bytes at the border of a character, with a mark.
func cut(text string, most int) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	if len(text) <= most {
		return text
	}
	for most -= len(cutMark); most > 0 && !utf8.RuneStart(text[most]); most-- {
	}
	return text[:most] + cutMark
}

// value is the canonical form of a part of an entry. One that is too long becomes an object with
// its beginning.
func value(v any) string {
	if v == nil {
		return "null"
	}
	text, err := canonical(v)
	switch {
	case err != nil:
		text, _ = canonical(map[string]string{"unreadable": cut(err.Error(), maxShown)})
	case len(text) > maxValue:
		text, _ = canonical(map[string]any{"cut": text[:maxShown] + cutMark, "bytes": len(text)})
	}
	return text
}

// fields writes the canonical form of the entry, with the hash if there is one. The names are in
// order.
func (e *Entry) fields() string {
	var b strings.Builder
	b.WriteString(`{"action":`)
	quote(&b, e.Action)
	for _, f := range []struct{ name, text, raw string }{
		{"actor", e.Actor, ""}, {"address", e.Address, ""}, {"after", "", e.after}, {"at", formatTime(e.At), ""},
		{"before", "", e.before}, {"detail", "", e.details}, {"hash", e.Hash, ""}, {"outcome", e.Outcome, ""},
		{"previous", e.Previous, ""}, {"role", e.Role, ""}, {"subject", e.Subject, ""},
	} {
		if f.name == "hash" && e.Hash == "" {
			continue
		}
		b.WriteString(`,"` + f.name + `":`)
		if f.raw != "" {
			b.WriteString(f.raw)
		} else {
			quote(&b, f.text)
		}
	}
	b.WriteByte('}')
	return b.String()
}

// seal puts the entry behind another one.
func (e *Entry) seal(previous string) {
	e.Hash, e.Previous = "", previous
	sum := sha256.Sum256([]byte(e.fields()))
	e.Hash = hex.EncodeToString(sum[:])
}

// class is the kind of entries whose bytes are counted together.
func (e *Entry) class() byte {
	switch {
	case e.Action == Trimmed || e.Action == Lost:
		return scripts.AuditChange
	case e.Outcome != OK:
		return scripts.AuditRefusal
	case reads[e.Action]:
		return scripts.AuditRead
	}
	return scripts.AuditChange
}

// reads are the actions that change nothing.
var reads = map[string]bool{JobRead: true, PageRead: true, Login: true, Logout: true, Condensed: true}

// Item is an entry as it is stored and shown.
type Item struct {
	At       string          `json:"at"`
	Actor    string          `json:"actor"`
	Role     string          `json:"role"`
	Address  string          `json:"address"`
	Action   string          `json:"action"`
	Subject  string          `json:"subject"`
	Before   json.RawMessage `json:"before"`
	After    json.RawMessage `json:"after"`
	Detail   json.RawMessage `json:"detail"`
	Outcome  string          `json:"outcome"`
	Hash     string          `json:"hash"`
	Previous string          `json:"previous"`
}

// Line returns the entry as one line, in the form that is hashed, with its hash. It is plain ASCII.
func (i Item) Line() string {
	text, err := canonical(i)
	if err != nil { // before, after or detail is no JSON
		i.Before, i.After, i.Detail = nil, nil, nil
		text, _ = canonical(i)
	}
	return text
}

// Digest computes the hash of an entry from what it says.
func (i Item) Digest() (string, error) {
	raw, err := json.Marshal(i)
	if err != nil {
		return "", fmt.Errorf("audit entry %s: %w", i.Hash, err)
	}
	var all map[string]any
	if err := decode(raw, &all); err != nil {
		return "", fmt.Errorf("audit entry %s: %w", i.Hash, err)
	}
	delete(all, "hash")
	text, err := canonical(all)
	if err != nil {
		return "", fmt.Errorf("audit entry %s: %w", i.Hash, err)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:]), nil
}
