package lua

import (
	"iter"
	"regexp"
	"strings"
)

// Redis runs a script from its first line at every call: each function of lib is made anew, with a cell for every variable that it
// refers to, and swept up again. So a script is sent with what it uses of lib, and with constants written where they are used.

var constants = regexp.MustCompile(`^local ([A-Z]\w*(?:, [A-Z]\w*)*) = (\d+(?:, \d+)*|'[^']*')(?: -- .*)?\n$`)

// prune is lib without the definitions that neither text nor what is kept of lib refers to.
func prune(lib, text string) string {
	parts := statements(lib)
	users := map[string][]int{} // parts by the names they define
	keep := make([]bool, len(parts))
	var need func(text string)
	need = func(text string) {
		for from, to := range names(text) {
			for _, i := range users[text[from:to]] {
				if !keep[i] {
					keep[i] = true
					need(parts[i])
				}
			}
		}
	}
	for i, part := range parts {
		what, isLocal := strings.CutPrefix(part, "local ")
		if !isLocal {
			text += part // it does something
			keep[i] = true
			continue
		}
		what = strings.TrimPrefix(what, "function ")
		for name := range strings.SplitSeq(what[:strings.IndexAny(what, "=(-\n")], ",") {
			name = strings.TrimSpace(name)
			users[name] = append(users[name], i)
		}
	}
	need(text)
	var out strings.Builder
	for i, part := range parts {
		if keep[i] {
			out.WriteString(part)
		}
	}
	return out.String()
}

// statements splits a source at the lines that begin at its margin and close nothing.
func statements(source string) []string {
	var out []string
	begin, at := 0, 0
	for line := range strings.Lines(source) {
		closes := line[0] == ' ' || line[0] == '}' || strings.HasPrefix(line, "end") || strings.HasPrefix(line, "else")
		if !closes && at > begin {
			out = append(out, source[begin:at])
			begin = at
		}
		at += len(line)
	}
	return append(out, source[begin:])
}

// fold writes the numbers and strings that a source gives names to in capitals where those names stand.
func fold(source string) string {
	literal := map[string]string{}
	var rest strings.Builder
	for line := range strings.Lines(source) {
		if len(line) > len("local ") && strings.HasPrefix(line, "local ") && line[len("local ")] <= 'Z' {
			if m := constants.FindStringSubmatch(line); m != nil {
				names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
				if len(names) == len(values) {
					for i, name := range names {
						literal[name] = values[i]
					}
					continue
				}
			}
		}
		rest.WriteString(line)
	}
	source = rest.String()
	if len(literal) == 0 {
		return source
	}
	var out strings.Builder
	done := 0
	for from, to := range names(source) {
		if value, ok := literal[source[from:to]]; ok {
			out.WriteString(source[done:from])
			out.WriteString(value)
			done = to
		}
	}
	out.WriteString(source[done:])
	return out.String()
}

// names are where the names in a source begin and end, but for fields and the starts of strings. It is not a regular expression because
// every start of the program reads all scripts.
func names(source string) iter.Seq2[int, int] {
	inName := func(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9' }
	return func(yield func(from, to int) bool) {
		for i := 0; i < len(source); i++ {
			if !inName(source[i]) {
				continue
			}
			from := i
			for i < len(source) && inName(source[i]) {
				i++
			}
			if source[from] <= '9' || from > 0 && (source[from-1] == '.' || source[from-1] == '\'') {
				continue
			}
			if !yield(from, i) {
				return
			}
		}
	}
}
