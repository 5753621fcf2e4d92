package lua

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Redis runs a script from its first line at every call: it makes each function anew, with a cell
// for every variable that the function refers to. A script may have 200 local names. So a script is
// sent with only what it uses of lib, and with numbers in the place of their names: that saves 4 %
// of Redis's instructions of a job that comes alone, and tick fits.

// statement is what stands at the margin of a source, with the lines that belong to it.
type statement struct {
	text    string
	names   []string // that it refers to
	defines []string // none where it does something

	constants map[string]string // what it defines, where that is numbers or a string
}

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

var (
	// name is a name, but for a field of a table and what begins a string.
	name     = regexp.MustCompile(`(?:^|[^.'\w])([A-Za-z_]\w*)`)
	constant = regexp.MustCompile(`^local ([A-Z]\w*(?:, [A-Z]\w*)*) = (\d+(?:, \d+)*|'[^']*')\n$`)
)

func parse(text string) statement {
	s := statement{text: text}
	for _, m := range name.FindAllStringSubmatch(text, -1) {
		s.names = append(s.names, m[1])
	}
	what, isLocal := strings.CutPrefix(text, "local ")
	if !isLocal {
		return s
	}
	what = strings.TrimPrefix(what, "function ")
	for name := range strings.SplitSeq(what[:strings.IndexAny(what, "=(-\n")], ",") {
		s.defines = append(s.defines, strings.TrimSpace(name))
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

// prune is lib and the script without the definitions that nothing refers to.
func prune(lib, script []statement) []statement {
	all := slices.Concat(lib, script)
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
		for _, name := range all[i].names {
			for _, d := range definers[name] {
				need(d)
			}
		}
	}
	var out []statement
	for i, s := range all {
		if i >= len(lib) || s.defines == nil {
			need(i)
		}
	}
	for i, s := range all {
		if needed[i] {
			out = append(out, s)
		}
	}
	return out
}

var capitals = regexp.MustCompile(`(^|[^.'\w])([A-Z]\w*)`)

// fold is the source of the statements, with numbers and strings in the place of the names that
// they have in capitals.
func fold(all []statement) string {
	literal := map[string]string{}
	for _, s := range all {
		maps.Copy(literal, s.constants)
	}
	var out strings.Builder
	for _, s := range all {
		if s.constants != nil {
			continue
		}
		out.WriteString(capitals.ReplaceAllStringFunc(s.text, func(found string) string {
			before, name := "", found
			if found[0] < 'A' || found[0] > 'Z' {
				before, name = found[:1], found[1:]
			}
			if value, ok := literal[name]; ok {
				return before + value
			}
			return found
		}))
	}
	return out.String()
}
