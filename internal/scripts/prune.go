package scripts

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// Redis runs a script from its first line at every call and makes all its functions anew. A script
// may have 200 local names. So a script contains only the definitions of lib that it uses, with
// numbers in place of their names. That saves 4 % of Redis's instructions for a lone job.

// statement is a line at the margin of a source, with the lines that belong to it.
type statement struct {
	text    string
	names   []string // that it refers to
	defines []string // none where it does something
}

// statements splits a source at the lines that begin at its margin and do not close a block.
func statements(source string) []statement {
	var out []statement
	begin, at := 0, 0
	for line := range strings.Lines(source) {
		closes := line[0] == ' ' || line[0] == '}' || strings.HasPrefix(line, "end") ||
			strings.HasPrefix(line, "else")
		if !closes && at > begin {
			out = append(out, parse(source[begin:at]))
			begin = at
		}
		at += len(line)
	}
	return append(out, parse(source[begin:]))
}

// name matches a name, except a field of a table and the start of a string.
var name = regexp.MustCompile(`(?:^|[^.'\w])([A-Za-z_]\w*)`)

func namesIn(text string) (names []string) {
	for _, m := range name.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

func parse(text string) statement {
	s := statement{text: text, names: namesIn(text)}
	if what, isLocal := strings.CutPrefix(text, "local "); isLocal {
		what = strings.TrimPrefix(what, "function ")
		s.defines = namesIn(what[:strings.IndexAny(what, "=(-\n")])
	}
	return s
}

// prune is lib and the script without the definitions of lib that no later statement refers to.
func prune(lib, script []statement) (out []statement) {
	all, needed := slices.Concat(lib, script), map[string]bool{}
	for i, s := range slices.Backward(all) {
		if i >= len(lib) || s.defines == nil ||
			slices.ContainsFunc(s.defines, func(n string) bool { return needed[n] }) {
			out = append(out, s)
			for _, n := range s.names {
				needed[n] = true
			}
		}
	}
	slices.Reverse(out)
	return out
}

var constant = regexp.MustCompile(`^local (?:[A-Z]\w*(?:, [A-Z]\w*)*) = (\d+(?:, \d+)*|'[^']*')\n$`)

// fold is the source of the statements, with numbers and strings in the place of the names that
// they have in capitals.
func fold(all []statement) string {
	literal, out := map[string]string{}, strings.Builder{}
	for _, s := range all {
		if m := constant.FindStringSubmatch(s.text); m != nil {
			if values := strings.Split(m[1], ", "); len(values) == len(s.defines) {
				for i, n := range s.defines {
					literal[n] = values[i]
				}
				continue
			}
		}
		out.WriteString(name.ReplaceAllStringFunc(s.text, func(found string) string {
			n := strings.TrimLeftFunc(found, func(r rune) bool { return !unicode.IsLetter(r) })
			if value, ok := literal[n]; ok {
				return strings.TrimSuffix(found, n) + value
			}
			return found
		}))
	}
	return out.String()
}
