package lua

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Redis runs a script from its first line at every call: each function of lib is made anew, with a cell for every variable that it
// refers to, and swept up again. So a script is sent with what it uses of lib, with constants written where they are used, and with functions
// that it seldom needs inside the one that needs them.

// statement is what stands at the margin of a source, with the lines that belong to it.
type statement struct {
	text     string
	names    []string // that it refers to or defines
	sets     []string // names before an equals sign: of variables, or of fields of a table
	capitals []span   // where in text names begin with a capital
	defines  []string // none where it does something
	function bool     // whether it defines one

	constants map[string]string // what it defines, where that is numbers or a string
}

type span struct{ from, to int }

// statements splits a source at the lines that begin at its margin and close nothing.
func statements(source string) []statement {
	var out []statement
	begin, at := 0, 0
	for line := range strings.Lines(source) {
		closes := line[0] == ' ' || line[0] == '}' || strings.HasPrefix(line, "end") || strings.HasPrefix(line, "else")
		if !closes && at > begin {
			out = append(out, parse(source[begin:at]))
			begin = at
		}
		at += len(line)
	}
	return append(out, parse(source[begin:]))
}

var constant = regexp.MustCompile(`^local ([A-Z]\w*(?:, [A-Z]\w*)*) = (\d+(?:, \d+)*|'[^']*')\n$`)

func parse(text string) statement {
	s := statement{text: text}
	s.read()
	what, isLocal := strings.CutPrefix(text, "local ")
	if !isLocal {
		return s
	}
	what, s.function = strings.CutPrefix(what, "function ")
	for name := range strings.SplitSeq(what[:strings.IndexAny(what, "=(-\n")], ",") {
		s.defines = append(s.defines, strings.TrimSpace(name))
	}
	if what[0] > 'Z' {
		return s
	}
	if m := constant.FindStringSubmatch(text); m != nil {
		if values := strings.Split(m[2], ", "); len(values) == len(s.defines) {
			s.constants = map[string]string{}
			for i, name := range s.defines {
				s.constants[name] = values[i]
			}
		}
	}
	return s
}

// inName says which bytes a name consists of.
var inName = func() (in [256]bool) {
	for _, c := range "_0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		in[c] = true
	}
	return in
}()

// read finds the names in the text, but for fields and the starts of strings.
func (s *statement) read() {
	text := s.text
	for i := 0; i < len(text); i++ {
		if !inName[text[i]] {
			continue
		}
		from := i
		for i < len(text) && inName[text[i]] {
			i++
		}
		if text[from] <= '9' || from > 0 && (text[from-1] == '.' || text[from-1] == '\'') {
			continue
		}
		if strings.HasPrefix(text[i:], " = ") {
			s.sets = append(s.sets, text[from:i])
		} else {
			s.names = append(s.names, text[from:i])
		}
		if text[from] <= 'Z' {
			s.capitals = append(s.capitals, span{from, i})
		}
	}
}

// uses is which of the statements some of them need, themselves included; functions to be passed by need nothing.
func uses(all []statement, root func(i int) bool, passBy map[string]bool) []bool {
	definers := map[string][]int{}
	for i, s := range all {
		for _, name := range s.defines {
			definers[name] = append(definers[name], i)
		}
	}
	needed := make([]bool, len(all))
	var need func(i int)
	need = func(i int) {
		if needed[i] {
			return
		}
		needed[i] = true
		s := all[i]
		if s.function && passBy[s.defines[0]] {
			return
		}
		for _, name := range s.names {
			for _, d := range definers[name] {
				need(d)
			}
		}
		for _, name := range s.sets { // nobody sets a function
			for _, d := range definers[name] {
				if !all[d].function {
					need(d)
				}
			}
		}
	}
	for i := range all {
		if root(i) {
			need(i)
		}
	}
	return needed
}

// prune is lib and the script without the definitions that nothing refers to.
func prune(lib, script []statement) []statement {
	all := slices.Concat(lib, script)
	needed := uses(all, func(i int) bool { return i >= len(lib) || all[i].defines == nil }, nil)
	var out []statement
	for i, s := range all {
		if needed[i] {
			out = append(out, s)
		}
	}
	return out
}

// sink moves functions that the given ones alone need into them, in a copy for each.
func sink(all []statement, rare []string) []statement {
	if len(rare) == 0 {
		return all
	}
	isRare := map[string]bool{}
	for _, name := range rare {
		isRare[name] = true
	}
	often := uses(all, func(i int) bool { return !all[i].function }, isRare)
	var out []statement
	for i, s := range all {
		switch {
		case s.function && isRare[s.defines[0]]:
			others := maps.Clone(isRare)
			delete(others, s.defines[0])
			inner := uses(all, func(n int) bool { return n == i }, others)
			head, body, _ := strings.Cut(s.text, "\n")
			var text strings.Builder
			text.WriteString(head + "\n")
			for n, other := range all {
				if inner[n] && !often[n] && other.function && !isRare[other.defines[0]] {
					text.WriteString(other.text)
				}
			}
			text.WriteString(body)
			out = append(out, parse(text.String()))
		case often[i] || !s.function:
			out = append(out, s)
		}
	}
	return out
}

// fold is the source of the statements, with the numbers and strings that they give names to in capitals where those names stand.
func fold(all []statement) string {
	literal, length := map[string]string{}, 0
	for _, s := range all {
		maps.Copy(literal, s.constants)
		length += len(s.text)
	}
	var out strings.Builder
	out.Grow(length)
	for _, s := range all {
		if s.constants != nil {
			continue
		}
		done := 0
		for _, at := range s.capitals {
			if value, ok := literal[s.text[at.from:at.to]]; ok {
				out.WriteString(s.text[done:at.from])
				out.WriteString(value)
				done = at.to
			}
		}
		out.WriteString(s.text[done:])
	}
	return out.String()
}
