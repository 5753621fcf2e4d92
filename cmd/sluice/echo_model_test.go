package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/7509e464/sluice/cmd/sluice/internal/cli"
	"github.com/7509e464/sluice/internal/queuetest"
)

// The model answers as OpenAI's API does, whole or in events, with what it used.
func TestModel(t *testing.T) {
	for _, c := range []struct {
		name, path, body string
		status           int
		want             []string // texts of the answer, in order
		takes            time.Duration
	}{
		{"whole", "/v1/chat/completions", `{"model":"m","messages":[{"role":"user","content":"a b"}]}`, 200, []string{
			`{"id":"chatcmpl-j1","object":"chat.completion",`, `"model":"m"`,
			`"message":{"role":"assistant","content":"You said: a b"},"finish_reason":"stop"`,
			`"usage":{"prompt_tokens":2,"completion_tokens":4,"total_tokens":6}}`,
		}, 400 * time.Millisecond},
		{"events", "/v1/chat/completions", `{"model":"m","stream":true,"stream_options":{"include_usage":true},"max_tokens":2,` +
			`"messages":[{"content":"one"},{"content":"two"}]}`, 200, []string{
			`data: {"id":"chatcmpl-j1","object":"chat.completion.chunk",`, `"delta":{"role":"assistant","content":"You"}`,
			"\n\ndata: ", `"delta":{"content":" said:"},"finish_reason":null`, `"delta":{"content":""},"finish_reason":"stop"`,
			`"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":2,"total_tokens":4}}`, "\n\ndata: [DONE]\n\n",
		}, 200 * time.Millisecond},
		{"no messages", "/v1/chat/completions", `{}`, 400, []string{`{"error":{"message":"the body must be JSON with messages`}, 0},
		{"another path", "/v1/models", `{}`, 404, []string{`POST /v1/chat/completions`}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body))
				r.Header.Set("Sluice-Job", "j1")
				w, began := httptest.NewRecorder(), time.Now()
				modelHandler(cli.NewLogger(io.Discard, "info")).ServeHTTP(w, r)
				queuetest.Compare(t, "the status", w.Code, c.status)
				queuetest.Compare(t, "the time", time.Since(began), c.takes)
				rest, found := w.Body.String(), false
				for _, want := range c.want {
					if _, rest, found = strings.Cut(rest, want); !found {
						t.Errorf("no %s in %s", want, w.Body)
					}
				}
			})
		})
	}
}
