package scripts

import (
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPrune: prune keeps the statements that a script needs, directly or through others, and drops
// the rest.
func TestPrune(t *testing.T) {
	const lib = "local used, unused = 1, 2\n" +
		"local alone = 3\n" +
		"local now -- said later\n" +
		"local TABLE = {\n  'alone',\n}\n" +
		"local function deep(x)\n  if x then\n    return used\n  end\nend\n" +
		"local function caller()\n  return deep(field.alone)\nend\n" +
		"local function recursive()\n  return recursive()\nend\n" +
		"if not now then\n  now = TABLE[1]\nelse\n  now = 2\nend\n"
	const want = "local used, unused = 1, 2\n" +
		"local now -- said later\n" +
		"local TABLE = {\n  'alone',\n}\n" +
		"local function deep(x)\n  if x then\n    return used\n  end\nend\n" +
		"local function caller()\n  return deep(field.alone)\nend\n" +
		"if not now then\n  now = TABLE[1]\nelse\n  now = 2\nend\n" +
		"return caller()\n"
	var got string
	for _, s := range prune(statements(lib), statements("return caller()\n"), nil) {
		got += s.text
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// What a statement binds by itself, its strings, and the keys of its tables.
var (
	binds = regexp.MustCompile(`\b(?:local )?function ?([\w.]*)\(([^)]*)\)|\blocal ([\w, ]+)|\bfor ([\w, ]+?) (?:in|=)`)
	texts = regexp.MustCompile(`'[^']*'`)
	keys  = regexp.MustCompile(`([{,]\s*)\w+ = `)
	words = regexp.MustCompile(`(?:^|[^.\w])([A-Za-z_]\w*)`)
)

// uses are the names that statements refer to and do not bind themselves.
func uses(all []statement) map[string]bool {
	out := map[string]bool{}
	for _, s := range all {
		bound := map[string]bool{}
		for _, m := range binds.FindAllStringSubmatch(s.text, -1) {
			for n := range strings.FieldsFuncSeq(strings.Join(m[1:], ","), func(r rune) bool { return strings.ContainsRune(", ", r) }) {
				bound[n] = true
			}
		}
		text := keys.ReplaceAllString(texts.ReplaceAllString(s.text, "''"), "$1")
		for _, m := range words.FindAllStringSubmatch(text, -1) {
			if !bound[m[1]] {
				out[m[1]] = true
			}
		}
	}
	return out
}

// undeclared are the parts of lib whose definitions a part refers to, apart from those that it
// needs, and unused the others that it needs.
func undeclared(p part) (missing, unused []string) {
	names, own := uses(p.statements), map[string]bool{}
	for _, s := range p.statements {
		for _, n := range s.defines {
			own[n] = true
		}
	}
	owners := map[string][]string{} // of each name that the part uses
	for _, name := range slices.Sorted(maps.Keys(library())) {
		for _, s := range library()[name].statements {
			for _, n := range s.defines {
				if names[n] && !own[n] {
					owners[n] = append(owners[n], name)
				}
			}
		}
	}
	needed := map[string]bool{}
	for _, n := range slices.Sorted(maps.Keys(owners)) {
		of := slices.DeleteFunc(slices.Clone(owners[n]), func(name string) bool { return !slices.Contains(p.needs, name) })
		if len(of) == 0 {
			missing = append(missing, n+" of "+strings.Join(owners[n], " or "))
		}
		for _, name := range of {
			needed[name] = true
		}
	}
	for _, name := range p.needs {
		if !needed[name] && len(p.statements) > 1 { // a script may be nothing but a part
			unused = append(unused, name)
		}
	}
	return missing, unused
}

// TestNeeds: each script and each part of lib declares the parts that it uses, and no others. What
// is linked together has no name twice.
func TestNeeds(t *testing.T) {
	all := maps.Clone(library())
	for _, s := range Commands.All() {
		all[s.File()+".lua"] = read(s.File() + ".lua")
	}
	for name, p := range all {
		missing, unused := undeclared(p)
		if missing != nil || unused != nil {
			t.Errorf("%s uses %q without a declaration, and needs %q without using it", name, missing, unused)
		}
		defined := map[string]string{}
		for _, part := range ordered(p.needs) {
			for _, s := range library()[part].statements {
				for _, n := range s.defines {
					if defined[n] != "" {
						t.Errorf("%s needs %s and %s, and both define %s", name, defined[n], part, n)
					}
					defined[n] = part
				}
			}
		}
	}
	p := read("lib/trial.lua")
	p.needs = []string{"clock", "record"}
	missing, unused := undeclared(p)
	if diff := cmp.Diff([]string{"SHARE_LEAST of bucket", "share of bucket"}, missing); diff != "" || !slices.Equal(unused, []string{"record"}) {
		t.Errorf("a missing declaration is found as %q, one too many as %q", missing, unused)
	}
}

// TestOrder: each part stands behind what it needs.
func TestOrder(t *testing.T) {
	for _, s := range Commands.All() {
		parts := ordered(read(s.File() + ".lua").needs)
		for i, name := range parts {
			for _, need := range library()[name].needs {
				if at := slices.Index(parts, need); at < 0 || at > i {
					t.Errorf("%s: %s is linked before %s, which it needs", s.Name, name, need)
				}
			}
		}
	}
}

// TestNest: the end of a script is in a function of its own where that may use all that it needs,
// and no function has more local names than the engines allow.
func TestNest(t *testing.T) {
	const source = "local a, b = 1, 2\nlocal function c()\n  return a\nend\nlocal d = c()\nreturn d\n"
	const want = "local a, b = 1, 2\nreturn (function()\nlocal function c()\n  return a\nend\nlocal d = c()\nreturn d\nend)()\n"
	if got := nest(statements(source)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, s := range Commands.All() {
		for i, half := range strings.SplitN(s.Source(), "return (function()\n", 2) {
			names := 0
			for _, s := range statements(half) {
				names += len(s.defines)
			}
			if names > 170 {
				t.Errorf("%s: function %d has %d local names beside those of its blocks", s.Name, i, names)
			}
		}
	}
}

// TestNoPools: a script that is linked without pools has no function of theirs, and stops where it
// would call one.
func TestNoPools(t *testing.T) {
	for _, s := range Commands.All() {
		for name, p := range library() {
			if s.Pools == nil || !p.pools {
				continue
			}
			for _, one := range p.statements {
				if strings.Contains(s.Source(), one.text) {
					t.Errorf("%s has of %s:\n%s", s.Name, name, one.text)
				}
			}
		}
		if s.Pools == nil {
			continue
		}
		if !strings.Contains(s.Source(), "POOLS are needed") {
			t.Errorf("%s does not stop at a pool", s.Name)
		}
		// A name that no_pools stands for must have one meaning.
		if bad := regexp.MustCompile(`no_pools = |local no_pools|[(,] ?no_pools[,)]`).FindString(s.Source()); bad != "" {
			t.Errorf("%s binds a name of a part on pools: %s", s.Name, bad)
		}
	}
}

// TestNoComments: what is sent has no comments, whose words the composer would take for names.
func TestNoComments(t *testing.T) {
	for _, s := range Commands.All() {
		if strings.Contains(s.Source(), "-- ") {
			t.Errorf("%s.lua is sent with comments", s.Name)
		}
	}
}

// TestFold: fold replaces a constant by its value and drops its declaration.
func TestFold(t *testing.T) {
	const source = "local FAR = 9007199254740991\n" +
		"local A, B = 1, 20\n" +
		"local CELL = '(%d+):(%d+)'\n" +
		"local UNEVEN, PAIR = 1\n" +
		"local LIST = { A, FAR }\n" +
		"local function f(ABOVE)\n  return string.match(ABOVE, CELL), UNEVEN, STANDS - A\nend\n"
	const want = "local UNEVEN, PAIR = 1\n" +
		"local LIST = { 1, 9007199254740991 }\n" +
		"local function f(ABOVE)\n  return string.match(ABOVE, '(%d+):(%d+)'), UNEVEN, no - 1\nend\n"
	got := ""
	for _, s := range fold(statements(source), map[string]string{"STANDS": "no"}) {
		got += s.text
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// BenchmarkCompose is the cost of a process that sends every script.
func BenchmarkCompose(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range Commands.All() {
			link(s.File(), true)
		}
	}
}
