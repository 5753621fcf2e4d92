package cli

import (
	"strings"
)

// Invoked returns how the program was called, for commands to paste: by its name, its path, or with
// go run.
func Invoked(arg0 string) string {
	switch {
	case strings.Contains(arg0, "go-build"): // where go run puts it
		return "go run ./cmd/sluice"
	case strings.Contains(arg0, `\`): // Windows, whose shells quote in other ways
		return arg0
	case strings.Contains(arg0, "/"):
		return ShellWord(arg0)
	}
	return "sluice"
}

// ShellWord quotes the text as one word of a POSIX shell, for commands to paste.
func ShellWord(text string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.:@/+-"
	if text != "" && strings.Trim(text, plain) == "" {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
