package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/7509e464/sluice/cmd/sluice/internal/command"
	"github.com/7509e464/sluice/cmd/sluice/internal/console"
)

// What a newcomer mistypes is answered with the flag, the value and the rule.
func TestMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"tenant set acme --rate":             "--rate: the value is missing",
		"tenant set acme --rates":            "--rates: the value is missing",
		"job list --state":                   "--state: the value is missing",
		"tenant set acme --capacity 10k":     `--capacity: "10k": must be a whole number, such as 100`,
		"tenant set acme --max-wait 10":      `--max-wait: "10": must have a unit, such as 10s`,
		"tenant set acme --max-wait soon":    `--max-wait: "soon": must be a duration, such as 250ms, 10s or 1h30m`,
		"job list --created-after yesterday": `--created-after: "yesterday": must be a time, such as 2026-01-02T15:04:05Z`,
		"job list --limit x":                 `--limit: "x": must be a whole number, such as 100`,
		"job get":                            "the argument <id> is missing",
		"tenant set acme --rate 5":           "--rate: not a rate: want LIMIT/PERIOD, such as 10/s or 5/24h",
		"job list --state done":              `--state: "done": must be one of "all","queued"`,
		"serv":                               `unexpected argument serv, did you mean one of "serve"`,
		"submit --typ t 1":                   `unknown flag --typ, did you mean "--type"?`,
	} {
		var out, err bytes.Buffer
		code := Run(t.Context(), strings.Fields(args), console.Stdio{
			In: strings.NewReader(""), Out: &out, Err: &err,
		}, nil)
		said, _, _ := strings.Cut(err.String(), "\n")
		if code != command.ExitUsage || !strings.HasPrefix(said, "sluice: "+want) {
			t.Errorf("%s: exit code %d, %q, want %q", args, code, said, want)
		}
	}
}
