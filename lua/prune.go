package lua

import (
	"regexp"
	"strings"
)

// Redis runs a script from its first line at every call: each function of lib is made anew, with a cell for every variable that it
// refers to, and swept up again. So a script is sent with what it uses of lib, and with constants written where they are used.

var (
	defined   = regexp.MustCompile(`^local (?:function )?(\w+(?:, \w+)*)`)
	constants = regexp.MustCompile(`(?m)^local ([A-Z]\w*(?:, [A-Z]\w*)*) = (\d+(?:, \d+)*|'[^']*')(?: -- .*)?$\n`)
	word      = regexp.MustCompile(`(?:^|[^.'\w])([A-Za-z_]\w*)`) // but for fields and the starts of strings
)

// prune is lib without the definitions that neither text nor what is kept of lib refers to.
func prune(lib, text string) string {
	parts := statements(lib)
	users := map[string][]int{} // parts by the names they define
	keep := make([]bool, len(parts))
	var need func(text string)
	need = func(text string) {
		for _, m := range word.FindAllStringSubmatch(text, -1) {
			for _, i := range users[m[1]] {
				if !keep[i] {
					keep[i] = true
					need(parts[i])
				}
			}
		}
	}
	for i, part := range parts {
		m := defined.FindStringSubmatch(part)
		if m == nil {
			text += part // it does something
			keep[i] = true
			continue
		}
		for name := range strings.SplitSeq(m[1], ", ") {
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
	for line := range strings.Lines(source) {
		closes := strings.HasPrefix(line, " ") || strings.HasPrefix(line, "end") || strings.HasPrefix(line, "else") || strings.HasPrefix(line, "}")
		if closes && len(out) > 0 {
			out[len(out)-1] += line
		} else {
			out = append(out, line)
		}
	}
	return out
}

// fold writes the numbers and strings that a source gives names to in capitals where those names stand.
func fold(source string) string {
	literal := map[string]string{}
	source = constants.ReplaceAllStringFunc(source, func(line string) string {
		m := constants.FindStringSubmatch(line)
		names, values := strings.Split(m[1], ", "), strings.Split(m[2], ", ")
		if len(names) != len(values) {
			return line
		}
		for i, name := range names {
			literal[name] = values[i]
		}
		return ""
	})
	return regexp.MustCompile(`\b[A-Z]\w*\b`).ReplaceAllStringFunc(source, func(name string) string {
		if value, ok := literal[name]; ok {
			return value
		}
		return name
	})
}
