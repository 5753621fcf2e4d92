package httpmsg_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/7509e464/sluice/internal/httpmsg"
)

var update = flag.Bool("update", false, "write the table of docs/forward.md anew")

// TestHeaderPage: the docs have the table of headers.
func TestHeaderPage(t *testing.T) {
	t.Parallel()
	const page = "../../docs/forward.md"
	const begin, end = "<!-- headers: written by go test ./internal/httpmsg -update -->\n", "<!-- end of headers -->\n"
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(content), begin)
	got, after, foundEnd := strings.Cut(rest, end)
	if !found || !foundEnd {
		t.Fatalf("%s does not hold the lines\n%s%s", page, begin, end)
	}
	want := "\n| header | to the upstream | to the client | |\n|---|---|---|---|\n"
	for _, rule := range httpmsg.Headers {
		want += fmt.Sprintf("| `%s` | %s | %s | %s |\n", strings.Join(rule.Names, "`, `"), rule.ToUpstream, rule.ToClient, rule.Note)
	}
	want += "\n"
	if *update {
		if err := os.WriteFile(page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != want {
		t.Errorf("%s does not have the table of headers: run make docs", page)
	}
}
