package cli

import "strings"

// Headers are the headers of a job, each as NAME: VALUE.
type Headers []string

// Parse returns the headers by name, nil for none. The server checks names and values.
func (f Headers) Parse() (map[string]string, error) {
	if len(f) == 0 {
		return nil, nil
	}
	headers := make(map[string]string, len(f))
	for _, text := range f {
		name, value, ok := strings.Cut(text, ":")
		name = strings.TrimSpace(name)
		if _, twice := headers[name]; !ok || name == "" || twice {
			return nil, Usagef("--header: must be NAME: VALUE, such as 'X-Request-Id: 17', and each name only once")
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, nil
}
