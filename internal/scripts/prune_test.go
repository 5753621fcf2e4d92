package scripts

import (
	"strings"
	"testing"
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
	for _, s := range prune(statements(lib), statements("return caller()\n")) {
		got += s.text
	}
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
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
		"local function f(ABOVE)\n  return string.match(ABOVE, CELL), UNEVEN, B - A\nend\n"
	const want = "local UNEVEN, PAIR = 1\n" +
		"local LIST = { 1, 9007199254740991 }\n" +
		"local function f(ABOVE)\n  return string.match(ABOVE, '(%d+):(%d+)'), UNEVEN, 20 - 1\nend\n"
	if got := fold(statements(source)); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// BenchmarkCompose is the cost of a process that sends every script.
func BenchmarkCompose(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		for _, s := range Commands.All() {
			compose(s.Name)
		}
	}
}
