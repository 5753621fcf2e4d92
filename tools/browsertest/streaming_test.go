//go:build ui

package browsertest

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"regexp"
	"testing"
)

// The page of docs/streaming.md shows an answer while it comes, from its beginning.
func TestEventSource(t *testing.T) {
	content, err := os.ReadFile("../../docs/streaming.md")
	must(t, err)
	block := regexp.MustCompile("(?ms)^```html\n(.*?)^```$").FindSubmatch(content)
	if block == nil {
		t.Fatal("docs/streaming.md has no page")
	}
	next := make(chan string)
	program.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "GET /":
			w.Header().Set("Content-Type", "text/html")
			_, _ = w.Write(block[1])
		case "POST /chat/completions":
			_, _ = io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "text/event-stream")
			for {
				_ = http.NewResponseController(w).Flush()
				select {
				case word, more := <-next:
					if !more {
						_, _ = io.WriteString(w, "data: [DONE]\n\n")
						return
					}
					_, _ = fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":%q}}]}\n\n", word)
				case <-r.Context().Done():
					return
				}
			}
		default: // the picture of the page
			w.WriteHeader(http.StatusNoContent)
		}
	}))
	p, err := browser.NewPage(800, 600, 1, "light")
	must(t, err)
	defer p.Close()
	must(t, p.Go(program.Model+"/"))
	next <- "You"
	must(t, p.Wait(`document.querySelector("#answer").textContent === "You"`))
	next <- " said"
	must(t, p.Wait(`document.querySelector("#answer").textContent === "You said"`))
	close(next)
	must(t, p.Wait(`performance.getEntriesByType("resource").some((e) => e.name.endsWith("/response") && e.responseEnd > 0)`))
	if got := eval[string](t, p, `document.querySelector("#answer").textContent`); got != "You said" {
		t.Errorf("the page shows %q", got)
	}
	for _, said := range p.Complaints() {
		t.Errorf("the browser complains: %s", said)
	}
}
