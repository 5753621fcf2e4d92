package cli

import (
	"testing"
)

// An address without a scheme gets http. One that listens on all interfaces becomes loopback.
func TestBaseURL(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:8081":    "http://127.0.0.1:8081",
		"0.0.0.0:8081":      "http://127.0.0.1:8081",
		":8081":             "http://127.0.0.1:8081",
		"[::]:8081":         "http://127.0.0.1:8081",
		"localhost:1":       "http://localhost:1",
		"https://x.example": "https://x.example",
		"http://x:1/":       "http://x:1",
	} {
		if got := BaseURL(address); got != want {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
}
