package cli

import (
	"testing"
)

// The program is named as the user invoked it, also with go run.
func TestInvoked(t *testing.T) {
	for arg0, want := range map[string]string{
		"sluice": "sluice", "bin/sluice": "bin/sluice",
		"/tmp/go-build123/b001/exe/sluice": "go run ./cmd/sluice",
		"/opt/my tools/sluice":             "'/opt/my tools/sluice'",
		`C:\tools\sluice.exe`:              `C:\tools\sluice.exe`,
	} {
		if got := Invoked(arg0); got != want {
			t.Errorf("%s: %s", arg0, got)
		}
	}
}

// A word is quoted where a shell would read it otherwise.
func TestShellWord(t *testing.T) {
	for text, want := range map[string]string{
		"acme": "acme", "key:a-1@b.example/x_2+3": "key:a-1@b.example/x_2+3", "a b": "'a b'",
		"$(id)": "'$(id)'", "x;rm -rf /": "'x;rm -rf /'", "it's": `'it'\''s'`, "*": "'*'", "": "''",
		"é": "'é'",
	} {
		if got := ShellWord(text); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}
