package lua_test

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/7509e464/sluice/internal/scripts"
	"github.com/7509e464/sluice/shaper"
)

// header is the contract at the top of a script's file.
type header struct {
	name string
	text string            // all of it, without the dashes
	part map[string]string // by heading, such as KEYS
	as   bool              // KEYS, ARGV and Reply are those of another script
}

var headings = []string{"Guarantee:", "KEYS", "ARGV", "Reply", "Derived keys:", "Channels:"}

const asOf = "KEYS, ARGV, Reply: as of "

// headerOf reads a script's header; a file that is not there shows as an empty one, which every
// test of the contract notices.
func headerOf(name string) header {
	h := header{name: name, part: map[string]string{}}
	raw, err := os.ReadFile(name + ".lua")
	if err != nil {
		return h
	}
	at := "purpose"
	for line := range strings.Lines(string(raw)) {
		if !strings.HasPrefix(line, "--") || strings.HasPrefix(line, "--!") {
			break
		}
		line = strings.TrimPrefix(strings.TrimSpace(strings.TrimPrefix(line, "--")), " ")
		h.text += line + "\n"
		if other, found := strings.CutPrefix(line, asOf); found {
			h.as = true
			for _, part := range []string{"KEYS", "ARGV", "Reply"} {
				h.part[part] = headerOf(other).part[part]
			}
			continue
		}
		for _, heading := range headings {
			if strings.HasPrefix(line, heading) {
				at = strings.TrimSuffix(heading, ":")
				line = strings.TrimPrefix(line, heading)
			}
		}
		h.part[at] += strings.TrimSpace(line) + "\n"
	}
	return h
}

// derived lists the kinds of keys that the header says are derived.
func (h header) derived() []string {
	list, _, _ := strings.Cut(h.part["Derived keys"], "(")
	return strings.Fields(list)
}

// fixed is how many numbered entries a part of the header names, counted from 1 without a gap;
// entries that repeat have no number.
func (h header) fixed(part string) int {
	text, _, _ := strings.Cut(h.part[part], "then per")
	n := 0
	for _, found := range number.FindAllStringSubmatch(text, -1) {
		if found[1] == strconv.Itoa(n+1) {
			n++
		}
	}
	return n
}

var (
	number      = regexp.MustCompile(`(?m)(?:^|   |, )(\d+)\b`)
	indexed     = regexp.MustCompile(`\b(KEYS|ARGV)\[(\d+)\]`)
	derivedKey  = regexp.MustCompile(`PREFIX \.\. '([a-z]+)`)
	channel     = regexp.MustCompile(`\bpublish\('([a-z]+)`)
	constantsOf = regexp.MustCompile(`(?m)^(?:  )?local ([A-Z_]+(?:, [A-Z_]+)*) = ('?\d+'?(?:, '?\d+'?)*)`)
	// What the embedded engine lacks, or what newer servers alone have.
	forbidden = regexp.MustCompile(`\btostring\b|\bcmsgpack\b|\bstruct\.|\bbit\.|#!|\bredis\.(setresp|register_function|breakpoint|replicate_commands)\b|FUNCTION`)
	// Redis writes a number that is joined to a text with 14 digits; an instant has 16.
	joined = regexp.MustCompile(`\b(now|stamp|at|ends|deadline|created|eligible|due|last|ready|held|swept|grace|off|look|until_then|start|again)\s*\.\.|\.\.\s*(\w+\.)?(now|stamp|at|ends|deadline|created|eligible|due|last|ready|held|swept|grace|off|look|until_then|start|again)(?:[^\w\[.(]|$)`)
)

// constants are the numbers, or texts of digits, that a script or a part of lib names in capitals.
func constants(source string) map[string]int64 {
	out := map[string]int64{}
	for _, found := range constantsOf.FindAllStringSubmatch(source, -1) {
		names, values := strings.Split(found[1], ", "), strings.Split(found[2], ", ")
		for i := range min(len(names), len(values)) {
			n, err := strconv.ParseInt(strings.Trim(values[i], "'"), 10, 64)
			if err == nil && len(names) == len(values) {
				out[names[i]] = n
			}
		}
	}
	return out
}

// written is a script with the whole of the parts of lib that it needs.
func written(t *testing.T, name string) string {
	t.Helper()
	text, read := "", map[string]bool{}
	var add func(file string)
	add = func(file string) {
		if read[file] {
			return
		}
		read[file] = true
		raw, err := os.ReadFile(file + ".lua")
		if err != nil {
			t.Fatal(err)
		}
		text += string(raw)
		for _, needs := range regexp.MustCompile(`(?m)^--! needs (.*)$`).FindAllStringSubmatch(string(raw), -1) {
			for part := range strings.FieldsSeq(needs[1]) {
				add("lib/" + part)
			}
		}
	}
	add(name)
	return text
}

// unique is the first group of every match, each once, sorted.
func unique(pattern *regexp.Regexp, text string) []string {
	set := map[string]bool{}
	for _, found := range pattern.FindAllStringSubmatch(text, -1) {
		set[found[1]] = true
	}
	return keysOf(set)
}

// TestHeaders: the header of a script is its contract, and says what the code does.
func TestHeaders(t *testing.T) {
	for _, s := range scripts.Commands.All() {
		t.Run(s.Name, func(t *testing.T) {
			h := headerOf(s.File())
			if !strings.HasPrefix(h.text, s.File()+": ") {
				t.Errorf("the header does not start with %q", s.File()+": ")
			}
			for _, heading := range headings {
				if strings.TrimSpace(h.part[strings.TrimSuffix(heading, ":")]) == "" {
					t.Errorf("nothing is said under %q", heading)
				}
			}
			for _, part := range []string{"KEYS", "ARGV"} {
				used := map[int]bool{}
				for _, found := range indexed.FindAllStringSubmatch(s.Source(), -1) {
					if n, err := strconv.Atoi(found[2]); err == nil && found[1] == part {
						used[n] = true
					}
				}
				fixed := h.fixed(part)
				for n := range used {
					if n < 1 || n > fixed {
						t.Errorf("%s[%d] is used, but the header names %d", part, n, fixed)
					}
				}
				for n := 1; n <= fixed; n++ {
					if !used[n] && !h.as {
						t.Errorf("%s[%d] is named in the header and not used", part, n)
					}
				}
			}
			if s.Pools != nil { // it derives some of the keys that the other one does
				return
			}
			named := slices.Sorted(slices.Values(h.derived()))
			if diff := cmp.Diff(unique(derivedKey, s.Source()), named); diff != "" {
				t.Errorf("derived keys (-code +header):\n%s", diff)
			}
			channels, _, _ := strings.Cut(h.part["Channels"], "(")
			if diff := cmp.Diff(unique(channel, s.Source()),
				slices.Sorted(slices.Values(strings.Fields(channels)))); diff != "" {
				t.Errorf("channels (-code +header):\n%s", diff)
			}
		})
	}
}

// TestPlainLua: nothing is used that one of the engines lacks or that loses digits, and both
// engines take every script as it is.
func TestPlainLua(t *testing.T) {
	for _, s := range scripts.Commands.All() {
		for line := range strings.Lines(s.Source()) {
			if bad := forbidden.FindString(line); bad != "" {
				t.Errorf("%s uses %s: %s", s.Name, bad, line)
			}
			if bad := joined.FindString(line); bad != "" {
				t.Errorf("%s joins what may be an instant to a text: %s", s.Name, line)
			}
		}
	}
	for _, kind := range engines {
		t.Run(kind.name, func(t *testing.T) {
			e := kind.start(t)
			if err := scripts.Load(context.Background(), e); err != nil {
				t.Fatal(err)
			}
			for _, s := range scripts.Commands.All() {
				if known, err := e.ScriptExists(context.Background(), s.SHA()).Result(); err != nil || !known[0] {
					t.Errorf("%s is not known by its SHA (%v)", s.Name, err)
				}
			}
		})
	}
}

// alone is a command that asks for one key that the script has derived.
var alone = regexp.MustCompile(`'EXISTS', (PREFIX|[a-z_]+\.?[a-z_]*)( \.\. [^,()]+)*\)`)

// TestMigratingKeys: whether a derived key is there is asked through exists. While a slot
// migrates, Redis says of one key alone that it is missing, even if the other node has it.
func TestMigratingKeys(t *testing.T) {
	for _, s := range scripts.Commands.All() {
		source := strings.ReplaceAll(s.Source(), "local found = redis.call('EXISTS', key) == 1", "")
		for line := range strings.Lines(source) {
			if alone.MatchString(line) || strings.Contains(line, "in_parts('EXISTS', nil") {
				t.Errorf("%s asks for one key alone: %s", s.Name, strings.TrimSpace(line))
			}
		}
	}
}

// TestConstants: a number that scripts and Go both name is the same in both.
func TestConstants(t *testing.T) {
	for _, tt := range []struct {
		script *scripts.Script
		want   map[string]int64
	}{
		{scripts.Commands.Settle, map[string]int64{
			"SETTLED": int64(scripts.CodeSettled), "REPEATED": int64(scripts.CodeRepeated),
			"STALE": int64(scripts.CodeStale), "DIED": int64(scripts.CodeDied),
			"SLACK": shaper.Slack.Microseconds(), "FREE_LEASES": shaper.FreeLeases, "FARTHEST": int64(never),
		}},
		{scripts.Commands.Admit, map[string]int64{"LATER_MOST": shaper.LaterMost}},
		{scripts.Commands.Cancel, map[string]int64{
			"ABSENT": int64(scripts.JobAbsent), "CANCELLED": int64(scripts.JobDone), "DELETED": int64(scripts.JobDeleted),
			"CONFLICT": int64(scripts.JobConflict),
		}},
		{scripts.Commands.Replay, map[string]int64{
			"ABSENT": int64(scripts.JobAbsent), "DONE": int64(scripts.JobDone), "CONFLICT": int64(scripts.JobConflict),
		}},
		{scripts.Commands.Tune, map[string]int64{"MAX_HISTORY": maxHistory, "MAX_CALLS": maxCalls}},
		{scripts.Commands.Tick, map[string]int64{
			"EXPIRE_MOST": expireMost, "FLOWS_MOST": flowsMost, "FLOW_JOBS_MOST": flowJobsMost,
			"PROMOTE_MOST": promoteMost, "LOOKS_MOST": looksMost, "BETWEEN_MOST": betweenMost,
			"LONG": long, "LATEST": latest,
			"IDLE": idleAfter.Microseconds(), "HINDERED": hindered.Microseconds(),
			"PUT_OFF_MOST": shaper.PutOffMost.Microseconds(),
		}},
		{scripts.Commands.Reclaim, map[string]int64{"SWEEP_MOST": sweepMost}},
		{scripts.Commands.Retune, map[string]int64{"LOOKED_MOST": lookedMost}},
		{scripts.Commands.Expire, map[string]int64{"EXPIRE_MOST": expireMost}},
		{scripts.Commands.Forget, map[string]int64{
			"IDLE_MOST": idleMost, "IDLE": idleAfter.Microseconds(),
			"OVERRIDDEN": overriddenAgain.Microseconds(),
		}},
	} {
		found := constants(written(t, tt.script.Name))
		for name, want := range tt.want {
			if got, ok := found[name]; !ok || got != want {
				t.Errorf("%s: %s is %d (named: %v), in Go it is %d", tt.script.Name, name, got, ok, want)
			}
		}
	}
}

// TestOutcomeCodes: the numbers in admit's header are what AdmitCall reads, and the letters in
// settle's are the outcomes of a lease.
func TestOutcomeCodes(t *testing.T) {
	list := regexp.MustCompile(`outcome \(([^)]*)\)`).
		FindStringSubmatch(strings.Join(strings.Fields(headerOf("admit").part["Reply"]), " "))
	if list == nil {
		t.Fatal("admit's header lists no outcomes")
	}
	call := scripts.AdmitCall{Flows: make([]scripts.AdmitFlow, 1), Jobs: make([]scripts.AdmitJob, 1)}
	for _, entry := range strings.Split(list[1], ", ") {
		code, name, _ := strings.Cut(entry, " ")
		n, err := strconv.ParseInt(code, 10, 64)
		if err != nil {
			t.Fatalf("outcome %q: %v", entry, err)
		}
		zero := int64(0)
		flows, decision := []any{[]any{zero, zero, zero, zero, zero}}, []any{zero, zero, zero, zero}
		detail := []any{int64(1), n, "", zero, zero, ""}
		of, rest, _ := strings.Cut(name, " ")
		ofPart, ofPool := of == "part" || of == "class", of == "part" || of == "pool"
		if ofPart || ofPool {
			name = rest
		}
		if strings.HasPrefix(name, "full") {
			detail[5] = "1 7 1"
		}
		if ofPool {
			detail[5] = "1 7 1 3 2 10 0"
		}
		costly := name == "too costly"
		if costly {
			detail[5] = "7 5"
		}
		decisions, err := call.Decode([]any{zero, flows, decision, []any{detail}})
		if err != nil {
			t.Errorf("outcome %q: %v", entry, err)
			continue
		}
		if got := strings.ReplaceAll(string(decisions[0].Outcome), "_", " "); got != name {
			t.Errorf("outcome %d is %q in the header and %q in Go", n, name, got)
		}
		if decisions[0].OfPool != ofPool || decisions[0].OfPart != ofPart || ofPool && !costly && decisions[0].Depth != 3 ||
			costly && (decisions[0].Cost != 7 || decisions[0].MaxCost != 5) {
			t.Errorf("outcome %d is decoded as %+v", n, decisions[0].Admission)
		}
	}

	letters := regexp.MustCompile(`An outcome is ([^.]*)\.`).FindStringSubmatch(headerOf("settle").part["ARGV"])
	if letters == nil {
		t.Fatal("settle's header lists no outcomes")
	}
	want := map[string]scripts.Outcome{
		"succeeded": scripts.OutcomeSucceeded, "retry": scripts.OutcomeRetry, "overloaded": scripts.OutcomeOverload,
		"dead": scripts.OutcomeDead, "held": scripts.OutcomeHeld, "released": scripts.OutcomeReleased,
		"missed": scripts.OutcomeMissed, "failed": scripts.OutcomeFailed, "lapsed": scripts.OutcomeLapsed,
	}
	entries := strings.Split(strings.ReplaceAll(letters[1], "\n", " "), ", ")
	if len(entries) != len(want) {
		t.Errorf("settle's header lists %d outcomes, Go has %d", len(entries), len(want))
	}
	for _, entry := range entries {
		letter, name, _ := strings.Cut(entry, " ")
		if string(rune(want[name])) != letter {
			t.Errorf("outcome %q is %q in Go", entry, rune(want[name]))
		}
	}
}

// TestHeaderReader: the checks of this file find what they look for.
func TestHeaderReader(t *testing.T) {
	h := header{part: map[string]string{
		"ARGV": "1 instant in µs, or '' for 7   2 horizon\n4, 5, 6 no   3 yes, 1 to 9\n4, 5 both\n" +
			"then per job: 6 x\n",
		"Derived keys": "a b (c)",
	}}
	if got := h.fixed("ARGV"); got != 5 {
		t.Errorf("%d numbered entries, want 5", got)
	}
	if diff := cmp.Diff([]string{"a", "b"}, h.derived()); diff != "" {
		t.Error(diff)
	}
	for line, bad := range map[string]bool{
		"x = now .. ' '": true, "'a' .. j.stamp": true, "PREFIX .. 'due', now": false,
		"u56(j.at) .. u56(j.deadline)": false,
	} {
		if joined.MatchString(line) != bad {
			t.Errorf("%q is judged wrong", line)
		}
	}
	if !forbidden.MatchString("local x = tostring(now)") {
		t.Error("tostring passes")
	}
}
