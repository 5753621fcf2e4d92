package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/7509e464/sluice/internal/httpmsg"
)

// maxReferred bounds a file that a setting refers to, in bytes.
const maxReferred = 64 << 10

// expand replaces the references in a secret: ${env:NAME} by a variable of the environment and
// ${file:PATH} by the content of a file, without a line feed at its end. $${ stands for ${. It
// reports a reference that leads nowhere, and returns false; it never shows a value.
func (r *reader) expand(path, text string) (string, bool) {
	var out strings.Builder
	for {
		before, rest, found := strings.Cut(text, "${")
		if !found {
			out.WriteString(text)
			return out.String(), true
		}
		if strings.HasSuffix(before, "$") {
			out.WriteString(before + "{")
			text = rest
			continue
		}
		out.WriteString(before)
		reference, after, closed := strings.Cut(rest, "}")
		kind, name, _ := strings.Cut(reference, ":")
		text = after
		switch {
		case !closed || kind != "env" && kind != "file" || name == "":
			r.problem(r.at(path), "a reference", "must be ${env:NAME} or ${file:PATH}; $${ stands for ${")
			return "", false
		case kind == "env":
			value := r.variables[name]
			if value == "" {
				r.problem(r.at(path), "${"+cutName(reference)+"}", "must name a variable of the environment that is set and not empty")
				return "", false
			}
			out.WriteString(value)
		default:
			content, err := r.referred(name, true)
			if err != nil {
				r.problem(r.at(path), "${"+cutName(reference)+"}", err.Error())
				return "", false
			}
			out.WriteString(content)
		}
	}
}

// cutName bounds a name for a problem: a brace may be missing, and a secret follow.
func cutName(name string) string {
	if len(name) > 100 || strings.ContainsFunc(name, func(c rune) bool { return c < ' ' }) {
		return "…"
	}
	return name
}

// beside returns a path of the configuration: a relative one begins at its file.
func (r *reader) beside(path string) string {
	if path == "" || filepath.IsAbs(path) || r.path == "" {
		return path
	}
	return filepath.Join(filepath.Dir(r.path), path)
}

// referred returns the content of a file that a setting refers to, without a line feed at its end.
// A relative path is relative to the configuration file. The file is watched. If it is secret, and
// others than its owner and its group may read it, that is noted.
func (r *reader) referred(path string, secret bool) (content string, err error) {
	path = r.beside(path)
	if !slices.Contains(r.files, path) {
		r.files = append(r.files, path)
	}
	info, err := os.Stat(path)
	var cause *fs.PathError
	switch {
	case errors.As(err, &cause):
		return "", fmt.Errorf("must name a file that can be read: %w", cause.Err)
	case err != nil:
		return "", err
	case !info.Mode().IsRegular():
		return "", errors.New("must name a regular file")
	case info.Size() > maxReferred:
		return "", fmt.Errorf("must name a file of at most %d bytes", maxReferred)
	}
	raw, err := os.ReadFile(path)
	if errors.As(err, &cause) {
		return "", fmt.Errorf("must name a file that can be read: %w", cause.Err)
	}
	content = strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if content == "" {
		return "", errors.New("must name a file that is not empty")
	}
	note := fmt.Sprintf("the file %s has a secret and can be read by everyone (mode %04o); remove that right: chmod o-r", show(path), info.Mode().Perm())
	if secret && info.Mode().Perm()&0o004 != 0 && !slices.Contains(r.open, note) {
		r.open = append(r.open, note)
	}
	return content, nil
}

// headers reads the section at path of headers that a route sets.
func (r *reader) headers(path string, raw any) map[string]string {
	section, ok := raw.(map[string]any)
	if !ok {
		if raw != nil {
			r.problem(path, kindOf(raw), "must be a section of headers, such as { X-Api-Version: \"2026-01\" }")
		}
		return nil
	}
	headers := map[string]string{}
	for _, name := range sortedKeys(section) {
		at := path + "." + quoteName(name)
		text, isText := section[name].(string)
		same := slices.IndexFunc(sortedKeys(headers), func(other string) bool { return httpmsg.Is(name, other) })
		switch rule := httpmsg.CheckSettable(name); {
		case rule != "":
			r.problem(at, "the name", rule)
			continue
		case same >= 0:
			r.problem(at, "the name", "must differ from "+sortedKeys(headers)[same]+": both name one header")
			continue
		case !isText:
			r.problem(at, kindOf(section[name]), "must be a text: put it in quotes")
			continue
		}
		value, whole := r.expand(at, text)
		if rule := httpmsg.CheckValue(value); whole && rule != "" {
			r.problem(at, hidden, rule)
		} else if whole {
			headers[name] = value
		}
	}
	return headers
}
