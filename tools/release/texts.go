package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// describe asks the program for its completions and makes its man page from its help.
func (r *release) describe(ctx context.Context, program string) error {
	r.texts = map[string][]byte{}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := exec.CommandContext(ctx, program, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("completion %s: %w", shell, err)
		}
		r.texts[shell] = text
	}
	help, err := exec.CommandContext(ctx, program, "--help").Output()
	if err != nil {
		return fmt.Errorf("--help: %w", err)
	}
	r.texts["man"] = manPage(string(help), r.time.Format("2006-01-02"), r.version)
	return nil
}

// manPage returns the help as a page for man(1).
func manPage(help, date, version string) []byte {
	var w bytes.Buffer
	fmt.Fprintf(&w, ".TH SLUICE 1 %q %q\n", date, "sluice "+version)
	w.WriteString(".SH NAME\nsluice \\- queue-backed leaky-bucket request shaper\n.SH DESCRIPTION\n.nf\n")
	for line := range strings.Lines(help) {
		line = strings.ReplaceAll(strings.TrimRight(line, " \n"), `\`, `\e`)
		line = strings.ReplaceAll(line, "-", `\-`)
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			line = `\&` + line
		}
		w.WriteString(line + "\n")
	}
	w.WriteString(".fi\n.SH SEE ALSO\n.B sluice COMMAND \\-\\-help\ndescribes each command with an example.\n")
	return w.Bytes()
}

// compressed returns text as gzip without a name and a time.
func compressed(text []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	_, _ = w.Write(text) // a bytes.Buffer returns no error
	_ = w.Close()
	return out.Bytes()
}
