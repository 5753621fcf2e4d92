package lua

import (
	"maps"
	"regexp"
	"strings"
)

// Redis runs a script from its first line at every call: each function of lib is made anew, with a cell for every variable that it
// refers to, and swept up again. So a script is sent with what it uses of lib, and with constants written where they are used.

// statement is what stands at the margin of a source, with the lines that belong to it.
type statement struct {
	text     string
	names    []string // that it refers to or defines
	capitals []span   // where in text names begin with a capital
	defines  []string // none where it does something

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

var constant = regexp.MustCompile(`^local ([A-Z]\w*(?:, [A-Z]\w*)*) = (\d+(?:, \d+)*|'[^']*')(?: -- .*)?\n$`)

func parse(text string) statement {
	s := statement{text: text}
	s.read()
	what, isLocal := strings.CutPrefix(text, "local ")
	if !isLocal {
		return s
	}
	what = strings.TrimPrefix(what, "function ")
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
		s.names = append(s.names, text[from:i])
		if text[from] <= 'Z' {
			s.capitals = append(s.capitals, span{from, i})
		}
	}
}

// prune is lib without the definitions that neither the script nor what is kept of lib refers to.
func prune(lib, script []statement) []statement {
	definers := map[string][]int{}
	keep := make([]bool, len(lib))
	var need func(s statement)
	need = func(s statement) {
		for _, name := range s.names {
			for _, i := range definers[name] {
				if !keep[i] {
					keep[i] = true
					need(lib[i])
				}
			}
		}
	}
	for i, s := range lib {
		for _, name := range s.defines {
			definers[name] = append(definers[name], i)
		}
	}
	for i, s := range lib {
		if s.defines == nil {
			keep[i] = true
			need(s)
		}
	}
	for _, s := range script {
		need(s)
	}
	var out []statement
	for i, s := range lib {
		if keep[i] {
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
