package audit

import (
	"encoding/json"
	"fmt"
)

// Verifier checks a chain. Give it all entries, the newest first, then call End.
type Verifier struct {
	// Expect is a hash that the chain must have: one that was noted elsewhere, empty for none. A
	// chain that somebody has computed anew from its first entry on has no gap, but other hashes.
	Expect string

	newer   *Item
	found   bool
	trimmed map[string]bool // last hashes that were removed
	seen    map[string]bool // hashes
	cut     bool            // what was read reaches into what was removed meanwhile
	Entries int
	Faults  []string
}

// Add checks an entry. An entry that was given before, as by pages that moved, is left out.
func (v *Verifier) Add(i Item) {
	if v.newer != nil && i.Hash != "" && v.newer.Hash == i.Hash {
		return
	}
	if v.seen == nil {
		v.seen = map[string]bool{}
	}
	v.seen[i.Hash] = true
	v.Entries++
	v.found = v.found || i.Hash == v.Expect
	if digest, err := i.Digest(); err != nil || digest != i.Hash {
		v.fault("entry %s of %s was changed: its hash does not fit its content", i.Hash, i.At)
	}
	if n := v.newer; n != nil {
		if n.Previous != i.Hash {
			v.fault("gap before entry %s of %s: it follows %s, but %s of %s is before it", n.Hash, n.At,
				n.Previous, i.Hash, i.At)
		}
		if n.At < i.At { // both have one form
			v.fault("entry %s of %s is older than the one before it, of %s", n.Hash, n.At, i.At)
		}
	}
	if i.Action == Trimmed {
		v.Trimmed(i)
	}
	v.newer = &i
}

// Trimmed takes an entry of the action Trimmed, which may be newer than the first one of Add.
func (v *Verifier) Trimmed(i Item) {
	var detail struct {
		Last string `json:"last_hash"`
	}
	if json.Unmarshal(i.Detail, &detail) != nil || i.Actor != self {
		return
	}
	if v.trimmed == nil {
		v.trimmed = map[string]bool{}
	}
	v.trimmed[detail.Last] = true
	v.cut = v.cut || v.seen[detail.Last]
}

// Whole reports whether the first entry is the beginning of the chain, or follows what a trim has
// removed.
func (v *Verifier) Whole() bool {
	return v.newer == nil || v.newer.Previous == "" || v.cut || v.trimmed[v.newer.Previous]
}

// End checks the first entry of the chain, after the last Add.
func (v *Verifier) End() {
	if !v.Whole() {
		v.fault("the beginning is missing: entry %s of %s follows %s, which no entry says was removed",
			v.newer.Hash, v.newer.At, v.newer.Previous)
	}
	if v.Expect != "" && !v.found {
		v.fault("no entry has the hash %s", v.Expect)
	}
}

func (v *Verifier) fault(format string, args ...any) {
	v.Faults = append(v.Faults, fmt.Sprintf(format, args...))
}
